"""The benchmark's checks in Triton's interpreter: a wrong kernel gets no speed; a scripted model writes its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.gpu.card import Call, Ceilings, Timing
from benchmarks.gpu.engine import ScriptedDecoder, draw_ids, write
from benchmarks.gpu.ops import measure_op
from engine.runner.cuda_runner import can_run_kernels
from engine.types import Draft, GenerationRequest
from kernels.op import OP_NAMES, load_op
from tests.engine.cores import make_core
from tests.engine.tiny import VOCAB_SIZE, tiny_decoder
from tests.kernels.devices import CPU, INTERPRETED

pytestmark = INTERPRETED

CEILINGS = Ceilings("a card", 1e12, 1e12)


class NoTimer:
    """Runs nothing and finds every call equally quick."""

    def time(self, calls: Sequence[Call]) -> Timing:
        assert calls
        return Timing((1e-6,))


@pytest.fixture(autouse=True)
def _traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer is compiled whole, or it would be slower than it can be; here it is traced, which takes no compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))


@pytest.mark.parametrize("name", OP_NAMES)
@pytest.mark.filterwarnings("ignore:.*flex_attention.*:UserWarning")
def test_torchs_ways_give_what_the_kernel_gives(name: str) -> None:
    op = load_op(name)
    shape = min(op.parity_shapes, key=lambda each: (not each.get("adds", 1), op.cost(each, torch.float32).num_flops))
    found = measure_op(op, shape, torch.float32, CPU, CEILINGS, NoTimer())
    assert [way.why for way in found.ways] == [""] * len(found.ways)
    assert found.own is not None
    assert found.peer is not None


@pytest.mark.parametrize("name", OP_NAMES)
def test_a_kernel_whose_rows_are_off_by_one_has_no_speed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op: Any = load_op(name)
    shape = max(op.parity_shapes[:3], key=lambda each: op.cost(each, torch.float32).num_bytes)
    real: Callable[..., tuple[torch.Tensor, ...]] = op.run

    def off_by_one(inputs: Any, variant: Any = None) -> tuple[torch.Tensor, ...]:
        return tuple(output.roll(1, -1) for output in real(inputs, variant))

    monkeypatch.setattr(op, "run", off_by_one)
    found = measure_op(op, shape, torch.float32, CPU, CEILINGS, NoTimer())
    assert [way.timing for way in found.ways] == [None] * len(found.ways)
    assert all("no speed is shown" in way.why for way in found.ways)


TEXT = draw_ids(24, VOCAB_SIZE, 5)
WRONG = (0, 9, 10)


class Misremembering:
    """Drafts the text, but for some tokens of it."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        text = [(each + 1) % VOCAB_SIZE if at in WRONG else each for at, each in enumerate(TEXT)]
        return Draft.from_tokens(text[len(output_ids) :][:max_tokens], hazard=1e-6)


def test_the_kernels_passes_accept_what_the_text_does() -> None:
    script = ScriptedDecoder(tiny_decoder(num_layers=1, head_dim=16))
    script.follow(TEXT)
    core = make_core(model=script, rows_are_free=True)
    assert can_run_kernels(script, core.config)
    written = write(core, GenerationRequest([3, 4, 5, 6], len(TEXT)), Misremembering(), script)
    assert written.token_ids == tuple(TEXT)
    assert written.passes == [(23, 0), (22, 8), (13, 0), (12, 12)]  # each pass gives one more than it accepts
