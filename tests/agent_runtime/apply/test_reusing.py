"""What an edit's prompt may take over: the file and nothing else, in the mode that the request or the service names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import Unsupported
from agent_runtime.llm.interface import build_reuse, resolve_reuse_mode
from agent_runtime.prompt import ApplyPrompt
from agent_runtime.types import ApplyRequest, Options, PatchRequest
from engine.reuse import EXACT, Match, plan_reuse
from tests.agent_runtime.scripted import ScriptedMerger

PROMPT = ApplyPrompt(tuple(range(100)), (), (), "", 20, file_at=(25, 80), segment_ends=(20, 25, 60, 80))


def test_the_request_decides_and_else_the_service() -> None:
    assert resolve_reuse_mode(None, "fast") == "fast"
    assert resolve_reuse_mode("exact", "fast") == "exact"
    assert resolve_reuse_mode("turbo", "exact") == "turbo"


def test_exact_asks_for_nothing() -> None:
    assert build_reuse(PROMPT, "exact") is EXACT


@pytest.mark.parametrize("mode", ["fast", "turbo"])
def test_whatever_is_stored_only_the_file_is_taken_over(mode: Any) -> None:
    reuse = build_reuse(PROMPT, mode)
    assert (reuse.mode, tuple(reuse.segment_ends)) == (mode, PROMPT.segment_ends)
    everything = [Match(0, np.arange(99), 0, 1)]
    plan = plan_reuse(100, 0, everything, reuse)
    assert [(each.start, each.end) for each in plan.placed] == [(25, 80)]


@pytest.mark.parametrize("mode", ["auto", "deterministic", "model"])
def test_balanced_is_refused_with_what_to_use(mode: Any) -> None:
    applier = Applier(lambda: ScriptedMerger("a = 2\n"))
    edit = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    for apply in (
        lambda: applier.apply(ApplyRequest(b"a = 1\n", edit, reuse="balanced", mode=mode)),
        lambda: applier.apply_patch(PatchRequest(edit, reuse="balanced", mode=mode), {"a.py": b"a = 1\n"}.get),
    ):
        with pytest.raises(Unsupported, match="for a single edit use 'exact', or 'fast'") as caught:
            apply()
        assert caught.value.field == "reuse"


def test_what_the_service_decides_is_never_sent() -> None:
    own = {"salt": "tenant", "root": "/srv/shop"}
    options = Options(reuse="fast", **own)
    assert options.options().items() >= own.items()
    assert options.to_request_options() == {name: value for name, value in options.options().items() if name not in own}
