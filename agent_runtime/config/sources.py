"""Puts the layers together: default, file, environment, flag; and remembers of every value where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rapidfuzz import process
from rapidfuzz.distance import OSA

from agent_runtime.errors import BadRequest
from agent_runtime.settings import files
from agent_runtime.settings.declaration import SETTINGS, Settings
from agent_runtime.settings.files import ConfigFile
from agent_runtime.settings.setting import PREFIX, Declared

ALIKE = 0.6
"""Of 1: what resembles a setting's name so much is taken for a slip of the pen."""

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from, and the place there: `FILE:LINE`, a variable, a flag."""

    layer: Literal["default", "file", "environment", "flag"]
    place: str = ""

    def __str__(self) -> str:
        return self.place or self.layer


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Chosen:
    """All settings, and of each where its value came from."""

    values: Settings
    origins: Mapping[str, Origin]
    file: ConfigFile

    def flags(self) -> set[str]:
        """The settings that were given as flags."""
        return {name for name, origin in self.origins.items() if origin.layer == "flag"}


def choose(environ: Mapping[str, str], flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Chosen:
    """The settings that hold; `flags` are those given, checked already, and `config` is the file named by `--config`.

    Raises BadRequest, naming the place, where a file or a variable holds what is no setting or no value of one.
    """
    file = files.read(environ, config)
    _refuse_unknown_keys(file)
    _refuse_misspelt_variables(environ)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for each in SETTINGS.values():
        values[each.name], origins[each.name] = _value(each, file, environ, flags or {})
    return Chosen(Settings(**values), origins, file)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that begin as ours do and are no setting."""
    known = {each.variable for each in SETTINGS.values()} | {files.VARIABLE}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _value(
    each: Declared, file: ConfigFile, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[Any, Origin]:
    if each.name in flags:
        return flags[each.name], Origin("flag", each.flag)
    text = environ.get(each.variable)
    if text is not None:
        try:
            return each.kind.from_text(text), Origin("environment", each.variable)
        except ValueError:
            raise _bad(each, each.variable, each.variable, text) from None
    if each.name in file.raw:
        assert file.path is not None
        place = file.place(each.name)
        try:
            return each.kind.from_toml(file.raw[each.name], file.path.parent), Origin("file", place)
        except ValueError:
            raise _bad(each, each.name, f"{place}: {each.name}", file.raw[each.name]) from None
    return each.default, DEFAULT


def _bad(each: Declared, field: str, what: str, value: Any) -> BadRequest:
    shown = "not what it can be" if each.setting.secret else repr(value)
    if len(shown) > SHOWN_CHARACTERS:
        shown = f"{shown[:SHOWN_CHARACTERS]}..."
    return BadRequest(f"{what} is {shown}: give {each.kind.wanted()}", field=field)


def _refuse_unknown_keys(file: ConfigFile) -> None:
    for key in file.raw:
        if key not in SETTINGS:
            near = _nearest(key)
            meant = f"did you mean {near}?" if near else "`hunk config show` lists them"
            raise BadRequest(f"{file.place(key)}: there is no setting {key!r}; {meant}", field=key)


def _refuse_misspelt_variables(environ: Mapping[str, str]) -> None:
    """Others are passed over: they may be another program's."""
    for name in unknown_variables(environ):
        if near := _nearest(name.removeprefix(PREFIX)):
            raise BadRequest(f"the variable {name} is no setting; did you mean {SETTINGS[near].variable}?", field=name)


def _nearest(name: str) -> str | None:
    found = process.extractOne(
        name.lower().replace("-", "_"), list(SETTINGS), scorer=OSA.normalized_similarity, score_cutoff=ALIKE
    )
    return found[0] if found else None
