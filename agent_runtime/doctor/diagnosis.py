"""Diagnoses two prompts or a recorded session: the first difference, its cause and its cost."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol

from agent_runtime.doctor.causes import Cause, find_causes
from agent_runtime.doctor.transcripts import PromptText, RecordedSession, render_prompt
from agent_runtime.errors import BadRequest
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, find_copy, resolve
from engine.types import count_common_prefix

BYTES_PER_TOKEN = 3.4
"""Average of Qwen2.5-Coder's tokenizer on recorded agent sessions; assumed without a tokenizer."""

RUN = 8
"""Shortest run of equal tokens whose KV is reused (`engine.reuse.plan.FEWEST_TOKENS`)."""

_PIECE = re.compile(r"\w+|\s+|[^\w\s]+")


class Encoder(Protocol):
    """Encodes text as token ids."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, none of them a control token."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """Token counts of the second prompt.

    num_kept: before the first token that differs. num_same: after it, in runs of at least `RUN` tokens that the first
    prompt also contains, at any position. estimated: from bytes.
    """

    num_tokens: int
    num_kept: int
    num_same: int
    estimated: bool


def count_tokens(first: str, second: str, position: int, encoder: Encoder | None) -> Counts:
    """Count the tokens of the second prompt; `position` is the first character that differs."""
    if encoder is not None:
        one, other = encoder.encode(first), encoder.encode(second)
        num_kept = count_common_prefix(one, other)
        found = sum(length for _, length in find_runs(one, other, num_kept))
        return Counts(len(other), num_kept, found, estimated=False)
    kept, rest = _estimate_tokens(second[:position]), second[position:]
    pieces = _PIECE.findall(rest)
    same = sum(
        len("".join(pieces[start : start + length]).encode("utf-8", "replace"))
        for start, length in find_runs(_PIECE.findall(first), pieces, 0)
    )
    return Counts(kept + _estimate_tokens(rest), kept, round(same / BYTES_PER_TOKEN), estimated=True)


def find_runs(first: Sequence[Hashable], second: Sequence[Hashable], start: int) -> list[tuple[int, int]]:
    """Find runs of at least `RUN` items of `second` from `start` on that `first` also has: positions and lengths."""
    positions = {
        tuple(first[position : position + RUN]): position for position in reversed(range(len(first) - RUN + 1))
    }
    found = []
    while start + RUN <= len(second):
        position = positions.get(tuple(second[start : start + RUN]))
        if position is None:
            start += 1
            continue
        length = RUN
        while (
            start + length < len(second)
            and position + length < len(first)
            and second[start + length] == first[position + length]
        ):
            length += 1
        found.append((start, length))
        start += length
    return found


def _estimate_tokens(text: str) -> int:
    return round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


MOST_LATER = 5
"""Maximum changes after the first that are reported: they break the prefix once the first is fixed."""

EXCERPT = 60
"""Characters that are shown on each side of the position."""

SpeedFrom = Literal["given", "measured", "assumed"]


@dataclass(frozen=True, slots=True)
class Speed:
    """Prefill speed, and where the number comes from."""

    tokens_per_s: float
    source: SpeedFrom


ASSUMED_SPEED = Speed(1000.0, "assumed")
"""About the speed of the 0.5B model on two cores with AMX, or of a 7B model on a small GPU."""


@dataclass(frozen=True, slots=True)
class BreakPosition:
    """The first difference: `byte` and `token` from 0 (token None if estimated), `line` and `column` from 1.

    part: the name of the part of the second prompt, where parts are known.
    """

    byte: int
    line: int
    column: int
    token: int | None
    part: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a line of a prompt; `mark` is the character in it that is the position."""

    text: str
    mark: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The comparison of two prompts.

    status: `same`: they are equal; `continued`: the second begins with all of the first; `broken`: it does not. The
    fields from `position` on are set where it is broken. later: causes after the first, with their lines in the second
    prompt.
    """

    status: Literal["same", "continued", "broken"]
    counts: Counts
    speed: Speed
    position: BreakPosition | None = None
    cause: Cause | None = None
    before: Excerpt | None = None
    after: Excerpt | None = None
    later: tuple[tuple[int, Cause], ...] = ()

    @property
    def num_recomputed(self) -> int:
        """Tokens of the second prompt that are computed with a prefix cache."""
        return self.counts.num_tokens - self.counts.num_kept

    @property
    def seconds(self) -> float:
        """The time to compute them."""
        return self.num_recomputed / self.speed.tokens_per_s

    def to_json(self) -> Mapping[str, Any]:
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
        if self.position is not None and self.cause is not None and self.before is not None and self.after is not None:
            answer["break"] = asdict(self.position)
            answer["cause"] = {**asdict(self.cause), "advice": self.cause.advice}
            answer["first"], answer["second"] = asdict(self.before), asdict(self.after)
            answer["later"] = [{"line": line, "kind": cause.kind, "what": cause.what} for line, cause in self.later]
        return answer


def diagnose(
    first: PromptText, second: PromptText, encoder: Encoder | None = None, speed: Speed = ASSUMED_SPEED
) -> Diagnosis:
    """Compare two successive prompts; without an encoder tokens are estimated."""
    at = count_common_characters(first.text, second.text)
    counts = count_tokens(first.text, second.text, at, encoder)
    if at == len(first.text):
        return Diagnosis("same" if at == len(second.text) else "continued", counts, speed)
    (_, cause), *later = find_causes(first, second, 1 + MOST_LATER)
    part = second.find_part(at)
    position = BreakPosition(
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
        position,
        cause,
        _cut_excerpt(first.text, at),
        _cut_excerpt(second.text, at),
        tuple((second.text.count("\n", 0, change.second_start) + 1, other) for change, other in later),
    )


def count_common_characters(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # slices are compared at memory speed
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut_excerpt(text: str, at: int) -> Excerpt:
    start = max(text.rfind("\n", 0, at) + 1, at - EXCERPT)
    end = text.find("\n", at)
    return Excerpt(text[start : min(end if end >= 0 else len(text), at + EXCERPT)], at - start)


@dataclass(frozen=True, slots=True)
class BrokenTurn:
    """A turn, counted from 1, whose prompt does not begin with the prompt of the turn before."""

    number: int
    diagnosis: Diagnosis


def diagnose_turn(
    session: RecordedSession, number: int, encoder: Encoder | None = None, speed: Speed = ASSUMED_SPEED
) -> Diagnosis:
    """Compare a turn, counted from 1, with the one before; raises BadRequest where there are no such turns."""
    if not 2 <= number <= len(session.turns):
        what = f"the turns 2 to {len(session.turns)} can be compared with the one before them"
        if len(session.turns) < 2:
            what = "a session of two turns is needed"
        raise BadRequest(f"{session.name} has {len(session.turns)} turns, so there is no turn {number}: {what}")
    before, now = (render_prompt(session.turns[each]) for each in (number - 2, number - 1))
    return diagnose(before, now, encoder, speed)


def find_broken_turns(
    session: RecordedSession, encoder: Encoder | None = None, speed: Speed = ASSUMED_SPEED
) -> Iterator[BrokenTurn]:
    """Yield the turns that break the prefix of the turn before, in order."""
    before = None
    for number, turn in enumerate(session.turns, start=1):
        now = render_prompt(turn)
        if before is not None and not now.text.startswith(before.text):
            yield BrokenTurn(number, diagnose(before, now, encoder, speed))
        before = now


def count_causes(turns: list[BrokenTurn]) -> dict[str, int]:
    """Count the broken turns of each kind of cause, most first."""
    kinds = Counter(each.diagnosis.cause.kind for each in turns if each.diagnosis.cause is not None)
    return dict(kinds.most_common())


def find_fingerprint(weights: Path, precision: str, cache_dir: Path, compute: Callable[[], str]) -> str:
    """Return the fingerprint of a folder's weights in a precision, in hex: from the cache, or computed."""
    stats = [(each.name, each.stat()) for each in sorted(weights.iterdir()) if each.is_file()]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    key = blake2b(f"{weights.resolve()} {files} {precision}".encode(), digest_size=16).hexdigest()
    path = cache_dir / "fingerprints" / key
    with contextlib.suppress(OSError, ValueError):
        if kept := bytes.fromhex(path.read_text(encoding="ascii")):
            return kept.hex()
    fingerprint = compute()
    with contextlib.suppress(OSError):  # it only saves time
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fingerprint, encoding="ascii")
    return fingerprint


ROWS = 1024
"""Tokens of the prefill step whose time is looked up."""


def find_measured_speed(name_or_path: str, settings: ModelSettings) -> Speed | None:
    """Find the speed of a model in the default precision; None where the engine has not measured it on this machine.

    Takes a second or two the first time, as times are stored by the weights' fingerprint. Raises UnknownModel,
    ModelUnavailable.
    """
    folder = settings.cache_dir / "pass-times"
    if not any(folder.glob("*.json")):
        return None
    files = resolve(name_or_path, ModelStore(settings.cache_dir))
    weights = files.path if files.kind == "safetensors" else find_copy(files, settings.cache_dir)
    if weights is None:
        return None
    import torch  # a slow import

    from engine.device import describe_build
    from engine.errors import WeightsError
    from engine.precision import choose_precision, compute_fingerprint, load_or_measure_products
    from engine.speculation.step_times import StepTimesFile
    from engine.weights import load

    cpu = torch.device("cpu")
    precision = choose_precision("auto", "auto", cpu, lambda: load_or_measure_products(folder))

    def compute() -> str:
        return compute_fingerprint(load(weights, precision.stored), precision).hex()

    try:
        name = find_fingerprint(weights, precision.describe(), settings.cache_dir, compute)
    except WeightsError:
        return None
    times = StepTimesFile(folder, name, describe_build(cpu)).read()
    return None if times is None else Speed(ROWS / times(ROWS), "measured")
