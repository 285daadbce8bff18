"""The engine's exceptions.

EngineError
├── DeviceError             this machine has no such device
├── DeviceLost              the card answers nothing any more; only a new process can use it
│   └── RankLost            another rank of the model is gone
├── WeightsError            a model file cannot be read, or its architecture is not supported
│   └── NotEnoughMemory     its weights do not fit into memory
├── RequestError            a request that cannot be served (too long, invalid sampling values)
│   └── DoesNotFit          the prompt, or prompt and answer, exceed the context or the KV pool
├── QueueFull               too many requests are waiting; try again later
└── GenerationFailed        an accepted request could not be finished; the others go on
    ├── Cancelled           its caller cancelled it
    ├── DeadlineExceeded    its deadline passed before its output ended
    ├── NumericFault        its logits were not numbers
    ├── EngineFault         the pass over its tokens raised (out of memory, a fault of the engine)
    └── EngineClosed        the engine was closed while it ran, or before it came
"""

from __future__ import annotations


class EngineError(Exception):
    """The base of the engine's exceptions."""


class DeviceError(EngineError):
    """The requested device is not available; the message says what to do."""


class DeviceLost(EngineError):
    """The card's context is dead: after an illegal access or an assert on the card every later call of it fails."""


class RankLost(DeviceLost):
    """Another rank of the model has ended, or cannot be reached: no pass can be run any more."""


class WeightsError(EngineError):
    """The model's files are damaged, incomplete or of an unsupported kind; the message says which and what to do."""


class NotEnoughMemory(WeightsError):
    """The model's weights do not fit into memory; the message says how much they take."""


class RequestError(EngineError):
    """The request cannot be served by this engine."""


class DoesNotFit(RequestError):
    """The request needs more tokens than the context or the KV pool holds."""


class QueueFull(EngineError):
    """The queue of waiting requests is full; the message says how many wait."""


class GenerationFailed(EngineError):
    """An accepted request was not finished."""


class Cancelled(GenerationFailed):
    """The caller cancelled the request."""

    def __init__(self, message: str = "the request was taken back by its caller") -> None:
        super().__init__(message)


class DeadlineExceeded(GenerationFailed):
    """The request's deadline passed."""


class NumericFault(GenerationFailed):
    """The model's logits were not numbers: a damaged model, or an overflow in its dtype.

    `row` is the first such row of the logits that were read.
    """

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


class EngineFault(GenerationFailed):
    """The pass over this request's tokens raised; `__cause__` is the exception."""


class EngineClosed(GenerationFailed):
    """The engine accepts no more requests."""
