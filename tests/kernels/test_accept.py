"""Top tokens, sampled tokens and accepted drafts are those of the naive version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.sampling import draw
from kernels import parity
from kernels.accept import (
    OP,
    AcceptOutput,
    Draws,
    TopTokens,
    accept,
    count_accepted,
    find_top_tokens,
    find_top_tokens_by_tile,
    naive_accept,
)
from tests.kernels.devices import CPU, ON_EACH
from tests.kernels.naive import naive_count_accepted, naive_top_tokens

# On a CPU.


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def check_same(actual: TopTokens, expected: TopTokens) -> None:
    """Which rows are numbers, and the ids and runners-up of those."""
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    numbers = ~np.isnan(expected.largest)
    assert np.array_equal(actual.largest, expected.largest, equal_nan=True), again
    assert np.array_equal(actual.token_ids[numbers], expected.token_ids[numbers]), again
    assert np.array_equal(actual.second[numbers], expected.second[numbers]), again
    assert actual.largest.dtype == actual.second.dtype == np.float32


values = st.one_of(
    st.integers(-3, 3).map(float), st.sampled_from([0.0, -0.0, float("-inf"), float("inf"), 1e-30]), st.floats(-60, 60)
)


@given(st.data(), st.integers(1, 4), st.sampled_from([1, 2, 7, 15, 16, 32, 48, 64]), st.sampled_from(DTYPES))
def test_the_first_of_the_likeliest_and_the_next_one(
    data: st.DataObject, num_rows: int, vocab_size: int, dtype: torch.dtype
) -> None:
    """Small numbers of few kinds, so that ties are everywhere, zeros with either sign among them."""
    rows = [data.draw(st.lists(values, min_size=vocab_size, max_size=vocab_size)) for _ in range(num_rows)]
    logits = torch.tensor(rows).to(dtype)
    check_same(find_top_tokens(logits), naive_top_tokens(logits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0.0, 30.0, -30.0])
def test_rows_of_a_real_size(dtype: torch.dtype, shift: float) -> None:
    logits = (torch.randn(5, 5008, generator=torch.Generator().manual_seed(0)) * 4 + shift).to(dtype)
    check_same(find_top_tokens(logits), naive_top_tokens(logits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 500, 999])
@pytest.mark.parametrize("bits", ["quiet", "negative"])
def test_a_row_with_a_nan_says_so(dtype: torch.dtype, place: int, bits: str) -> None:
    """A NaN with its sign set is what x86 makes of 0 * inf; its bits are those of a small integer."""
    logits = torch.randn(4, 1008, generator=torch.Generator().manual_seed(0)).to(dtype)
    nan = torch.tensor(float("nan"), dtype=dtype)
    logits[2, place] = nan if bits == "quiet" else torch.copysign(nan, torch.tensor(-1.0, dtype=dtype))
    found = find_top_tokens(logits)
    assert np.isnan(found.largest).tolist() == [False, False, True, False]
    check_same(found, naive_top_tokens(logits))


def test_rows_of_a_wider_tensor_are_read_where_they_lie() -> None:
    for dtype in DTYPES:
        logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
        check_same(find_top_tokens(logits[::2, 5:40]), naive_top_tokens(logits[::2, 5:40]))
        assert torch.equal(logits, torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype))


@given(st.data(), st.sampled_from(DTYPES), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_a_vocabulary_in_tiles_gives_what_all_of_it_gives(
    data: st.DataObject, dtype: torch.dtype, sizes: list[int]
) -> None:
    """Each tile's logits are handed out in the same memory, as an allocator may: none may be kept."""
    rows = [data.draw(st.lists(values, min_size=sum(sizes), max_size=sum(sizes))) for _ in range(3)]
    if data.draw(st.booleans()):
        rows[1][data.draw(st.integers(0, sum(sizes) - 1))] = float("nan")
    logits = torch.tensor(rows).to(dtype)
    memory = torch.empty(3 * max(sizes), dtype=dtype)
    calls: list[int] = []

    def tile(part: Tensor) -> Callable[[Tensor], Tensor]:
        def give(hidden: Tensor) -> Tensor:
            calls.append(len(hidden))
            memory.fill_(99.0)
            return memory[: part.numel()].view(part.shape).copy_(part)

        return give

    found = find_top_tokens_by_tile(torch.zeros(3, 4), [tile(part) for part in logits.split(sizes, dim=1)])
    check_same(found, naive_top_tokens(logits))
    assert calls == [3] * len(sizes)


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_a_draft_is_accepted_up_to_the_first_other_token(chosen: list[int], draft: list[int]) -> None:
    assert count_accepted(np.array(chosen, dtype=np.intp), draft) == naive_count_accepted(chosen, draft)


def test_gaps_say_how_near_a_tie_a_choice_was() -> None:
    assert find_top_tokens(torch.tensor([[1.0, 3.0, 2.5], [2.0, 2.0, 0.0]])).gaps.tolist() == [0.5, 0.0]
    assert find_top_tokens(torch.tensor([[1.0]])).gaps.tolist() == [float("inf")]


def accepted(logits: torch.Tensor, draft: list[int], row_starts: list[int], draws: Draws | None = None) -> AcceptOutput:
    starts = torch.tensor(row_starts, dtype=torch.int32)
    return accept(logits, torch.tensor(draft, dtype=torch.int64), starts, draws).to_host()


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_sequence_confirms_what_its_rows_choose(data: st.DataObject, sizes: list[int]) -> None:
    """Rows of three tokens, so that a draft is often right; sequences without a row confirm nothing."""
    num_rows = sum(sizes)
    ids = st.lists(st.integers(0, 2), min_size=num_rows, max_size=num_rows)
    logits = torch.nn.functional.one_hot(torch.tensor(data.draw(ids), dtype=torch.int64), 3).float()
    draft, starts = data.draw(ids), [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    found = accepted(logits, draft, starts)
    token_ids = logits.argmax(-1).tolist()
    assert found.token_ids.tolist() == found.top_tokens.token_ids.tolist() == token_ids
    assert found.num_accepted.tolist() == [
        naive_count_accepted(token_ids[first:last], draft[first:last]) for first, last in pairwise(starts)
    ]


def test_a_row_that_is_no_number_confirms_nothing() -> None:
    for bad in (float("nan"), float("inf")):
        logits = torch.tensor([[0.0, 1.0], [bad, 0.0], [0.0, 1.0]])
        found = accepted(logits, [1, 0, 1], [0, 3])
        assert found.num_accepted.tolist() == [1]
        assert np.array_equal(found.top_tokens.largest, [1.0, bad, 1.0], equal_nan=True)


def test_the_runner_up_and_the_logits_come_along() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found, expected = accepted(logits, [-1, -1, -1], [0, 1, 2, 3]), find_top_tokens(logits)
    assert np.array_equal(found.top_tokens.largest, expected.largest)
    assert np.array_equal(found.top_tokens.second, expected.second)
    assert found.num_accepted.tolist() == [0, 0, 0]


def test_a_row_draws_where_its_temperature_is_not_0() -> None:
    """Weights 1, e and 1 of 4.72: the borders are at 0.212 and 0.788."""
    logits = torch.tensor([0.0, 1.0, 0.0]).expand(6, 3)
    numbers = torch.tensor([0.0, 0.21, 0.22, 0.78, 0.79, 0.999], dtype=torch.float64)
    draws = Draws(torch.ones(6), numbers)
    found = accepted(logits, [0, 0, 1, 1, 1, -1], [0, 2, 6], draws)
    assert found.token_ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.top_tokens.token_ids.tolist() == [1] * 6
    assert found.num_accepted.tolist() == [2, 2]
    cold = Draws(torch.tensor([0.0, 0.0, 1e-40, 1.0, 0.0, 1.0]), numbers)
    assert accepted(logits, [-1] * 6, [0, 6], cold).token_ids.tolist() == [1, 1, 1, 1, 1, 2]


# The Triton kernels: ties, NaNs, borders of parts and chunks, draws.


BORDER = 2.0**-19
"""How near to a border, as a share of all weights, rounding may decide. A card takes exp(x) as a power of 2, whose
exponent is rounded: by 2^-24 of it, which is 10 for what weighs much here; the power itself is good to 2^-22.
"""

on_each_device = pytest.mark.parametrize("device", ON_EACH, ids=["interpreter", "cuda"])


def variant(parts: int, block: int = 128) -> Mapping[str, int]:
    return {"PARTS": parts, "BLOCK": block, "LOADS_AHEAD": 1, "num_warps": 4, "num_stages": 1}


def found_in_parts(logits: Tensor, parts: int) -> TopTokens:
    inputs = {"logits": logits, "draft": None, "row_starts": None, "draws": None}
    return OP.run_kernels(inputs, variant(parts)).to_host().top_tokens


def a_few_values(num_rows: int, vocab_size: int, generator: torch.Generator) -> Tensor:
    """Of few kinds, so that ties are everywhere: between lanes, turns and parts, zeros with either sign among them."""
    kinds = torch.tensor([-torch.inf, -2.0, -1.0, -0.0, 0.0, 1e-30, 3.0])
    most = torch.randint(1, len(kinds) + 1, (num_rows, 1), generator=generator)
    return kinds[torch.randint(0, 1000, (num_rows, vocab_size), generator=generator) % most]


@on_each_device
@pytest.mark.parametrize(("vocab_size", "parts"), [(1, 1), (2, 4), (127, 1), (128, 2), (129, 2), (300, 1), (517, 4)])
def test_the_kernel_finds_the_first_of_the_likeliest_and_the_next_one(
    device: torch.device, vocab_size: int, parts: int, generator: torch.Generator
) -> None:
    for dtype in DTYPES:
        logits = a_few_values(6, vocab_size, generator).to(dtype)
        check_same(found_in_parts(logits.to(device), parts), naive_top_tokens(logits))


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_says_which_rows_have_a_nan(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """In the first, a middle and the last part, and twice; a NaN may have its sign set. The id stays one of the row."""
    logits = a_few_values(6, 400, generator).to(dtype)
    for row, place in ((0, 0), (1, 399), (2, 150), (4, 3), (4, 300), (4, 301)):
        logits[row, place] = torch.copysign(torch.tensor(torch.nan), torch.tensor(float(row) - 1)).to(dtype)
    found = found_in_parts(logits.to(device), 4)
    assert np.isnan(found.largest).tolist() == [True, True, True, False, True, False]
    assert found.token_ids.min() >= 0
    assert found.token_ids.max() < 400
    check_same(found, naive_top_tokens(logits))


@on_each_device
def test_the_kernel_reads_rows_of_a_wider_tensor_where_they_lie(
    device: torch.device, generator: torch.Generator
) -> None:
    logits = torch.full((12, 50), torch.nan)
    logits[::2, 5:40] = a_few_values(6, 35, generator)
    check_same(find_top_tokens(logits.to(device)[::2, 5:40]), naive_top_tokens(logits[::2, 5:40]))
    assert len(find_top_tokens(torch.zeros(0, 7, device=device)).token_ids) == 0


def check_accepted(actual: AcceptOutput, expected: tuple[Tensor, ...]) -> None:
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    for got, wanted in zip(actual.to_host().split_columns(), expected, strict=True):
        assert torch.equal(got.to(wanted.dtype), wanted), again


@on_each_device
@pytest.mark.parametrize("rows_at_once", [2, 64])
def test_each_sequence_confirms_up_to_its_first_other_token(
    device: torch.device, rows_at_once: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    """Sequences of no row, of one, and of more than a program merges at once; one is confirmed to its last row."""
    monkeypatch.setattr("kernels.accept.kernel.MAX_TILE_PARTS", 2 * rows_at_once)
    sizes = [0, 1, 5, 4, 0, 7, 2]
    starts = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)
    logits = torch.randint(0, 50, (sum(sizes), 70), generator=generator).float()
    draft = logits.argmax(dim=-1)
    draft[[0, 5, 8, 14]] += 1  # the first, the last, a middle one; the sequence of 4 departs in its third
    logits[12, 3], draft[12] = torch.inf, 3  # which is nothing that could be confirmed
    there = {"logits": logits.to(device), "draft": draft.to(device), "row_starts": starts.to(device), "draws": None}
    actual = OP.run_kernels(there, variant(2))
    check_accepted(actual, naive_accept(logits, draft, starts, None))
    assert actual.to_host().num_accepted.tolist() == [0, 0, 4, 2, 0, 2, 2]


@on_each_device
def test_what_lies_behind_the_last_sequence_changes_nothing(device: torch.device, generator: torch.Generator) -> None:
    """As rows do that fill up a captured graph."""
    logits = a_few_values(5, 40, generator)
    logits[3:] = torch.nan
    draft, starts = torch.zeros(5, dtype=torch.int64), torch.tensor([0, 3, 3], dtype=torch.int32)
    actual = accept(logits.to(device), draft.to(device), starts.to(device)).to_host()
    expected = accept(logits[:3].to(device), draft[:3].to(device), starts.to(device)).to_host()
    check_same(actual.top_tokens.select_rows(0, 3), expected.top_tokens)
    assert actual.num_accepted.tolist() == expected.num_accepted.tolist()


def drawn(logits: Tensor, temperatures: Tensor, numbers: Tensor, parts: int = 2) -> list[int]:
    num_rows, device = len(logits), logits.device
    inputs = {
        "logits": logits,
        "draft": torch.zeros(num_rows, dtype=torch.int64, device=device),
        "row_starts": torch.tensor([0, num_rows], dtype=torch.int32, device=device),
        "draws": Draws(temperatures.to(device), numbers.to(device)),
    }
    return [int(each) for each in OP.run_kernels(inputs, variant(parts)).to_host().token_ids]


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_are_those_of_the_engine_but_for_rounding(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Numbers as a stream has them. Two tokens differ only where the number is on a border of both, up to rounding."""
    vocab_size = 4500 if device == CPU else 151936
    logits = (torch.randn(8, vocab_size, generator=generator) * 3).to(dtype)
    temperatures = 0.3 + torch.rand(8, generator=generator)
    numbers = torch.rand(8, generator=generator, dtype=torch.float64)
    for row, actual in enumerate(drawn(logits.to(device), temperatures, numbers)):
        scores = logits[row].float().numpy()
        weights = np.exp((scores - scores.max()) / temperatures[row].numpy())
        expected = draw(weights, float(numbers[row]))
        first, last = sorted((actual, expected))
        between = weights[first + 1 : last].sum(dtype=np.float64)
        borders = weights.cumsum(dtype=np.float64) / weights.sum(dtype=np.float64)
        nearest = abs(borders[[first, last - 1]] - float(numbers[row])).max() if first != last else 0.0
        assert max(between / weights.sum(), nearest) <= BORDER, f"{actual} {expected}, seed {parity.get_run_seed()}"


@on_each_device
def test_a_number_on_a_border_draws_what_stands_behind_it(device: torch.device) -> None:
    """All weigh 1, so that every sum is exact and rounding excuses nothing: borders of tokens, blocks and chunks."""
    vocab_size = 4096
    places = [0, 1, 511, 512, 2047, 2048, 2049, 4095]
    numbers = torch.tensor(places, dtype=torch.float64) / vocab_size
    logits, hot = torch.zeros(len(places), vocab_size), torch.ones(len(places))
    assert drawn(logits.to(device), hot, numbers) == places
    assert [draw(np.ones(vocab_size, dtype=np.float32), number) for number in numbers.tolist()] == places
    assert drawn(logits.to(device), hot, numbers - 2.0**-53) == [0, *(place - 1 for place in places[1:])]


@on_each_device
def test_a_token_without_weight_is_never_drawn(device: torch.device) -> None:
    """Numbers at either end, and the likeliest alone between; a chunk of 2,048 may have no weight at all."""
    logits = torch.full((4, 6000), -torch.inf)
    logits[:, 2500], logits[:, 2600] = 1.0, 1.0
    numbers = torch.tensor([0.0, 0.4999, 0.5, 1.0 - 2.0**-53], dtype=torch.float64)
    assert drawn(logits.to(device), torch.ones(4), numbers) == [2500, 2500, 2600, 2600]


@on_each_device
def test_rounding_at_the_border_of_a_chunk_draws_nothing_without_weight(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in another order end before or behind a border: numbers on borders of chunks, and next to 1.

    The seed is one of which the interpreter's sums do both.
    """
    monkeypatch.setattr("kernels.accept.kernel.CHUNK", 16)
    logits = torch.randn(12, 16, generator=torch.Generator().manual_seed(109)) * 6
    logits[:, :4] = logits[:, 14:] = -torch.inf
    weights = np.exp(logits.numpy() - logits.numpy().max()).astype(np.float64)
    numbers = torch.from_numpy(np.append((weights.sum(axis=1).cumsum() / weights.sum())[7:-1], 1.0 - 2.0**-53))
    rows = logits.view(1, -1).expand(len(numbers), -1).contiguous()
    found = torch.tensor(drawn(rows.to(device), torch.ones(len(numbers)), numbers))
    assert (found < rows.shape[1]).all()
    assert rows.gather(1, found[:, None]).isfinite().all()


@on_each_device
def test_rows_draw_alone_and_only_where_they_can(device: torch.device, generator: torch.Generator) -> None:
    """The same whatever stands beside and however a row is cut; at temperature 0 and where there is no finite logit,
    the likeliest.
    """
    logits = torch.randn(5, 3000, generator=generator)
    logits[3, 7] = torch.inf
    logits[4, 9] = torch.nan
    temperatures = torch.tensor([0.7, 0.0, 1.3, 1.0, 1.0])
    numbers = torch.rand(5, generator=generator, dtype=torch.float64)
    there = logits.to(device)
    together = drawn(there, temperatures, numbers)
    assert drawn(there, temperatures, numbers, parts=8)[:4] == together[:4]
    for row in (0, 2):
        alone = slice(row, row + 1)
        assert drawn(there[alone], temperatures[alone], numbers[alone], parts=1) == [together[row]]
    assert together[1] == int(logits[1].argmax())
    assert together[3] == 7
    assert 0 <= together[4] < 3000


@on_each_device
def test_the_drawn_token_is_compared_with_the_draft(device: torch.device) -> None:
    logits = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]], device=device)
    numbers = torch.tensor([0.999, 0.5, 0.5], dtype=torch.float64, device=device)
    draft, starts = torch.tensor([1, 0, 0], device=device), torch.tensor([0, 3], dtype=torch.int32, device=device)
    found = accept(logits, draft, starts, Draws(torch.ones(3, device=device), numbers)).to_host()
    assert found.token_ids.tolist() == [1, 0, 1]
    assert found.top_tokens.token_ids.tolist() == [0, 0, 1]
    assert found.num_accepted.tolist() == [2]


@on_each_device
def test_the_op_is_right_in_other_variants(device: torch.device) -> None:
    """As `test_parity` is of the default one: more parts than a short vocabulary fills, loads ahead."""
    other = {"PARTS": 8, "BLOCK": 512, "LOADS_AHEAD": 2, "num_warps": 8, "num_stages": 1}
    for shape in OP.parity_shapes[1:3]:
        parity.assert_equal(OP, shape, torch.float16, device, other)
