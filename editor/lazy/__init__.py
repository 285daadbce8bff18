"""Lazy snippets merged: certain where nothing can be lost, ranked readings elsewhere."""
