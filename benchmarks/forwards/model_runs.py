"""The same cases written by a real model through the engine, which decides itself how far it drafts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.prompt import build_prompt
from agent_runtime.wiring import open_model
from benchmarks.forwards.cases import ForwardsCase
from engine.speculation import MergeDraft
from engine.types import GenerationRequest

SPARE_TOKENS = 64
"""What an answer may be longer than the right one before it is cut."""


def run_with(model: str, cases: Sequence[ForwardsCase]) -> list[dict[str, Any]]:
    """A row for each case: passes behind the prefill, and whether the model wrote the text after the edit."""
    loaded = open_model(model, ModelSettings.from_env(os.environ), LoadOptions())
    rows = []
    for number, case in enumerate(cases, start=1):
        row = _row(loaded, case)
        rows.append(row)
        print(f"{number}/{len(cases)} {row['forwards']} forwards  {case.id} {case.style}", file=sys.stderr, flush=True)
    loaded.engine.close()
    return rows


def _row(loaded: LoadedModel, case: ForwardsCase) -> dict[str, Any]:
    text = loaded.text
    prompt = build_prompt(
        text.template,
        text.tokenizer,
        file_text=case.before.removesuffix("\n"),
        edit_text=case.snippet.strip("\n"),
        instruction="",
        form=text.form,
    )
    merges = [text.tokenizer.encode(f"{merge.removesuffix(chr(10))}\n{prompt.stop}") for merge in case.merged]
    draft = MergeDraft(
        merges=merges,
        original=prompt.file_ids,
        update=prompt.edit_ids,
        token_bytes=text.tokenizer.token_bytes(),
    )
    request = GenerationRequest(
        prompt.token_ids,
        max_new_tokens=len(case.target) + SPARE_TOKENS,
        stop_ids=text.stop_ids,
        stop=(prompt.stop.encode(),),
    )
    result = loaded.engine.run(request, draft)
    answer = result.text.decode("utf-8", errors="replace").removesuffix("\n")
    return {
        "id": case.id,
        "style": case.style,
        "group": case.group,
        "forwards": result.usage.forwards - result.usage.prefill_forwards,
        "completion": result.usage.completion,
        "drafted": result.usage.drafted,
        "accepted": result.usage.accepted,
        "right": answer == case.after.removesuffix("\n"),
        "finish_reason": result.finish_reason,
    }
