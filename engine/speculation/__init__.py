"""Drafts: guesses at the output that the model confirms many at a time."""

from engine.speculation.copy_draft import CopyDraft
from engine.speculation.merge_draft import MergeDraft

__all__ = ["CopyDraft", "MergeDraft"]
