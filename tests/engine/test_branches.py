"""A draft that forks: the model follows either side, and what it leaves behind is what plain decoding leaves.

Forks of all kinds, in any company, are among the drafters of test_speculation_equivalence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.errors import EngineFault
from engine.kv_cache import page_runs
from engine.types import Draft, DraftBranch, GenerationRequest, SourceUsage
from tests.engine.cores import PROMPT, WINDOW, Collected, alone, drain, make_core, run_one, same, tiny_model
from tests.engine.drafters import Fork, Forking, Oracle
from tests.engine.test_lora import write_adapter
from tests.engine.test_row_observer import likeliest_along
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=60)


class WatchedFork(Fork):
    """Wants to see every row."""

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        return num_drafted

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        self.shown.append((num_output, list(draft_ids), list(likeliest_ids)))


def wrong(token_ids: Sequence[int]) -> list[int]:
    return [(token_id + 1) % VOCAB_SIZE for token_id in token_ids]


def parted(target: Sequence[int], at: int, num_wrong: int, num_right: int) -> Fork:
    """The draft is wrong from `at` on, the branch right."""
    return Fork([*target[:at], *wrong(target[at : at + num_wrong])], at, target[at : at + num_right])


def kv_of(core: EngineCore, request_id: int) -> list[Tensor]:
    """Keys and values, by layer, of the last tokens that are in both the pool and the window."""
    end, table = core._live[request_id][0].num_computed, core.pages.page_table(request_id)
    runs = page_runs(table, core.pages.page_size, end - WINDOW + 1, end)
    pool = core._pool
    return [torch.cat([part[first:last] for first, last in runs]) for part in (*pool.keys, *pool.values)]


SHAPES = [(0, 1, 1), (0, 1, 12), (3, 9, 3), (3, 2, 20), (10, 1, 5), (5, 30, 5)]
"""Where it forks, tokens of the draft behind that, and of the branch: more of either, and places that overlap."""


@pytest.mark.parametrize("adapter", [None, "a"])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize(("at", "num_wrong", "num_right"), SHAPES)
def test_the_kv_behind_a_branch_is_that_of_plain_decoding(
    tmp_path: Path, at: int, num_wrong: int, num_right: int, windowed: bool, adapter: str | None
) -> None:
    model = tiny_model(windowed=windowed)
    plain, core = make_core(model=model), make_core(model=model, rows_are_free=True)
    request = replace(REQUEST, adapter=adapter)
    if adapter is not None:
        folder = write_adapter(tmp_path / "a", tiny_parameters(model.config))
        plain.load_adapter("a", folder)
        core.load_adapter("a", folder)
    target = run_one(plain, request)
    plain.reset()
    slow, quick = plain.add(request), core.add(request, parted(target.token_ids, at, num_wrong, num_right))
    collected = Collected()
    collected.take(core.step())
    while plain._live[slow][0].num_computed < core._live[quick][0].num_computed:
        plain.step()
    assert core._live[quick][0].num_computed == len(PROMPT) + at + num_right, "one pass has done it"
    assert core._live[quick][0].token_ids == plain._live[slow][0].token_ids
    for ours, theirs in zip(kv_of(core, quick), kv_of(plain, slow), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert same(drain(core, collected).results[quick], target)
    assert same(
        run_one(core, replace(request, prompt=[*PROMPT, *target.token_ids[:30]], max_new_tokens=30)),
        replace(
            target, token_ids=target.token_ids[30:], text=b"".join(TOKEN_BYTES[each] for each in target.token_ids[30:])
        ),
    ), "and what is cached of it is that, too"


def test_a_fork_that_is_right_spares_a_pass_and_is_counted_by_source() -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    core = make_core(rows_are_free=True)
    usage = run_one(core, replace(REQUEST, max_new_tokens=20), parted(target, 7, 4, 12)).usage
    assert (usage.forwards, usage.drafted, usage.accepted) == (1, 11 + 12, 19)
    assert usage.by_source == {"trunk": SourceUsage(11, 7), "other": SourceUsage(12, 12)} == core.drafted


def test_a_branch_that_is_not_followed_is_counted_as_rejected() -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    fork = Fork(target[:11], 7, wrong(target[7:10]))
    usage = run_one(make_core(rows_are_free=True), replace(REQUEST, max_new_tokens=12), fork).usage
    assert (usage.forwards, usage.drafted, usage.accepted) == (1, 11 + 3, 11)
    assert usage.by_source == {"trunk": SourceUsage(11, 11), "other": SourceUsage(3, 0)}


def test_where_rows_cost_what_they_do_on_a_cpu_an_unlikely_branch_is_not_run() -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    draft = parted(target, 7, 4, 40)
    assert run_one(make_core(), REQUEST, draft).usage.by_source["other"].accepted > 4
    unlikely = replace(draft.propose([], 99), branch=DraftBranch(7, draft.branch, 0.05, "other", 0.001))

    class Unlikely(Fork):
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            return Draft((), ()) if output_ids else unlikely

    assert "other" not in run_one(make_core(), REQUEST, Unlikely((), 0, ())).usage.by_source
    assert "other" in run_one(make_core(rows_are_free=True), REQUEST, Unlikely((), 0, ())).usage.by_source


def test_an_observer_is_shown_the_side_that_was_followed() -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    neither = WatchedFork(wrong(target[:4]), 0, wrong(wrong(target[:3])))
    run_one(make_core(rows_are_free=True), REQUEST, neither)
    assert neither.shown == [(0, neither.trunk, likeliest_along(PROMPT, neither.trunk))]
    for spoilt, expected in (([], 11), (wrong(target[7:8]), 7)):
        branch = [*target[4:7], *spoilt, *target[7 + len(spoilt) : 11]]
        fork = WatchedFork([*target[:4], *wrong(target[4:9])], 4, branch)
        run_one(make_core(rows_are_free=True), REQUEST, fork)
        ((num_output, draft, likeliest),) = fork.shown
        assert (num_output, draft) == (0, [*target[:4], *branch])
        assert likeliest == likeliest_along(PROMPT, draft)
        assert sum(likeliest[place] == draft[place] for place in range(expected)) == expected


def test_a_departure_elsewhere_to_what_the_branch_begins_with_does_not_lead_there() -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    for left_at in (2, 7):
        trunk = [*target[:left_at], *wrong(target[left_at : left_at + 1]), *target[left_at + 1 : 10]]
        fork = Fork(trunk, 4, target[left_at : left_at + 5])
        result = run_one(make_core(rows_are_free=True), REQUEST, fork)
        assert result.token_ids == target
        assert result.usage.by_source == {"trunk": SourceUsage(10, left_at), "other": SourceUsage(5, 0)}


@pytest.mark.parametrize("where", ["branch", "branch not followed", "trunk"])
def test_numbers_that_are_none_on_either_side_are_nobodys_business(where: str) -> None:
    parameters = tiny_parameters(tiny_config())
    target = alone(tiny_model(), REQUEST).token_ids
    poison = next(each for each in range(VOCAB_SIZE) if each not in {*PROMPT, *target})
    parameters.embedding[poison] = torch.nan
    core = make_core(model=Decoder(parameters), rows_are_free=True)
    fork = {
        "branch": Fork([*target[:4], *wrong(target[4:9])], 4, [target[4], poison, poison]),
        "branch not followed": Fork(target[:9], 4, [poison, *target[5:9]]),
        "trunk": Fork([*target[:4], poison, target[5]], 4, target[4:9]),
    }[where]
    result = run_one(core, REQUEST, fork)
    assert result.token_ids == target
    assert result.usage.by_source.keys() <= {"trunk", "other"}
    assert run_one(core, REQUEST).token_ids == target


def test_a_pass_that_raises_for_a_branch_fails_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    target = alone(tiny_model(), REQUEST)
    poison = next(each for each in range(VOCAB_SIZE) if each not in {*PROMPT, *target.token_ids})
    core = make_core(rows_are_free=True)
    real = core.model.forward_batch
    monkeypatch.setattr(
        core.model,
        "forward_batch",
        lambda batch, kv: real(batch, kv) if poison not in batch.token_ids.tolist() else 1 / 0,
    )
    ids = [
        core.add(REQUEST, drafter)
        for drafter in (parted(target.token_ids, 5, 5, 9), Fork(target.token_ids[:9], 3, [poison]), Oracle(()))
    ]
    collected = drain(core)
    assert same(collected.results[ids[0]], target)
    assert same(collected.results[ids[2]], target)
    assert isinstance(collected.errors[ids[1]], EngineFault)


def test_an_output_that_ends_within_a_branch_ends_there() -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    stop_at = next(place for place in range(6, 40) if target[place] not in target[:place])
    for request in (
        replace(REQUEST, stop_ids=frozenset({target[stop_at]})),
        replace(REQUEST, max_new_tokens=stop_at),
        replace(REQUEST, stop=(TOKEN_BYTES[target[stop_at]],)),
    ):
        core = make_core(rows_are_free=True)
        result = run_one(core, request, parted(target, 4, 3, 50))
        assert same(result, alone(tiny_model(), request))
        assert result.usage.forwards == 1


@pytest.mark.parametrize("fields", [{"at": -1}, {"token_ids": ()}, {"chance": 1.1}, {"hazard": float("nan")}])
def test_a_branch_without_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a branch of"):
        DraftBranch(**({"at": 0, "token_ids": (1,), "chance": 0.5} | fields))  # type: ignore[arg-type]


def test_the_first_tokens_of_a_draft_are_those_of_both_sides() -> None:
    draft = replace(Draft.of([1, 2, 3, 4, 5]), branch=DraftBranch(2, (6, 7, 8, 9), 0.5))
    assert draft.first(9) is draft
    assert draft.first(5).branch == DraftBranch(2, (6, 7, 8), 0.5)
    assert list(draft.first(5).token_ids) == [1, 2, 3, 4, 5]
    assert draft.first(3).branch == DraftBranch(2, (6,), 0.5)
    assert draft.first(2).branch is None
    assert draft.first(0) == Draft((), ()) or not draft.first(0).token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forks_of_all_kinds_are_followed_on_both_sides(temperature: float) -> None:
    """So the tests that are given them have seen both."""
    request = replace(REQUEST, temperature=temperature)
    target = alone(tiny_model(), request)
    core = make_core(rows_are_free=True)
    for seed in range(10):
        assert same(run_one(core, request, Forking(target.token_ids, VOCAB_SIZE, seed)), target)
    assert all(core.drafted[side].accepted > 40 < core.drafted[side].rejected for side in ("trunk", "branch"))
