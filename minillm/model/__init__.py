"""The decoder: embedding, blocks, norms, MLP, head, initialisation, loss and cost. Torch and jaxtyping only."""
