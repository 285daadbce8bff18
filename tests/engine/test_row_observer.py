"""A drafter that observes is shown what the model would have written along its draft, as far as it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from engine.decoder import LM_HEAD_ROWS
from engine.errors import EngineFault
from engine.types import Draft, GenerationRequest
from tests.engine.cores import PROMPT, alone, drain, make_core, run_one, same, tiny_model
from tests.engine.drafters import Oracle
from tests.engine.tiny import VOCAB_SIZE


@dataclass
class Watching:
    """Proposes `guess` at the beginning, nothing later, and keeps what it is shown."""

    guess: Sequence[int]
    num_wanted: int
    shown: list[tuple[int, list[int], list[int]]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.of([] if output_ids else self.guess[:max_tokens], hazard=1e-6)

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        self.asked.append((num_accepted, num_drafted))
        return self.num_wanted

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        self.shown.append((num_output, list(draft_ids), list(likeliest_ids)))


def likeliest_along(prompt: Sequence[int], draft: Sequence[int]) -> list[int]:
    model = tiny_model()
    hidden = model.forward(torch.tensor([*prompt, *draft]), model.new_caches(1, len(prompt) + len(draft)))
    return [int(row.argmax()) for row in model.logits(hidden[len(prompt) - 1 :])]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_wanted", [0, 40, 70, 999])
@pytest.mark.parametrize("num_right", [3, 100])
def test_an_observer_sees_the_likeliest_token_of_every_row_it_wants(
    num_right: int, num_wanted: int, temperature: float
) -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=180, temperature=temperature)
    target = alone(tiny_model(), request)
    guess = [*target.token_ids[:num_right], *((each + 1) % VOCAB_SIZE for each in target.token_ids[num_right:150])]
    watching = Watching(guess, num_wanted)
    assert same(run_one(make_core(), request, watching), target)
    ((num_output, draft, likeliest),) = watching.shown
    assert (num_output, draft) == (0, guess)
    assert likeliest == likeliest_along(PROMPT, draft)[: len(likeliest)]
    least = min(num_right + 1 + num_wanted, 151)
    assert least <= len(likeliest) < least + LM_HEAD_ROWS
    assert set(watching.asked) == {(num_right, 150)}


def test_what_is_no_number_behind_a_departure_is_not_shown_and_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    real = core.model.logits
    spoilt = [0]

    def spoil(hidden: torch.Tensor) -> torch.Tensor:
        logits = real(hidden).clone()
        if len(logits) > 20:
            logits[15:] = torch.nan
            spoilt[0] += 1
        return logits

    monkeypatch.setattr(core.model, "logits", spoil)
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=40, temperature=1.0)
    target = alone(tiny_model(), request)
    wrong = [(each + 1) % VOCAB_SIZE for each in target.token_ids]
    watching = Watching([*target.token_ids[:5], *wrong[5:30]], 999)
    assert same(run_one(core, request, watching), target)
    assert spoilt == [1]
    assert watching.shown == []


def test_an_observer_that_raises_fails_its_own_request_only() -> None:
    class Broken(Watching):
        def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
            raise ZeroDivisionError

    class BrokenRule(Watching):
        def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
            raise ZeroDivisionError

    core = make_core()
    good = GenerationRequest(prompt=PROMPT, max_new_tokens=9)
    target = alone(tiny_model(), good)
    ids = [
        core.add(good, drafter)
        for drafter in (Oracle(target.token_ids), Broken([1, 2], 0), None, BrokenRule([1, 2], 5))
    ]
    collected = drain(core)
    assert same(collected.results[ids[0]], target)
    assert same(collected.results[ids[2]], target)
    for each in (ids[1], ids[3]):
        assert isinstance(collected.errors[each], EngineFault)
        assert isinstance(collected.errors[each].__cause__, ZeroDivisionError)
