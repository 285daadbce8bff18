"""Turns the messages of a chat into the model's prompt, in which nothing that a message says can end a turn."""

from __future__ import annotations

from collections.abc import Sequence

from agent_runtime.chat.types import ChatMessage
from agent_runtime.context.frame import frame
from agent_runtime.errors import BadRequest, CorruptModel
from agent_runtime.models.text_side import TextSide
from repo_cache.errors import TokenizerError


def prompt_ids(text: TextSide, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    """The chat template around the messages, each text encoded apart, so that no token reaches across a border.

    What is sent again with the next question begins with the same tokens, and its KV is there. Raises BadRequest where
    the template does not take these messages, or a text cannot be encoded.
    """
    if not messages:
        raise BadRequest("there are no messages; send one at least", field="messages")
    roles = [message.role for message in messages]
    try:
        pieces = frame(text.template, roles)
    except CorruptModel as error:
        raise BadRequest(
            f"the model's chat template does not take messages of these roles in this order ({', '.join(roles)}): "
            f"{error}",
            field="messages",
        ) from error
    encode = text.tokenizer.encode_template
    ids = encode(pieces[0])
    for own, behind in zip(plain_ids(text, [message.text for message in messages]), pieces[1:], strict=True):
        ids += own
        ids += encode(behind)
    return tuple(ids)


def plain_ids(text: TextSide, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, in which nothing is a control token; raises BadRequest where one cannot be encoded."""
    try:
        return [ids.tolist() for ids in text.tokenizer.encode_batch(texts)]
    except TokenizerError as error:
        raise BadRequest(f"the model cannot read this text: {error}", field="messages") from error
