"""What the engine refuses.

EngineError
├── WeightsError      a model file that cannot be read, or is of an architecture that is not supported
└── RequestError      a generation request that cannot be served (too long, bad sampling values)
"""

from __future__ import annotations


class EngineError(Exception):
    """The root of what the engine raises."""


class WeightsError(EngineError):
    """The model's files are damaged, incomplete or of an unsupported kind; the message says which and what to do."""


class RequestError(EngineError):
    """The request does not fit this engine."""
