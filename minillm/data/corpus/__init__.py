"""The embedded default corpus, as package data. See NOTICE.md for what it is and where it comes from."""
