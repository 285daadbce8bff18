"""Prompt segments: a file's spans as the repository cache has them, and other texts, with keys of one kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from agent_runtime.context.types import ContextEncoder
from engine.reuse import PromptSegment
from repo_cache.keys import span_keys
from repo_cache.types import FileTokens


def file_segments(encoder: ContextEncoder, path: str, tokens: FileTokens, *, ends_line: bool) -> list[PromptSegment]:
    """A file between a line that names it and one that ends it: a segment a span, with the cache's ids and keys.

    `ends_line`: whether the file ends with a newline, or is empty. Whatever the path holds, it is text.
    """
    head, tail = f"<file path={json.dumps(path, ensure_ascii=False)}>\n", "</file>\n"
    ids, spans = tokens.token_ids.tolist(), tokens.spans
    borders = pairwise([0, *spans.ends.tolist()])
    body = [PromptSegment(ids[start:end], key) for (start, end), key in zip(borders, spans.key_list(), strict=True)]
    return [
        keyed(encoder, encoder.encode(head)),
        *body,
        keyed(encoder, encoder.encode(tail if ends_line else f"\n{tail}")),
    ]


def keyed(encoder: ContextEncoder, token_ids: Sequence[int]) -> PromptSegment:
    """A segment of these tokens, with the key that a span of the cache would have (`repo_cache.keys`)."""
    (key,) = span_keys(encoder.fingerprint, np.array(token_ids, np.uint32), 0, [len(token_ids)])
    return PromptSegment(tuple(token_ids), key.tobytes())
