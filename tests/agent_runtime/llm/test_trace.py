"""The trace of a real model's work adds up to `usage`. SmolLM2, float32."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.generate import make_follower, split_prompt
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.request_context import NO_PROGRESS, Piece, ProgressListener
from agent_runtime.serialization import result_from_json, result_to_json
from agent_runtime.types import AnswerTrace, ApplyRequest, ApplyResult, PatchRequest
from engine.engine_config import EngineConfig
from engine.request import StopFinder
from engine.types import GenerationRequest, GenerationResult, GenerationStep, GenerationUsage
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


# AnswerText: the pieces add up to the whole answer, and no token is lost or counted twice.


TABLE = [
    "a",
    "b\n",
    "€".encode()[:1],
    "€".encode()[1:],
    "🦎".encode()[:3],
    "🦎".encode()[3:],
    "é=€",
    "</",
    "x>",
    "",
    "<|end|>",
]
TOKEN_BYTES = [each if isinstance(each, bytes) else each.encode() for each in TABLE] + [b"\xff", b"\xe2\x82", b"x</x>y"]
END = TABLE.index("<|end|>")


@dataclass
class Told(ProgressListener):
    """Keeps what it is told."""

    wants_text = True

    pieces: list[Piece] = field(default_factory=list)
    traces: list[AnswerTrace] = field(default_factory=list)

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        assert region == 3
        assert pieces
        self.pieces += pieces

    def on_answer(self, trace: AnswerTrace) -> None:
        self.traces.append(trace)


def followed(
    passes: Sequence[tuple[Sequence[int], int]], **options: object
) -> tuple[Told, GenerationResult, list[int]]:
    """An answer whose passes confirm these tokens, of which so many first ones were drafted."""
    request = GenerationRequest([0, 1], 100, stop_ids=frozenset({END}), stop=(b"</x>",), **options)  # type: ignore[arg-type]
    stops = StopFinder(TOKEN_BYTES, request.stop_ids, request.stop)
    told, output = Told(), list[int]()
    follow = make_follower(told, TOKEN_BYTES, "a.py")
    assert follow is not None
    text = follow(request, 3)
    for number, (token_ids, num_accepted) in enumerate(passes):
        taken = []
        for token_id in token_ids:
            taken.append(token_id)
            if stops.push(token_id):
                break
        output += taken
        is_last = stops.stopped or number == len(passes) - 1
        num_accepted = min(num_accepted, len(taken))
        text.add_step(GenerationStep(tuple(taken), stops.release(finished=is_last), (), num_accepted, num_accepted))
        if is_last:
            break
    result = GenerationResult(tuple(output), bytes(stops.text), "stop", GenerationUsage(prompt=2, cached=1))
    text.finish(result)
    return told, result, output


Passes = st.lists(
    st.lists(st.integers(0, len(TOKEN_BYTES) - 1), max_size=6).flatmap(
        lambda ids: st.tuples(st.just(ids), st.integers(0, len(ids)))
    ),
    min_size=1,
    max_size=8,
)


@given(passes=Passes)
def test_pieces_are_the_answer_and_runs_have_every_token(passes: list[tuple[list[int], int]]) -> None:
    told, result, output = followed(passes)
    whole = result.text.decode("utf-8", "replace")
    assert "".join(piece.text for piece in told.pieces) == whole
    assert all(piece.text for piece in told.pieces)
    (trace,) = told.traces
    assert (trace.path, trace.region, trace.purpose) == ("a.py", 3, "write")
    assert "".join(run.text for run in trace.output) == whole
    assert sum(run.tokens for run in trace.output) == len(output) == sum(each.tokens for each in trace.forwards)
    for number, forward in enumerate(trace.forwards):
        of_pass = [run for run in trace.output if run.pass_number == number]
        assert sum(run.tokens for run in of_pass) == forward.tokens
        assert sum(run.tokens for run in of_pass if run.origin == "copied") == forward.accepted
        assert [run.origin for run in of_pass] in (["copied", "generated"], ["copied"], ["generated"], [])
    for origin in ("copied", "generated"):
        assert "".join(piece.text for piece in told.pieces if piece.origin == origin) == "".join(
            run.text for run in trace.output if run.origin == origin
        )


def test_a_character_of_several_tokens_is_one_piece_and_belongs_to_the_token_that_ends_it() -> None:
    told, _, _ = followed([([0, 2], 2), ([3, 1], 0)])
    assert told.pieces == [Piece("a", "copied"), Piece("€", "generated"), Piece("b\n", "generated")]
    assert [(run.text, run.tokens) for run in told.traces[0].output] == [("a", 2), ("€b\n", 2)]


def test_what_ends_an_answer_counts_and_has_no_text() -> None:
    told, _, output = followed([([0, 7], 2), ([8, 0], 1)])
    assert [TOKEN_BYTES[token_id] for token_id in output] == [b"a", b"</", b"x>"]
    assert [(run.text, run.tokens, run.origin) for run in told.traces[0].output] == [
        ("a", 2, "copied"),
        ("", 1, "copied"),
    ]
    told, _, _ = followed([([0, len(TOKEN_BYTES) - 1], 0)])
    assert told.pieces == [Piece("a", "generated"), Piece("x", "generated")], "the stop string begins within the token"


def test_what_is_scored_is_in_the_trace_and_was_not_written() -> None:
    told, _, _ = followed([([0, 1], 0)], forced_ids=[0, 1])
    assert told.pieces == []
    (trace,) = told.traces
    assert trace.purpose == "score"
    assert [(run.text, run.origin) for run in trace.output] == [("ab\n", "scored")]


def test_nobody_is_told_who_does_not_want_it() -> None:
    assert make_follower(NO_PROGRESS, TOKEN_BYTES, "a.py") is None


@given(
    ids=st.lists(st.integers(0, len(TOKEN_BYTES) - 1), min_size=1, max_size=30),
    borders=st.lists(st.integers(0, 30), min_size=7, max_size=7),
)
def test_a_prompt_is_covered_by_runs_of_one_fate_each(ids: list[int], borders: list[int]) -> None:
    cached, *reused = sorted(min(border, len(ids)) for border in borders)
    ranges = [(first, end) for first, end in zip(reused[::2], reused[1::2], strict=True) if first < end]
    usage = GenerationUsage(prompt=len(ids), cached=cached, reused_at=tuple(ranges))
    runs = split_prompt(ids, usage, TOKEN_BYTES)
    slow = ["cached" if at < cached else "recomputed" for at in range(len(ids))]
    for first, end in ranges:
        slow[first:end] = ["reused"] * (end - first)
    assert [kind for run in runs for kind in [run.kind] * run.tokens] == slow
    assert "".join(run.text for run in runs) == b"".join(TOKEN_BYTES[each] for each in ids).decode("utf-8", "replace")
    assert all(run.tokens for run in runs)


@pytest.mark.parametrize("text", ["€", "🦎"])
def test_a_character_that_two_runs_of_a_prompt_share_stands_in_the_second(text: str) -> None:
    first, second = [number for number, data in enumerate(TOKEN_BYTES) if data and data in text.encode()][:2]
    runs = split_prompt([first, second], GenerationUsage(prompt=2, cached=1), TOKEN_BYTES)
    assert [run.text for run in runs] == ["", text]
