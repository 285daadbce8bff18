"""The values of one apply: what is asked, what is answered. The JSON of `shapes.py` is made from these."""

from agent_runtime.types.certainty import CERTAINTIES, UNSEEN, Certainty, is_as_sure, least_sure, surest
from agent_runtime.types.reasons import Reading, Reason
from agent_runtime.types.requests import (
    DECIDE,
    SENT_OPTIONS,
    ApplyRequest,
    Decide,
    Draft,
    Mode,
    Options,
    PatchRequest,
    Reader,
    ReuseName,
    ScopeName,
    min_certainty_of,
)
from agent_runtime.types.results import (
    Action,
    ApplyResult,
    FileResult,
    GivenScope,
    Method,
    ScoredReading,
    Status,
)
from agent_runtime.types.trace import AnswerTrace, ForwardTrace, Origin, OutputRun, PromptKind, PromptRun
from agent_runtime.types.usage import SourceUsage, Usage, total_usage

__all__ = [
    "CERTAINTIES",
    "DECIDE",
    "SENT_OPTIONS",
    "UNSEEN",
    "Action",
    "AnswerTrace",
    "ApplyRequest",
    "ApplyResult",
    "Certainty",
    "Decide",
    "Draft",
    "FileResult",
    "ForwardTrace",
    "GivenScope",
    "Method",
    "Mode",
    "Options",
    "Origin",
    "OutputRun",
    "PatchRequest",
    "PromptKind",
    "PromptRun",
    "Reader",
    "Reading",
    "Reason",
    "ReuseName",
    "ScopeName",
    "ScoredReading",
    "SourceUsage",
    "Status",
    "Usage",
    "is_as_sure",
    "least_sure",
    "min_certainty_of",
    "surest",
    "total_usage",
]
