"""The draft of an answer: what the rules, the sender, the file and the edit say that it will be."""

from __future__ import annotations

from collections.abc import Callable

from agent_runtime.prompt import ApplyPrompt
from agent_runtime.scoping import Question
from engine.speculation import CopyDraft
from engine.types import Proposer

MAX_MERGES = 3
"""Readings that a draft is made from; the others are rarely what the model writes."""


def draft_of(question: Question, prompt: ApplyPrompt, encode: Callable[[str], list[int]]) -> Proposer:
    """A draft for the answer to a question, which ends with the prompt's closing tag."""
    guesses = [*question.merges[:MAX_MERGES], *([] if question.prediction is None else [question.prediction])]
    merges = [encode(guess + prompt.stop) for guess in dict.fromkeys(guesses)]
    return CopyDraft([*merges, prompt.file_ids, prompt.edit_ids])
