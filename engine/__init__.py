"""Runs a decoder language model: token ids in, token ids out."""
