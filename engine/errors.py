"""What the engine refuses, and what it reports of a request that it could not finish.

EngineError
├── DeviceError             there is no such device on this machine
├── WeightsError            a model file that cannot be read, or is of an architecture that is not supported
├── RequestError            a generation request that cannot be served (too long, bad sampling values)
│   └── DoesNotFit          the prompt, or prompt and answer, are longer than the context or the KV pool
├── QueueFull               too many requests wait already; try again later
└── GenerationFailed        a request that was taken and could not be finished; the others go on
    ├── Cancelled           its caller took it back
    ├── DeadlineExceeded    its time was over before its output was
    ├── NumericFault        its logits were not numbers
    ├── EngineFault         the pass over its tokens raised (out of memory, a fault of the engine)
    └── EngineClosed        the engine was closed while it ran, or before it came
"""

from __future__ import annotations


class EngineError(Exception):
    """The root of what the engine raises."""


class DeviceError(EngineError):
    """The device that was asked for cannot be had; the message says what to do."""


class WeightsError(EngineError):
    """The model's files are damaged, incomplete or of an unsupported kind; the message says which and what to do."""


class RequestError(EngineError):
    """The request does not fit this engine."""


class DoesNotFit(RequestError):
    """The request needs more tokens than the context or the KV pool holds."""


class QueueFull(EngineError):
    """As many requests wait as may; the message says how many."""


class GenerationFailed(EngineError):
    """A request that was taken and not finished."""


class Cancelled(GenerationFailed):
    """The caller took the request back."""

    def __init__(self, message: str = "the request was taken back by its caller") -> None:
        super().__init__(message)


class DeadlineExceeded(GenerationFailed):
    """The request's time was over first."""


class NumericFault(GenerationFailed):
    """The model's scores were not numbers: a damaged model, or an overflow in its dtype.

    `row` is the first such row of the logits that were looked at.
    """

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


class EngineFault(GenerationFailed):
    """The pass over this request's tokens raised; `__cause__` says what."""


class EngineClosed(GenerationFailed):
    """The engine takes no more requests."""
