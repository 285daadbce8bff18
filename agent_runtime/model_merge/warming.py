"""Pays once, before the first edit, for what the prompts of all edits begin with."""

from __future__ import annotations

from agent_runtime.models.load import LoadedModel
from agent_runtime.prompt import shared_ids
from engine.errors import DoesNotFit
from engine.types import GenerationRequest

AS_LONG_AS_IT_RUNS = 1e9
"""Seconds. Whatever is evicted, this is evicted last: every edit needs it."""


def warm(loaded: LoadedModel) -> int:
    """Have the KV of the prompts' shared part computed and kept; returns how many tokens it has, 0 if it does not fit.

    Raises EngineError where the engine fails or is closed.
    """
    text, engine = loaded.text, loaded.engine
    token_ids = shared_ids(text.template, text.tokenizer, text.form)
    try:
        engine.run(GenerationRequest(prompt=token_ids, max_new_tokens=1, retain_s=AS_LONG_AS_IT_RUNS))
    except DoesNotFit:  # no edit fits either, as each is told
        return 0
    return len(token_ids)
