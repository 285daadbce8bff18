"""The engine as a loop that its user turns: add requests, step until nothing is pending, read what finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.scheduler import Scheduler, SchedulerConfig
from engine.types import GenerationRequest, Output


class Tokenizer(Protocol):
    """What prompts that are text need; ids in, ids out goes without encoding."""

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of a text."""
        ...

    def token_bytes(self) -> Sequence[bytes]:
        """What each token id stands for, by id."""
        ...


class ContinuousBatchingEngine:
    """Up to `max_batch_size` sequences of up to `max_seq_len` tokens at once; a new one joins as soon as one leaves.

    For one thread, without any of its own; `Engine` is the same for many callers. KV memory is for a full batch of full
    sequences, taken at once, so nobody loses it to another.
    """

    def __init__(
        self, model: Decoder, tokenizer: Tokenizer, device: torch.device | str, max_batch_size: int, max_seq_len: int
    ) -> None:
        """Raises ValueError where the model is on another device or a size is below 1, EngineError without memory."""
        wanted, actual = torch.device(device), model.weights.device
        if wanted.type != actual.type or wanted.index not in (None, actual.index):
            raise ValueError(f"the model is on {actual}, not on {wanted}; load it there, or give its device")
        self.tokenizer = tokenizer
        limits = SchedulerConfig(max_num_seqs=max_batch_size, max_batched_tokens=max(1024, max_batch_size))
        config = EngineConfig(max_seq_len, scheduler=limits)
        pages_each = -(-config.max_seq_len // config.page_size)
        kv_bytes = max_batch_size * pages_each * page_bytes(model.config, config.page_size, model.weights.dtype)
        self._core = EngineCore(model, tokenizer.token_bytes(), replace(config, kv_bytes=kv_bytes))

    @property
    def scheduler(self) -> Scheduler:
        """Who waits and who runs: `scheduler.has_pending_work()` says whether a step would do anything."""
        return self._core.scheduler

    def add_request(self, request: GenerationRequest) -> int:
        """Take a request, its prompt token ids or text, and return the id that its result will carry.

        Text is encoded as it is: a chat template is its sender's part. Raises RequestError, DoesNotFit or QueueFull,
        and what the tokenizer raises.
        """
        if isinstance(request.prompt, str):
            request = replace(request, prompt=self.tokenizer.encode(request.prompt))
        return self._core.add(request)

    def cancel(self, request_id: int) -> None:
        """Take a request back in any state; its memory is free at once."""
        self._core.cancel(request_id)

    def step(self) -> list[Output]:
        """One pass of the model over all that run; returns those that it ended, each with its `result` or its `error`.

        Every request of `add_request` that is not taken back is in what exactly one step returns.
        """
        return [output for output in self._core.step() if output.result is not None or output.error is not None]
