"""The whole answer about two prompts: the first byte that differs, what it was, what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent_runtime.doctor.causes import Cause, Change, causes
from agent_runtime.doctor.counting import Counts, Encoder, count
from agent_runtime.doctor.prompt_text import PromptText

MOST_LATER = 5
"""Changes behind the first that are told of: they break the prefix once the first is mended."""

EXCERPT = 60
"""Characters that are shown on each side of the place."""

SpeedFrom = Literal["given", "measured", "assumed"]


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of prefill, and where the number comes from."""

    tokens_per_s: float
    source: SpeedFrom


ASSUMED_SPEED = Speed(1000.0, "assumed")
"""About what the 0.5B model does on two cores with AMX, or a 7B model on a small card."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the prompts part: `byte` and `token` from 0 (token None where it is estimated), the others from 1.

    `part` says of which part of the second prompt, where parts are known.
    """

    byte: int
    line: int
    column: int
    token: int | None
    part: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line of one prompt, cut to what stands near, and the character in it that is the place."""

    text: str
    mark: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`same`: the prompts are equal. `continued`: the second begins with all of the first. `broken`: it does not.

    place, cause, before, after and later are there where it is broken; `later` are causes behind the first, with the
    lines of the second prompt at which they stand.
    """

    status: Literal["same", "continued", "broken"]
    counts: Counts
    speed: Speed
    place: Place | None = None
    cause: Cause | None = None
    before: Excerpt | None = None
    after: Excerpt | None = None
    later: tuple[tuple[int, Cause], ...] = ()

    @property
    def num_recomputed(self) -> int:
        """Tokens of the second prompt that a prefix cache computes."""
        return self.counts.num_tokens - self.counts.num_kept

    @property
    def seconds(self) -> float:
        """What that takes."""
        return self.num_recomputed / self.speed.tokens_per_s

    def as_json(self) -> Mapping[str, Any]:
        """All of it, for programs."""
        counts = self.counts
        answer: dict[str, Any] = {
            "status": self.status,
            "cost": {
                "prompt_tokens": counts.num_tokens,
                "kept_tokens": counts.num_kept,
                "recomputed_tokens": self.num_recomputed,
                "recomputed_share": round(self.num_recomputed / max(1, counts.num_tokens), 4),
                "same_content_tokens": counts.num_same,
                "same_content_share": round(counts.num_same / max(1, self.num_recomputed), 4),
                "estimated": counts.estimated,
                "seconds": round(self.seconds, 3),
                "prefill_tok_s": round(self.speed.tokens_per_s, 1),
                "speed": self.speed.source,
            },
        }
        if self.place is not None and self.cause is not None and self.before is not None and self.after is not None:
            place = self.place
            answer["break"] = {
                "byte": place.byte,
                "line": place.line,
                "column": place.column,
                "token": place.token,
                "part": place.part,
            }
            answer["cause"] = {"kind": self.cause.kind, "what": self.cause.what, "advice": self.cause.advice}
            answer["first"] = {"text": self.before.text, "mark": self.before.mark}
            answer["second"] = {"text": self.after.text, "mark": self.after.mark}
            answer["later"] = [{"line": line, "kind": cause.kind, "what": cause.what} for line, cause in self.later]
        return answer


def diagnose(
    first: PromptText, second: PromptText, encoder: Encoder | None = None, speed: Speed = ASSUMED_SPEED
) -> Diagnosis:
    """Compare two prompts that came one after the other; without an encoder tokens are estimated."""
    at = first_character(first.text, second.text)
    counts = count(first.text, second.text, at, encoder)
    if at == len(first.text):
        return Diagnosis("same" if at == len(second.text) else "continued", counts, speed)
    (_, cause), *later = causes(first, second, 1 + MOST_LATER)
    part = second.part_at(at)
    place = Place(
        byte=len(second.text[:at].encode("utf-8", "surrogatepass")),
        line=second.text.count("\n", 0, at) + 1,
        column=at - (second.text.rfind("\n", 0, at) + 1) + 1,
        token=None if counts.estimated else counts.num_kept,
        part=part.name,
    )
    return Diagnosis(
        "broken",
        counts,
        speed,
        place,
        cause,
        _excerpt(first.text, at),
        _excerpt(second.text, at),
        tuple((_line_of(second, change), other) for change, other in later),
    )


def first_character(first: str, second: str) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # slices are compared at memory speed
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _line_of(prompt: PromptText, change: Change) -> int:
    return prompt.text.count("\n", 0, change.second_start) + 1


def _excerpt(text: str, at: int) -> Excerpt:
    start = max(text.rfind("\n", 0, at) + 1, at - EXCERPT)
    end = text.find("\n", at)
    return Excerpt(text[start : min(end if end >= 0 else len(text), at + EXCERPT)], at - start)
