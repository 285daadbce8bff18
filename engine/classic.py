"""The engine as a loop that its caller drives: add requests, step until nothing is pending, read what finished. And
LoRA adapters that become part of a model's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.errors import WeightsError
from engine.kv_pool import page_bytes
from engine.scheduler import Scheduler, SchedulerConfig
from engine.types import GenerationRequest, Output
from engine.weights.checkpoint import LoraAdapter
from engine.weights.parameters import Parameters


class Tokenizer(Protocol):
    """The tokenizer for prompts that are text; token id prompts need only `token_bytes`."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the token ids of a text."""
        ...

    def token_bytes(self) -> Sequence[bytes]:
        """Return the bytes of each token, by id."""
        ...


class ContinuousBatchingEngine:
    """Runs up to `max_batch_size` sequences of up to `max_seq_len` tokens; a new one joins as soon as one leaves.

    For one thread, without a thread of its own; `Engine` is the same for many callers. The KV memory holds a full batch
    of full sequences and is allocated at the start, so no sequence is preempted.
    """

    def __init__(
        self, model: Decoder, tokenizer: Tokenizer, device: torch.device | str, max_batch_size: int, max_seq_len: int
    ) -> None:
        """Raises ValueError if the model is on another device or a size is below 1, EngineError if memory is short."""
        wanted, actual = torch.device(device), model.weights.device
        if wanted.type != actual.type or wanted.index not in (None, actual.index):
            raise ValueError(f"the model is on {actual}, not on {wanted}; load it there, or give its device")
        self.tokenizer = tokenizer
        limits = SchedulerConfig(max_num_seqs=max_batch_size, max_batched_tokens=max(1024, max_batch_size))
        config = EngineConfig(max_seq_len, scheduler=limits)
        pages_each = -(-config.max_seq_len // config.page_size)
        kv_bytes = max_batch_size * pages_each * page_bytes(model.config, config.page_size, model.weights.kv_dtype)
        self._core = EngineCore(model, tokenizer.token_bytes(), replace(config, kv_bytes=kv_bytes))

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler: `scheduler.has_pending_work()` says whether a step would do anything."""
        return self._core.scheduler

    def add_request(self, request: GenerationRequest) -> int:
        """Add a request, whose prompt is token ids or text, and return the id that its result will carry.

        Text is encoded as it is; the caller applies a chat template. Raises RequestError, DoesNotFit or QueueFull, and
        what the tokenizer raises.
        """
        if isinstance(request.prompt, str):
            request = replace(request, prompt=self.tokenizer.encode(request.prompt))
        return self._core.add(request)

    def cancel(self, request_id: int) -> None:
        """Cancel a request in any state and free its memory."""
        self._core.cancel(request_id)

    def step(self) -> list[Output]:
        """Run one pass over all running sequences and return those that ended, each with its `result` or its `error`.

        Every request that is not cancelled is returned by exactly one step.
        """
        return [output for output in self._core.step() if output.result is not None or output.error is not None]


def merge_lora(model: Parameters, adapter: Path | str) -> Parameters:
    """Add the updates of a LoRA adapter, a PEFT folder, to a model's parameters in place, and return them.

    model: what `engine.weights.load` returns, before a `Decoder` has taken its layers. `Engine.load_adapter` keeps an
    adapter beside the model instead, so that each request has its own. Raises WeightsError if the adapter is damaged or
    belongs to another model, or if a decoder has the layers; then nothing is changed.
    """
    if model.is_taken:
        raise WeightsError("a decoder has taken the layers of these parameters: load them anew, and merge before")
    lora, slots = LoraAdapter(Path(adapter)), model.slots()
    lora.check_fits(slots)
    for name in lora.updates:
        slots[name].copy_(lora.merge(name, slots[name]))
    return model
