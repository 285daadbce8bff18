"""Steps padded to a few shapes and replayed have the rows of the step as it came."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kv_pool import KVPool
from engine.runner.cuda_graphs import (
    NO_SLOT,
    PATIENCE,
    QUERIES,
    ROWS,
    WARM_UPS,
    CUDAGraphs,
    PoolLayout,
    StepShape,
    Work,
    build_arrays,
)
from engine.runner.cuda_runner import KernelRunner
from engine.runner.step_rows import PagedRows
from tests.engine.cores import WINDOW
from tests.engine.runner.kernel_cores import Reruns, kernel_model
from tests.engine.tiny import VOCAB_SIZE


def test_positions_become_slots_page_by_page() -> None:
    rows = PagedRows([0] * 4, [6, 7, 8, 10], [5, 2, 9])
    behind = PagedRows([0], [6], [-1, 2])
    assert rows.seq_len == 11
    for window, hidden in ((None, -1), (3, 7)):
        layout = PoolLayout(4, window, empty_page=7, most_keys=12)
        arrays = build_arrays([rows, behind], StepShape(5, 2, 4), layout)
        assert arrays["slots"].tolist() == [2 * 4 + 2, 2 * 4 + 3, 9 * 4, 9 * 4 + 2, 10]
        assert arrays["page_table"].tolist() == [5, 2, 9, hidden, 2]
        assert arrays["page_starts"].tolist() == [0, 3]


NUM_PAGES, PAGE_SIZE = 40, 4


def filled_pool(family: str) -> KVPool:
    model = kernel_model(family)
    pool = KVPool(model.config, NUM_PAGES, PAGE_SIZE, torch.device("cpu"), torch.float32, 1)
    random = torch.Generator().manual_seed(0)
    for tensor in (*pool.keys, *pool.values):
        tensor[: pool.num_slots].normal_(generator=random)
    return pool


def random_rows(random: Random, pages: list[int]) -> PagedRows:
    """Rows of one sequence, of whose pages some are hidden behind the window."""
    start = random.choice([0, 3, 17])
    positions = list(range(start, start + random.choice([1, 1, 2, 5])))
    if start and random.random() < 0.3:
        positions.insert(0, start - 2)
    ids = [random.randrange(VOCAB_SIZE) for _ in positions]
    table = [pages.pop() for _ in range(8)]
    hidden = max(0, positions[0] + 1 - WINDOW) // PAGE_SIZE
    return PagedRows(ids, positions, [-1] * hidden + table[hidden:] if random.random() < 0.5 else table)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from(["qwen2", "mistral"]))
def test_a_padded_pass_gives_the_rows_of_the_pass_itself(seed: int, num_seqs: int, family: str) -> None:
    """And writes the same KV, twice over the same memory, with another pass between."""
    random, model = Random(seed), kernel_model(family)
    batches = []
    for _ in range(2):
        pages = random.sample(range(NUM_PAGES), NUM_PAGES)
        batches.append([random_rows(random, pages) for _ in range(num_seqs)])
    if family == "qwen2":  # without a window no page is given back
        batches = [[PagedRows(e.token_ids, e.positions, [max(0, p) for p in e.pages]) for e in b] for b in batches]
    plain, padded = filled_pool(family), filled_pool(family)
    ways = KernelRunner(model, plain, None), KernelRunner(model, padded, None, 99, Reruns())
    for batch in [batches[0], batches[1], batches[0]]:
        with torch.inference_mode():
            expected, actual = (way.compute_hidden(batch, at_once=True) for way in ways)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        for own, other in zip((*plain.keys, *plain.values), (*padded.keys, *padded.values), strict=True):
            torch.testing.assert_close(other, own, rtol=1e-5, atol=1e-6)
    assert ways[1].graphs is not None
    assert 1 <= len(ways[1].graphs) <= 2


def shape(num_rows: int, **changes: int) -> StepShape:
    return StepShape(**({"num_rows": num_rows, "num_seqs": 1, "most_queries": num_rows} | changes))


@given(st.integers(1, 600), st.integers(1, 70), st.data())
def test_a_pass_fits_the_shape_that_it_is_padded_to(num_rows: int, num_seqs: int, data: st.DataObject) -> None:
    num_rows = max(num_rows, num_seqs)
    own = StepShape(num_rows, num_seqs, data.draw(st.integers(-(-num_rows // num_seqs), num_rows - num_seqs + 1)))
    padded = own.graph_shape
    if padded is None:
        assert num_rows > ROWS[-1] or (num_seqs > 64 and num_rows > num_seqs)
        return
    for name in ("num_rows", "num_seqs", "most_queries"):
        assert getattr(padded, name) >= getattr(own, name)
    assert padded.most_queries in (1, *QUERIES, padded.num_rows)
    assert (padded.most_queries == 1) == (own.most_queries == 1)
    assert padded.graph_shape == padded, "it is one of few"


def test_sequences_of_padding_have_no_rows_and_its_rows_no_sequence() -> None:
    layout = PoolLayout(PAGE_SIZE, None, empty_page=NUM_PAGES, most_keys=12, has_store=True)
    sequences = [PagedRows([7, 8], [3, 4], range(9)), PagedRows([9], [6], range(9, 18))]
    arrays = build_arrays(sequences, StepShape(8, 4, 8), layout, [5, 6, 7])
    assert arrays["query_starts"].tolist() == [0, 2, 3, 3, 3]
    assert arrays["slots"].tolist() == [3, 4, 9 * 4 + 6, *[NO_SLOT] * 5]
    assert arrays["record_slots"].tolist() == [5, 6, 7, *[NO_SLOT] * 5]
    assert arrays["seq_lens"].tolist() == [5, 7, 0, 0]
    assert arrays["page_table"].tolist() == [0, 1, 9, 10]
    assert arrays["page_starts"].tolist() == [0, 2, 0, 0]
    assert list(arrays)[-1] == "page_table", "it has another size in each pass"


def passes(most: int, capture: Reruns | None = None) -> KernelRunner:
    return KernelRunner(kernel_model(), filled_pool("qwen2"), None, most, capture or Reruns())


def decode(position: int = 3) -> list[PagedRows]:
    return [PagedRows([7], [position], range(NUM_PAGES))]


@torch.inference_mode()
def test_a_shape_is_captured_when_nobody_waits_or_when_it_comes_again_and_again() -> None:
    way = passes(most=2)
    assert way.graphs is not None
    assert not way.graphs.has_work
    first = way.compute_hidden(decode()).clone()
    assert way.graphs.has_work
    assert len(way.graphs) == 0
    way.graphs.capture_next()
    assert not way.graphs.has_work
    assert len(way.graphs) == 1
    torch.testing.assert_close(way.compute_hidden(decode()), first)
    two_rows = [PagedRows([7, 8], [3, 4], range(NUM_PAGES))]
    for number in range(PATIENCE + 1):
        assert len(way.graphs) == 1, number
        way.compute_hidden(two_rows)
    assert len(way.graphs) == 2
    three_rows = [PagedRows([7, 8, 9], [3, 4, 5], range(NUM_PAGES))]
    way.compute_hidden(three_rows)
    assert not way.graphs.has_work, "there are as many as there may be"
    way.compute_hidden(decode())
    for _ in range(PATIENCE):
        way.compute_hidden(three_rows)
    assert len(way.graphs) == 2
    shapes = [(StepShape.from_sequences(each).graph_shape, ()) for each in (decode(), two_rows, three_rows)]
    assert [each in way.graphs._graphs for each in shapes] == [True, False, True], "the one used longest ago went"


@torch.inference_mode()
def test_where_a_capture_fails_passes_run_without(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Reruns):
        def __call__(self, work: Work) -> Work:
            raise RuntimeError("CUDA out of memory")

    way = passes(most=9, capture=Failing())
    assert way.graphs is not None
    expected = way.compute_hidden(decode()).clone()
    way.graphs.capture_next()
    assert not way.graphs.has_work
    torch.testing.assert_close(way.compute_hidden(decode(), at_once=True), expected)
    assert "cannot be captured" in caplog.text


@torch.inference_mode()
def test_a_capture_that_fails_costs_its_own_shape_only() -> None:
    class FailingOnce(Reruns):
        has_failed = False

        def __call__(self, work: Work) -> Work:
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("CUDA out of memory")
            return super().__call__(work)

    way = passes(most=9, capture=FailingOnce())
    assert way.graphs is not None
    two_rows = [PagedRows([7, 8], [3, 4], range(NUM_PAGES))]
    for _ in range(PATIENCE + 2):
        way.compute_hidden(two_rows, at_once=True)
        assert len(way.graphs) == 0, "the shape that failed is not tried again"
    way.compute_hidden(decode(), at_once=True)
    assert len(way.graphs) == 1


@torch.inference_mode()
def test_what_is_captured_is_said(caplog: pytest.LogCaptureFixture) -> None:
    way = passes(most=9)
    with caplog.at_level(logging.INFO):
        way.compute_hidden(decode(), at_once=True)
    assert "1 of at most 9, for 0 MB" in caplog.text


@torch.inference_mode()
def test_a_replay_reads_its_memory_anew_and_answers_where_it_did_before() -> None:
    memory = torch.zeros(3)
    replay = Reruns()(lambda: memory + 1)
    first: Tensor = replay()
    memory.fill_(4)
    assert replay() is first
    assert first.tolist() == [5, 5, 5]


@torch.inference_mode()
def test_one_graph_serves_contexts_of_all_lengths() -> None:
    way, plain = passes(most=9), KernelRunner(kernel_model(), filled_pool("qwen2"), None)
    assert way.graphs is not None
    for position in (3, PAGE_SIZE * NUM_PAGES - 1, 0, 70):
        actual = way.compute_hidden(decode(position), at_once=True)
        torch.testing.assert_close(actual, plain.compute_hidden(decode(position)))
    assert len(way.graphs) == 1


@torch.inference_mode()
def test_what_every_service_comes_to_is_captured_before_the_first_request() -> None:
    way = passes(most=99)
    assert way.graphs is not None
    way.graphs.capture_first(most_seqs=3)
    captured = [each for each, _ in way.graphs._graphs]
    assert captured[0] == StepShape(ROWS[-1], 1, ROWS[-1]), "the largest takes the memory that the others use again"
    assert [each.num_seqs for each in captured if each.most_queries == 1] == [4, 2, 1]
    for rows in (decode(), [PagedRows([7, 8, 9], [3, 4, 5], range(NUM_PAGES))], decode() * 3):
        way.compute_hidden(rows)
    assert not way.graphs.has_work
    assert len(way.graphs) == len(captured) == len(ROWS) - 1 + 3


@torch.inference_mode()
def test_short_drafts_of_many_users_have_a_graph_of_their_own() -> None:
    """Attention chooses its constants by the most rows of one sequence."""
    drafts, prompt = shape(64, num_seqs=16, most_queries=4), shape(64, num_seqs=16, most_queries=40)
    assert (drafts.graph_shape, prompt.graph_shape) == (StepShape(64, 16, 4), StepShape(64, 16, 64))


class FakeCuda:
    """Stands for the names of torch.cuda that a capture uses, and notes what it is asked for."""

    def __init__(self, *, fails: bool = False) -> None:
        self.current: object = "default"
        self.fails = fails
        self.streams: list[object] = []
        self.captures: list[tuple[object, object]] = []

    def Stream(self) -> SimpleNamespace:  # noqa: N802 -- torch's name
        stream = SimpleNamespace(wait_stream=lambda other: None)
        self.streams.append(stream)
        return stream

    def CUDAGraph(self) -> SimpleNamespace:  # noqa: N802 -- torch's name
        return SimpleNamespace(pool=lambda: "the pool", replay=lambda: None)

    def current_stream(self) -> object:
        return SimpleNamespace(wait_stream=lambda other: None) if self.current == "default" else self.current

    def set_stream(self, stream: object) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: object, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        """As torch's: if the capture is invalid, its stream stays the current one."""
        before, self.current = self.current, stream
        self.captures.append((pool, stream))
        yield
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.current = before


def test_all_captures_share_a_stream_and_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is used again by the same stream only."""
    cuda = FakeCuda()
    monkeypatch.setattr("engine.runner.cuda_graphs.torch", SimpleNamespace(cuda=cuda))
    capture, ran = CUDAGraphs(), []
    for number in range(3):
        replay = capture(lambda number=number: ran.append(number))  # type: ignore[misc]
        replay()
    assert ran == [number for number in range(3) for _ in range(WARM_UPS + 1)]
    assert len(cuda.streams) == 1
    assert cuda.captures == [(None, cuda.streams[0]), *[("the pool", cuda.streams[0])] * 2]


def test_after_a_capture_that_failed_work_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(fails=True)
    monkeypatch.setattr("engine.runner.cuda_graphs.torch", SimpleNamespace(cuda=cuda))
    before = cuda.current = cuda.Stream()
    with pytest.raises(RuntimeError, match="previous error"):
        CUDAGraphs()(lambda: torch.zeros(1))
    assert cuda.current is before
