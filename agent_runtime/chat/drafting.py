"""The draft of a chat answer: what the sender expects, and what stands in the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from agent_runtime.chat.prompting import plain_ids
from agent_runtime.context.frame import frame
from agent_runtime.models.text_side import TextSide
from engine.speculation import MergeDraft
from engine.types import Proposer


def draft_of(text: TextSide, prompt: Sequence[int], prediction: str, most_tokens: int) -> Proposer:
    """A draft that begins with the prediction, where there is one, and finds what is copied from the prompt.

    Of the prediction, no more than `most_tokens` can be written.
    """
    expected = None
    if prediction:
        (ids,) = plain_ids(text, [prediction])
        expected = (ids + turn_end(text))[:most_tokens]
    return MergeDraft(
        merges=[],
        original=[],
        update=prompt,
        prediction=expected,
        token_bytes=text.tokenizer.token_bytes(),
    )


def turn_end(text: TextSide) -> list[int]:
    """The token with which the model ends its turn; none where the chat template shows none."""
    behind = text.tokenizer.encode_template(frame(text.template, ["user", "assistant"])[-1])
    return [number for number in behind if number in text.stop_ids][:1]
