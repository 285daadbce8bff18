"""The engine under soak, and random requests to it: the same seed gives the same requests in the same order."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from benchmarks.engine.workload import read_source_text
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest
from engine.weights import load
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_decoder

TINY = "tiny"


@dataclass(frozen=True)
class Setting:
    """An engine, the text that prompts are cut from, and the mean pause of a caller between two requests."""

    engine: Engine
    text_ids: Sequence[int]
    stop_bytes: tuple[bytes, ...]
    pause_s: float


def setting(model: str) -> Setting:
    """A random model of two layers, or one of the catalogue in float32: equal results are equal to the token."""
    return _tiny() if model == TINY else _real(model)


def _tiny() -> Setting:
    limits = SchedulerConfig(
        max_batched_tokens=48, prefill_beside_decodes=16, max_num_seqs=6, max_waiting=8, aging_s=0.1
    )
    engine = _engine(tiny_decoder(), TOKEN_BYTES, max_seq_len=160, page_size=4, num_pages=60, limits=limits)
    text_ids = [(number * number + number // 7) % VOCAB_SIZE for number in range(5000)]
    return Setting(engine, text_ids, (b"</x>", b"word"), pause_s=0.002)


def _real(name: str) -> Setting:
    from engine.weights.gguf import GGUFModel

    gguf = GGUFModel(resolve(name, ModelStore(ModelSettings.from_env(os.environ).cache_dir)).path)
    tokens, kinds, merges, pre = (
        gguf.metadata(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges", "pre")
    )
    tokenizer = BPETokenizer.from_gguf(GGUFVocabulary(tokens, kinds, merges, pre))
    limits = SchedulerConfig(
        max_batched_tokens=256, prefill_beside_decodes=64, max_num_seqs=6, max_waiting=8, aging_s=5.0
    )
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    decoder = Decoder(load(gguf, torch.float32))
    engine = _engine(decoder, tokenizer.token_bytes(), max_seq_len=768, page_size=16, num_pages=80, limits=limits)
    return Setting(engine, tokenizer.encode(read_source_text()), (b"\n\n\n", b"return"), pause_s=0.5)


def _engine(
    decoder: Decoder,
    token_bytes: Sequence[bytes],
    *,
    max_seq_len: int,
    page_size: int,
    num_pages: int,
    limits: SchedulerConfig,
) -> Engine:
    kv_bytes = num_pages * page_bytes(decoder.config, page_size, decoder.weights.dtype)
    return Engine(decoder, token_bytes, EngineConfig(max_seq_len, kv_bytes, page_size, limits, check_integrity=True))


Ending = Literal["read", "close", "drop", "cancel", "deadline", "refuse", "fault"]
Drafter = Literal["none", "copy", "random", "raising"]

WEIGHTS: dict[Ending, int] = {
    "read": 55,
    "close": 9,
    "drop": 6,
    "cancel": 12,
    "deadline": 8,
    "refuse": 5,
    "fault": 5,
}
"""How often each ending is planned."""

OUTCOMES: dict[Ending, frozenset[str]] = {
    "read": frozenset({"finished"}),
    "close": frozenset({"closed", "finished"}),
    "drop": frozenset({"dropped", "finished"}),
    "cancel": frozenset({"cancelled", "finished"}),
    "deadline": frozenset({"deadline", "finished"}),
    "refuse": frozenset({"refused"}),
    "fault": frozenset({"fault"}),
}
"""What may come of each; `queue_full` may come of all but what is refused for what it is."""

NUM_PREFIXES = 8
CALLS_A_PREFIX = 25
"""Requests after which one of the shared prefixes gives way to a new one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request and its end: after `num_steps` steps of its stream, or `delay_s` seconds (0: at once).

    Its caller waits `pause_s` behind it, or `backoff_s` if it was refused because of the queue.
    """

    request: GenerationRequest
    ending: Ending
    drafter: Drafter
    seed: int
    num_steps: int = 0
    delay_s: float = 0.0
    pause_s: float = 0.0
    backoff_s: float = 0.0


class Traffic:
    """Draws calls; thread-safe. It ends after `most` calls, or with `stop`."""

    def __init__(self, setting: Setting, seed: int, most: int | None = None) -> None:
        self._random = random.Random(seed)
        self._text: Sequence[int] = setting.text_ids
        self._stop_bytes = setting.stop_bytes
        self._pause_s = setting.pause_s
        self._max_seq_len = setting.engine.max_seq_len
        self._prefixes = [self._cut(self._max_seq_len // 2) for _ in range(NUM_PREFIXES)]
        self._lock = threading.Lock()
        self._most = most
        self.num_drawn = 0

    def stop(self) -> None:
        """Draw no more."""
        with self._lock:
            self._most = self.num_drawn

    def draw(self) -> Call | None:
        """The next call, None behind the last."""
        with self._lock:
            if self.num_drawn == self._most:
                return None
            self.num_drawn += 1
            if self.num_drawn % CALLS_A_PREFIX == 0:
                self._prefixes[self._random.randrange(NUM_PREFIXES)] = self._cut(self._max_seq_len // 2)
            return self._call(self._random.choices([*WEIGHTS], [*WEIGHTS.values()])[0])

    def _call(self, ending: Ending) -> Call:
        rng = self._random
        drafter: Drafter = "raising" if ending == "fault" else rng.choice(["none", "none", "copy", "random"])
        return Call(
            self._refused() if ending == "refuse" else self._request(ending),
            ending,
            drafter,
            seed=rng.randrange(1 << 30),
            num_steps=rng.choice([0, 0, 1, 2, 5, 20]),
            delay_s=rng.choice([0.0, rng.expovariate(1 / (10 * self._pause_s))]),
            pause_s=rng.choice([0.0, rng.expovariate(1 / self._pause_s)]),  # half of them come in bursts
            backoff_s=20 * self._pause_s,
        )

    def _request(self, ending: Ending) -> GenerationRequest:
        rng = self._random
        prefix = rng.choice(self._prefixes)
        prompt = prefix[: rng.randint(0, len(prefix))] + self._cut(rng.randint(1, self._max_seq_len // 8))
        options: dict[str, Any] = {"priority": rng.choice([0, 0, 0, -1, 2]), "salt": rng.choice(["", "", "other"])}
        options |= self._sampling() if rng.random() < 0.5 else {}
        if ending == "deadline":
            options["deadline_s"] = rng.expovariate(1 / (20 * self._pause_s)) + 1e-6
        if rng.random() < 0.3:
            options["retain_s"] = rng.uniform(0.0, 20 * self._pause_s)
        if ending == "read" and rng.random() < 0.3:
            options["stop"] = (rng.choice(self._stop_bytes),)
        least = 2 if ending == "fault" else 1  # nothing is drafted for a single token
        return GenerationRequest(tuple(prompt), rng.randint(least, self._max_seq_len // 4), **options)

    def _sampling(self) -> dict[str, Any]:
        rng = self._random
        return {
            "temperature": rng.choice([0.0, 0.7, 1.3]),
            "top_p": rng.choice([1.0, 0.9]),
            "top_k": rng.choice([0, 5, 40]),
            "min_p": rng.choice([0.0, 0.05]),
            "repetition_penalty": rng.choice([1.0, 1.1]),
            "logit_bias": rng.choice([{}, {rng.choice(self._text): -3.0}]),
            "logprobs": rng.choice([None, 0, 3]),
            "seed": rng.randrange(1 << 30),
        }

    def _refused(self) -> GenerationRequest:
        """One token too long for the context, an id that does not exist, or an adapter that is not there."""
        rng, room = self._random, self._max_seq_len
        return rng.choice(
            [
                GenerationRequest(tuple(self._cut(room // 2)), room - room // 2 + 1),
                GenerationRequest((*self._cut(3), 1 << 30), 5),
                GenerationRequest(tuple(self._cut(3)), 5, adapter="none of that name"),
            ]
        )

    def _cut(self, num_tokens: int) -> list[int]:
        start = self._random.randrange(len(self._text) - num_tokens)
        return list(self._text[start : start + num_tokens])
