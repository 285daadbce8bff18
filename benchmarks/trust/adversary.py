"""Judge edits that were made to break the rules, and time slow inputs.

The verdicts are those of the cases' own program (`../shared/data/adversary/run_cases.py`).
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from agent_runtime.apply.pipeline import Applier
from agent_runtime.certainty import Certainty
from agent_runtime.errors import HunkError
from agent_runtime.types import ApplyRequest
from benchmarks.harness import refuse_model
from benchmarks.slow_inputs import SlowInput

GENERATED = "generated.jsonl"
FILES = ("cases.jsonl", GENERATED)
CERTAINTIES: tuple[Certainty, ...] = ("certain", "model")
MAX_SECONDS = 20.0
"""Of the processor, for one input: the bounds are far below."""

RIGHT = ("right", "refused-right", "noop-right")
WRONG = ("WRONG", "NOOP-WRONG", "CRASH")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case of a file; `expects` is "text", "refuse" or "noop", `least` the `min_certainty`."""

    file: str
    least: Certainty
    name: str
    expects: str
    verdict: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Slow:
    """The processor time of one input, from its bytes to the answer."""

    name: str
    seconds: float
    num_bytes: int
    outcome: str


def judge_cases(folder: Path, limit: int | None, seed: int) -> Iterator[Verdict]:
    """Send every case of the folder's files, once as certain and once as less sure answers are taken, too.

    Of the generated ones at most `limit`, drawn by the seed.
    """
    for file in FILES:
        path = folder / file
        lines = [line for line in path.read_text("utf-8").split("\n") if line] if path.is_file() else []
        if limit is not None and file == GENERATED:
            lines = Random(seed).sample(lines, min(limit, len(lines)))
        yield from (_judge_case(file, json.loads(line), least) for least in CERTAINTIES for line in lines)


def count_verdicts(found: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return how often each verdict was given, a row for each file, certainty, and all that is expected in it."""
    groups: dict[str, Counter[str]] = {}
    for one in found:
        groups.setdefault(f"{one.file} {one.expects}, {one.least}", Counter())[one.verdict] += 1
    return [{"kind": "adversary", "name": name, "cases": some.total(), **some} for name, some in groups.items()]


class _TooSlow(BaseException):
    """Raised in an input that takes too long; a BaseException, so that the measured code does not catch it."""


def time_inputs(inputs: Iterable[SlowInput]) -> Iterator[Slow]:
    """Apply each input once by rule; one that takes more than `MAX_SECONDS` is stopped."""

    def stop(*_: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    try:
        for one in inputs:
            request = ApplyRequest(one.original, one.edit, one.path, format=one.format, mode="deterministic")
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
            try:
                outcome = _answer(request)[0]
            except _TooSlow:
                outcome = "stopped"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            spent = time.process_time() - started
            yield Slow(one.name, round(spent, 3), len(one.original) + len(one.edit), outcome)
    finally:
        signal.signal(signal.SIGPROF, before)


def _judge_case(file: str, case: Mapping[str, Any], least: Certainty) -> Verdict:
    original = bytes.fromhex(case["original_hex"]) if "original_hex" in case else case["original"].encode()
    wanted = bytes.fromhex(case["expected_hex"]) if "expected_hex" in case else case["expected"]
    expects = wanted if wanted in ("refuse", "noop") else "text"
    request = ApplyRequest(
        original, case["edit"], case["path"], format=case["format"], mode="deterministic", min_certainty=least
    )
    outcome, data, detail = _answer(request)
    right = wanted.encode() if isinstance(wanted, str) else wanted
    return Verdict(file, least, case["name"], expects, _judge(outcome, data, expects, right), detail)


def _answer(request: ApplyRequest) -> tuple[str, bytes, str]:
    """Return the outcome of a request ("refused", "CRASH", or the answer's status), the file, and the reason."""
    try:
        result = Applier(refuse_model).apply(request)
    except HunkError as fault:
        return "refused", b"", str(fault)
    except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
        return "CRASH", b"", repr(fault)
    return result.status, result.file.data, ", ".join(check.name for check in result.file.checks if not check.ok)


def _judge(outcome: str, data: bytes, expects: str, right: bytes) -> str:
    if outcome == "CRASH":
        return outcome
    if outcome in ("refused", "rejected"):
        return "refused-right" if expects == "refuse" else outcome
    if outcome == "noop":
        return "noop-right" if expects == "noop" else "NOOP-WRONG"
    if expects != "text":
        return "WRONG"
    if data == right:
        return "right"
    return "blanks-differ" if _list_solid(data) == _list_solid(right) else "WRONG"


def _list_solid(data: bytes) -> list[bytes]:
    return [line.rstrip() for line in data.split(b"\n") if line.strip()]
