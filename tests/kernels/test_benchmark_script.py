"""A scripted model on the kernels' passes, in Triton's interpreter: they accept what the text accepts.

`TRITON_INTERPRET=1 pytest -m interpreted tests/kernels`
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.gpu.edits import Unforked
from benchmarks.gpu.engine import ScriptedDecoder, draw_ids, write
from engine.runner.cuda_runner import runs_by_kernels
from engine.types import Draft, GenerationRequest
from kernels.op import is_interpreting
from tests.engine.cores import make_core
from tests.engine.tiny import VOCAB_SIZE, tiny_decoder

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"),
]

TEXT = draw_ids(24, VOCAB_SIZE, 5)
WRONG = (0, 9, 10)


class Misremembering:
    """Drafts the text, but for some tokens of it."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        text = [(each + 1) % VOCAB_SIZE if at in WRONG else each for at, each in enumerate(TEXT)]
        return Draft.of(text[len(output_ids) :][:max_tokens], hazard=1e-6)


def test_the_kernels_passes_accept_what_the_text_does() -> None:
    script = ScriptedDecoder(tiny_decoder(num_layers=1, head_dim=16))
    script.follow(TEXT)
    core = make_core(model=script, rows_are_free=True)
    assert runs_by_kernels(script, core.config)
    written = write(core, GenerationRequest([3, 4, 5, 6], len(TEXT)), Unforked(Misremembering()), script)
    assert written.token_ids == tuple(TEXT)
    assert written.passes == [(23, 0), (22, 8), (13, 0), (12, 12)]  # each pass gives one more than it accepts
