"""Immutable snapshots of a watched folder's tokens and spans, updated incrementally."""
