"""Turns on an engine core that keeps spans, and edits that a prompt can suffer between two."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.reuse import EXACT, Reuse
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest, GenerationResult
from tests.engine.cores import tiny_model
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE

SPAN_BYTES = 1 << 20


def reusing_core(model: Decoder | None = None, **changes: Any) -> EngineCore:
    """A tiny core with room for spans; its books are checked in every step."""
    limits = {key: changes.pop(key) for key in ("max_batched_tokens", "max_num_seqs") if key in changes}
    fields: dict[str, Any] = {
        "max_seq_len": 480,
        "page_size": 4,
        "span_bytes": SPAN_BYTES,
        "check_integrity": True,
        "scheduler": SchedulerConfig(**({"max_num_seqs": 8} | limits)),
    }
    return EngineCore(model or tiny_model(), TOKEN_BYTES, EngineConfig(**(fields | changes)))


def run(core: EngineCore, prompt: Sequence[int], reuse: Reuse = EXACT, **fields: Any) -> GenerationResult:
    """One request alone."""
    number = core.add(GenerationRequest(list(prompt), **({"max_new_tokens": 6, "reuse": reuse} | fields)))
    while True:
        for output in core.step():
            if output.id == number and output.error is not None:
                raise output.error
            if output.id == number and output.result is not None:
                return output.result


def random_ids(random: Random, count: int) -> list[int]:
    return [random.randrange(VOCAB_SIZE) for _ in range(count)]


def edited(random: Random, ids: Sequence[int]) -> list[int]:
    """The prompt with one to three of its runs replaced, deleted, lengthened or moved."""
    new = list(ids)
    for _ in range(random.randint(1, 3)):
        first = random.randrange(len(new))
        end = min(len(new), first + random.randrange(8))
        kind = random.randrange(4)
        cut = new[first:end]
        if kind == 0:
            new[first:end] = random_ids(random, end - first)
        elif kind == 1:
            del new[first:end]
        elif kind == 2:
            new[first:first] = random_ids(random, random.randrange(1, 8))
        else:
            del new[first:end]
            place = random.randrange(len(new) + 1)
            new[place:place] = cut
    return new or random_ids(random, 4)


def random_ends(random: Random, length: int) -> tuple[int, ...]:
    """Where segments of a prompt may end."""
    return tuple(sorted({random.randrange(1, length + 1) for _ in range(6)}))
