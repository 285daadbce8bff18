"""Text of tokens as it becomes certain: the same as of the whole answer, and no token is lost or counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.llm.generate import make_follower, split_prompt
from agent_runtime.request_context import NO_PROGRESS, Piece, ProgressListener
from agent_runtime.types import AnswerTrace
from engine.stop_strings import StopFinder
from engine.types import GenerationRequest, GenerationResult, GenerationStep, GenerationUsage

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
