"""How much of what was computed for earlier edits the prompt of one edit may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_runtime.errors import Unsupported
from agent_runtime.types import ReuseName
from engine.reuse import EXACT, Reuse, ReuseMode

if TYPE_CHECKING:
    from agent_runtime.prompt import ApplyPrompt  # most edits need no prompt, and nothing of what builds one


def mode_of(asked: ReuseName | None, otherwise: ReuseName) -> ReuseMode:
    """What a request asks for, or what holds where it asks for nothing; raises Unsupported for `balanced`.

    `balanced` keeps the old file in the prompt and tells what changed behind it. One edit has no earlier turn whose
    prompt could be kept.
    """
    name = asked or otherwise
    if name == "balanced":
        raise Unsupported(
            "reuse 'balanced' is for sessions, which keep a file's old text and add what changed; for a single edit "
            "use 'exact', or 'fast', which takes over the file's unchanged parts approximately",
            field="reuse",
        )
    return name


def reuse_of(prompt: ApplyPrompt, mode: ReuseMode) -> Reuse:
    """What the engine may take over of the prompt: in the modes that approximate, parts of the file and nothing else.

    The preamble is run where it is not cached, so that it is exact for all edits after this one. The edit and the
    question are run always: they are about this very file, and a snippet that quotes the file would take its KV.
    """
    if mode == "exact":
        return EXACT
    first, end = prompt.file_at
    return Reuse(mode, prompt.segment_ends, recompute=((0, first), (end, len(prompt.token_ids))))
