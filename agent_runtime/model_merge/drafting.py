"""The draft of an answer: what the rules, the sender, the file and the edit say that it will be."""

from __future__ import annotations

from agent_runtime.model_merge.scoping import Question
from agent_runtime.models.text_side import TextSide
from agent_runtime.prompt import ApplyPrompt, TextEncoder
from engine.speculation import MergeDraft
from engine.types import Proposer

MAX_MERGES = 3
"""Readings that a draft is made from; the others are rarely what the model writes."""


def draft_of(question: Question, prompt: ApplyPrompt, encoder: TextEncoder, text: TextSide) -> Proposer:
    """A draft for the answer to a question, which ends with the prompt's closing tag."""
    encode = encoder.encode
    expected = question.prediction
    return MergeDraft(
        merges=[encode(merge + prompt.stop) for merge in question.merges[:MAX_MERGES]],
        original=prompt.file_ids,
        update=prompt.edit_ids,
        prediction=None if expected is None or expected in question.merges else encode(expected + prompt.stop),
        token_bytes=text.tokenizer.token_bytes(),
    )
