"""Whether the engine on a device writes what it writes on the CPU, before any of its speeds is told.

Two layers of the model's shape in float32, where the choice between two tokens is no matter of rounding: random weights
make nearly all bfloat16 choices near ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.gpu.shapes import random_parameters
from benchmarks.gpu.stream import write
from engine.config import ModelConfig
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.types import Draft, GenerationRequest, Proposer
from engine.weights import Parameters

NUM_LAYERS, VOCAB_SIZE = 2, 4096
PROMPT_LEN, NUM_NEW = 700, 96
WRONG_EVERY = 7
"""Every so many tokens of the draft are wrong, so that passes end in its middle."""


class Noised:
    """Drafts a text, but for some tokens of it."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self._token_ids = [
            (each + 1) % vocab_size if at % WRONG_EVERY == WRONG_EVERY - 1 else each
            for at, each in enumerate(token_ids)
        ]

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """What comes next of it."""
        return Draft.of(self._token_ids[len(output_ids) :][:max_tokens], hazard=1e-9)


def fault(config: ModelConfig, device: torch.device, seed: int) -> str | None:
    """What the engine does wrong on the device with a model of this shape; None: nothing was found."""
    small = replace(config, num_layers=NUM_LAYERS, vocab_size=min(VOCAB_SIZE, config.vocab_size), max_positions=2048)
    on_cpu = random_parameters(small, torch.float32, torch.device("cpu"), seed)
    on_device = Parameters(small, torch.float32, device)
    on_device.fill(on_cpu.slots().items())
    prompt = torch.randint(small.vocab_size, (PROMPT_LEN,), generator=torch.Generator().manual_seed(seed)).tolist()
    expected = _output(Decoder(on_cpu), prompt, None)
    decoder = Decoder(on_device)
    for name, draft in (("token by token", None), ("with drafts", Noised(expected, small.vocab_size))):
        found = _output(decoder, prompt, draft)
        if found != expected:
            at = next(at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
            return f"{name}, it parts from the CPU's output at token {at} of {NUM_NEW} (seed {seed})"
    return None


def _output(decoder: Decoder, prompt: Sequence[int], proposer: Proposer | None) -> tuple[int, ...]:
    core = EngineCore(decoder, [], EngineConfig(max_seq_len=2048))
    return write(core, GenerationRequest(prompt, NUM_NEW), proposer).token_ids
