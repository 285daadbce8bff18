"""The engine on a card gives what it gives on the CPU. Needs CUDA: `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.types import GenerationRequest
from engine.weights import Parameters
from tests.engine.cores import drain
from tests.engine.tiny import MISTRAL, QWEN3, TOKEN_BYTES, tiny_config, tiny_parameters

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("family", [{}, QWEN3, MISTRAL | {"sliding_window": 9}])
def test_the_card_gives_what_the_cpu_gives(family: dict[str, object]) -> None:
    config = tiny_config(**family)
    on_cpu = tiny_parameters(config)
    on_card = Parameters(config, torch.float32, "cuda")
    on_card.fill(on_cpu.slots().items())
    texts = []
    for parameters in (on_cpu, on_card):
        core = EngineCore(Decoder(parameters), TOKEN_BYTES, EngineConfig(max_seq_len=200, check_integrity=True))
        for number in range(5):
            temperature = 0.7 if number % 2 else 0.0
            core.add(GenerationRequest(prompt=[3, 4, number] * 5, max_new_tokens=20, temperature=temperature))
        results = drain(core).results
        texts.append([results[each].token_ids for each in sorted(results)])
    assert texts[0] == texts[1]
