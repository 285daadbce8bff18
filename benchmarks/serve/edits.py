"""Edits of 100-line files for the load: parts of the standard library with a line changed, in several formats."""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError, ModelUnavailable
from agent_runtime.llm.interface import Merger
from agent_runtime.types import ApplyRequest, Mode
from benchmarks.rendering import lazy_snippet, search_replace, udiff

NUM_LINES = 100


@dataclass(frozen=True, slots=True)
class Edit:
    """A file, an edit of it, and the hash of what comes out; "" where a model decides that."""

    original: str
    text: str
    path: str
    sha256: str = ""
    mode: Mode = "deterministic"
    max_tokens: int | None = None

    def request(self) -> ApplyRequest:
        """For this process."""
        return ApplyRequest(self.original.encode(), self.text, self.path, mode=self.mode)

    def body(self) -> str:
        """For the service."""
        fields = {"original": self.original, "edit": self.text, "path": self.path, "mode": self.mode}
        return json.dumps(fields | ({} if self.max_tokens is None else {"max_tokens": self.max_tokens}))


def edits_by_rule(count: int, seed: int) -> list[Edit]:
    """So many edits that rules merge for certain, with what comes out of them in this process."""
    found: list[Edit] = []
    for edit in _candidates(random.Random(seed)):
        try:
            merged = applier().apply(edit.request())
        except HunkError:
            continue
        if merged.status == "merged" and merged.file.confidence is None:  # no reading: by a rule
            found.append(Edit(edit.original, edit.text, edit.path, merged.file.sha256_after))
        if len(found) == count:
            break
    return found


def edits_by_model(by_rule: list[Edit], max_tokens: int = 32) -> list[Edit]:
    """The same for the model, which is stopped soon: the load is its passes, not its answers."""
    return [Edit(edit.original, edit.text, edit.path, mode="model", max_tokens=max_tokens) for edit in by_rule]


def applier() -> Applier:
    """The pipeline in this process, without a model."""
    return Applier(_no_model)


def _no_model() -> Merger:
    raise ModelUnavailable("there is none here")


def _candidates(rng: random.Random) -> Iterator[Edit]:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    while True:
        file = rng.choice(files)
        lines = file.read_text(encoding="utf-8").split("\n")
        if len(lines) <= NUM_LINES:
            continue
        start = rng.randrange(len(lines) - NUM_LINES)
        before = lines[start : start + NUM_LINES]
        at = rng.randrange(10, NUM_LINES - 10)
        if not before[at].strip() or before[at].rstrip().endswith(("\\", '"""')):
            continue
        after = [*before[:at], before[at] + "  # changed", *before[at + 1 :]]
        old, new = "\n".join(before) + "\n", "\n".join(after) + "\n"
        written = (
            search_replace(old, new),
            udiff(old, new, file.name),
            lazy_snippet(old, new, "# ... existing code ..."),
        )
        text = rng.choice(written)
        if text:
            yield Edit(old, text, file.name)
