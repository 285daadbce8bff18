"""Drafts of a request's output: MergeDraft, draft lengths by measured step times, and the acceptance that
is learned.
"""

from engine.speculation.merge_draft import MergeDraft

__all__ = ["MergeDraft"]
