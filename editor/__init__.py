"""Edits as pure text: formats, merging, verification, diffs; writes nothing and calls no model."""
