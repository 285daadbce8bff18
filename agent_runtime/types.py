"""What is asked of one apply: the edit, its file or files, and how it is merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from agent_runtime.types.certainty import UNSEEN, Certainty
from editor.types import FormatName, Policy

Mode = Literal["auto", "deterministic", "model"]
"""Who decides.

`auto`: rules, and the model on a lazy snippet that no rule decides. `deterministic`: rules only. `model`: the model, on
all edits; in no other mode does it decide where an edit of another format than `lazy` belongs.
"""

Draft = Literal["copy", "none"]
"""`copy` drafts the answer from the file and the edit; `none` decodes a token a pass, for comparison."""

ScopeName = Literal["auto", "file"]
"""How much of a file the model is given: the regions that the edit can touch, or all of it."""

Decide = Literal["auto", "generate", "score"]
"""What the model does with the rules' readings of an edit that no rule decides.

`score` takes the one that it would write, and writes the merge where it is in doubt; `generate` writes in any case;
`auto` is `score`, but `generate` where the mode asks for the model only.
"""

DECIDE: Decide = "auto"
"""What happens where a request does not say."""

ReuseName = Literal["exact", "balanced", "fast", "turbo"]
"""How much of what was computed for earlier edits a prompt may take (docs/reuse.md).

`exact`: its longest known beginning, so that the answer is that of a model that has seen nothing before. `fast` and
`turbo`: unchanged parts of the file behind a change, too, which is approximate. `balanced` is for sessions.
"""

Reader = Callable[[str], bytes | None]
"""Gives the bytes of a file that an edit names, None where there is none; raises BadFile where it may not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an edit is read and merged, whatever it is an edit of."""

    format: FormatName | Literal["auto"] = "auto"
    instruction: str = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    draft: Draft = "copy"
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    reuse: ReuseName | None = None
    """None: what the service was started with; in this process `exact`."""
    trace: bool = False
    """Whether the answer tells token by token what the model read and wrote."""
    salt: str = ""
    """What is computed for one salt is taken for no other: one a tenant. Whoever serves an edit chooses it, nobody
    who sends one does."""
    min_certainty: Certainty | None = None
    """What is less sure is refused. None: `model`, so nothing is, but see `min_certainty_of` where a service writes."""
    root: str = ""
    """The folder, resolved, in which `path` names the file; "" where none is known. Chosen like the salt."""

    @property
    def least_certainty(self) -> Certainty:
        """What an answer has to be at least."""
        return self.min_certainty or "model"

    def options(self) -> dict[str, Any]:
        """All options by name."""
        return {option.name: getattr(self, option.name) for option in fields(Options)}

    def sent_options(self) -> dict[str, Any]:
        """Those that a service takes from a request."""
        return {name: value for name, value in self.options().items() if name in SENT_OPTIONS}


def min_certainty_of(asked: Certainty | None, mode: Mode, *, write: bool) -> Certainty | None:
    """Return the `min_certainty` of a request to a service: what was asked for, else `UNSEEN` for what it writes.

    The mode `model` asks for a model by its name, so that nothing is refused for it.
    """
    return UNSEEN if asked is None and write and mode != "model" else asked


SENT_OPTIONS = tuple(option.name for option in fields(Options) if option.name not in ("salt", "root"))


@dataclass(frozen=True, slots=True)
class ApplyRequest(Options):
    """One edit of one file. `original` is the file's bytes; `path` is its name, which tells the language.

    `prediction` is what the sender expects the whole file to be after the edit: the model confirms it where it is
    right, and it changes no answer where it is wrong. Rules do without it.
    """

    original: bytes
    edit: str
    path: str = ""
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class PatchRequest(Options):
    """One edit that names its files itself, as V4A patches, diffs and SEARCH blocks below file names do."""

    edit: str
