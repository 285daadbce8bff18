"""How a prompt's and an answer's tokens came about, run by run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PromptKind = Literal["cached", "reused", "recomputed"]
"""Whether a prompt's tokens took exact KV, took KV of other prompts approximately, or were run."""

Origin = Literal["copied", "generated", "scored"]
"""How output tokens came about: the draft had them and the model confirmed them, the model wrote them itself, or they
belong to a reading that it was given to say how likely it is."""


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Neighbouring tokens of a prompt with the same fate. A character that two runs share stands in the second."""

    text: str
    kind: PromptKind
    tokens: int


@dataclass(frozen=True, slots=True)
class OutputRun:
    """Neighbouring tokens of an answer that one pass (from 0) confirmed and that came about in the same way.

    Tokens that end the answer, such as its closing tag, count and have no text.
    """

    text: str
    origin: Origin
    pass_number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ForwardTrace:
    """One pass: the tokens of the answer that it confirmed, and the draft tokens that were put before the model."""

    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """One question to the model and its answer, token by token: their counts add up to those of `Usage`.

    region: which of the file's regions it is about, from 0. purpose: the model writes the region, or scores a reading
    of it, of which `output` then is the part that tells it from the others.
    """

    path: str
    region: int
    purpose: Literal["write", "score"]
    prompt: tuple[PromptRun, ...]
    output: tuple[OutputRun, ...]
    forwards: tuple[ForwardTrace, ...]
