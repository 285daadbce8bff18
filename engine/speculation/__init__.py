"""Drafts: guesses at the output that the model confirms many at a time."""

from engine.speculation.copy_draft import CopyDraft

__all__ = ["CopyDraft"]
