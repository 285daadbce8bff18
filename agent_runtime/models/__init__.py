"""Models: the catalogue, sources and downloads, the local store, tokenizers, and loading."""
