"""What a trace tells of a real model's work adds up to what `usage` counts. SmolLM2, float32."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.request_context import NO_PROGRESS, Piece, ProgressListener
from agent_runtime.serialization import result_from_json, result_to_json
from agent_runtime.types import AnswerTrace, ApplyRequest, ApplyResult, PatchRequest
from engine.engine_config import EngineConfig
from tests.agent_runtime.serving import serving
from tests.models import RealModel
from tests.scripted_model import merge_of, scripted_engine

FILE = "import os\n\n\n" + "\n\n".join(
    f"def area_{number}(width, height):\n    # {number} € a metre\n    return width * height * {number}\n"
    for number in range(8)
)
EDIT = "<<<<<<< SEARCH\n    return width * height * {0}\n=======\n    return width * height * {0}0\n>>>>>>> REPLACE\n"


@dataclass
class Following(ProgressListener):
    """Keeps what it is told."""

    wants_text = True

    pieces: list[Piece] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    traces: list[AnswerTrace] = field(default_factory=list)

    def on_phase(self, phase: str, path: str = "") -> None:
        self.phases.append(phase)

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        self.pieces += pieces

    def on_answer(self, trace: AnswerTrace) -> None:
        self.traces.append(trace)


@pytest.fixture(scope="module")
def merger(smollm2: RealModel) -> Iterator[ModelMerger]:
    """A model that copies the file, and writes a line of its own before it."""
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    text = metadata.to_bundle(tokenizer)
    config = EngineConfig(4096, span_bytes=150_000_000, check_integrity=True)
    with scripted_engine([merge_of(f"import os  # of files\n{FILE}")], text, config) as engine:
        yield ModelMerger(LoadedModel(smollm2.name, engine, text, 0.0, 0))


def applied(merger: ModelMerger, number: int, progress: ProgressListener = NO_PROGRESS, **options: Any) -> ApplyResult:
    options = {"mode": "model", "max_tokens": 24, "trace": True, "policy": "lenient"} | options
    request = ApplyRequest(original=FILE.encode(), edit=EDIT.format(number), path="area.py", **options)
    return Applier(lambda: merger).apply(request, progress=progress)


def check_sums(result: ApplyResult) -> None:
    assert result.trace is not None
    usage, kinds, origins = result.usage, Counter[str](), Counter[str]()
    for answer in result.trace:
        for read in answer.prompt:
            kinds[read.kind] += read.tokens
        for wrote in answer.output:
            origins[wrote.origin] += wrote.tokens
    counted = {"cached": usage.cached, "reused": usage.reused_approximate, "recomputed": usage.recomputed}
    assert dict(kinds) == {kind: count for kind, count in counted.items() if count}
    assert kinds.total() == usage.prompt
    assert origins["copied"] == usage.accepted
    assert origins.total() == usage.completion
    forwards = [each for answer in result.trace for each in answer.forwards]
    assert len(forwards) == usage.forwards
    assert sum(each.tokens for each in forwards) == usage.completion
    assert sum(each.drafted for each in forwards) == usage.drafted
    assert sum(each.accepted for each in forwards) == usage.accepted


def test_a_trace_adds_up_to_usage_and_is_what_was_told_meanwhile(merger: ModelMerger) -> None:
    progress = Following()
    result = applied(merger, 3, progress, scope="file")
    check_sums(result)
    assert result.trace is not None
    (answer,) = result.trace
    assert (answer.path, answer.region, answer.purpose) == ("area.py", 0, "write")
    assert FILE in "".join(run.text for run in answer.prompt)
    assert "".join(piece.text for piece in progress.pieces) == "".join(run.text for run in answer.output)
    assert result.file.merged.startswith("".join(run.text for run in answer.output).rstrip())
    assert progress.traces == [answer]
    assert progress.phases == ["parse", "merge", "scope", "prompt", "prefill", "decode", "verify"]
    assert result.usage.accepted > 0
    assert result.usage.completion > result.usage.accepted


def test_a_second_turn_shows_what_it_took_over(merger: ModelMerger) -> None:
    applied(merger, 2, scope="file")
    result = applied(merger, 5, scope="file", reuse="fast")
    check_sums(result)
    again = applied(merger, 5, scope="file")
    check_sums(again)
    assert again.usage.cached > 0


def test_what_a_changed_file_takes_over_is_marked_as_reused(merger: ModelMerger) -> None:
    applied(merger, 6, scope="file")
    changed = FILE.replace("area_1(width, height)", "area_of_one(width, height)")
    options: dict[str, Any] = {"mode": "model", "max_tokens": 8, "scope": "file", "policy": "lenient", "reuse": "fast"}
    request = ApplyRequest(original=changed.encode(), edit=EDIT.format(6), path="area.py", trace=True, **options)
    result = Applier(lambda: merger).apply(request)
    check_sums(result)
    assert result.usage.reused_approximate > 50
    assert result.trace is not None
    reused = "".join(run.text for run in result.trace[0].prompt if run.kind == "reused")
    assert "def area_4(width, height)" in reused
    assert "area_of_one" not in reused


def test_readings_that_were_scored_and_regions_asked_anew_are_in_it(merger: ModelMerger) -> None:
    edit = "# ... existing code ...\n\n\ndef area_9(width, height):\n    return 9\n"
    options: dict[str, Any] = {"decide": "score", "max_tokens": 16, "policy": "lenient", "trace": True}
    progress = Following()
    request = ApplyRequest(original=FILE.encode(), edit=edit, path="area.py", mode="model", **options)
    result = Applier(lambda: merger).apply(request, progress=progress)
    check_sums(result)
    assert result.trace is not None
    purposes = [answer.purpose for answer in result.trace]
    assert {"score"} <= set(purposes)
    assert "".join(piece.text for piece in progress.pieces) == "".join(
        run.text for answer in result.trace for run in answer.output if answer.purpose == "write"
    )


def test_several_files_are_in_one_trace(merger: ModelMerger) -> None:
    texts = {"a.py": FILE.encode(), "b.py": FILE.encode()}
    patch = "".join(
        f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-    # {number} € per metre\n+    # {number} dollars a metre\n"
        for path, number in (("a.py", 1), ("b.py", 2))
    )
    request = PatchRequest(patch, max_tokens=8, policy="lenient", trace=True, mode="model")
    result = Applier(lambda: merger).apply_patch(request, texts.get)
    check_sums(result)
    assert result.trace is not None
    requests = [
        ApplyRequest(FILE.encode(), EDIT.format(1), path, mode="model", max_tokens=4, trace=True) for path in texts
    ]
    each = Applier(lambda: merger).apply_each(requests)
    check_sums(each)
    assert each.trace is not None
    assert {answer.path for answer in each.trace} == set(texts)


def test_nobody_who_does_not_ask_gets_a_trace(merger: ModelMerger) -> None:
    assert applied(merger, 1, trace=False).trace is None
    certain = applied(merger, 1, mode="auto")
    assert certain.file.method == "deterministic"
    assert certain.trace == ()


def test_a_trace_survives_the_way_over_http(merger: ModelMerger) -> None:
    body = {"original": FILE, "edit": EDIT.format(4), "path": "area.py", "mode": "model", "max_tokens": 8}
    with serving(merger) as url:
        plain = httpx.post(f"{url}/apply", json=body | {"policy": "lenient"}, timeout=300).json()
        answer = httpx.post(f"{url}/apply", json=body | {"policy": "lenient", "trace": True}, timeout=300).json()
    assert plain["trace"] is None
    result = result_from_json(answer)
    check_sums(result)
    assert json.loads(json.dumps(result_to_json(result))) == answer
