"""Suite `attention`: where the attention of each layer and head goes, and what its hidden states know of position."""
