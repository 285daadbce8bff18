"""Resolves settings: flag over environment over file over default. Writes a configuration file to begin with."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import platformdirs
from rapidfuzz import process
from rapidfuzz.distance import OSA

from agent_runtime.config.settings import PREFIX, SETTINGS, Declared, Settings
from agent_runtime.errors import BadRequest

VARIABLE = "HUNK_CONFIG"
"""Names the file in place of the usual one; empty: none is read."""

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that was looked for; `path` is None where none is to be read, `found` says whether it is there.

    `raw` is what it holds by key, `lines` where each key stands, as far as that can be told.
    """

    path: Path | None
    found: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """`FILE:LINE` of a key."""
        return f"{self.path}:{self.lines[key]}" if key in self.lines else str(self.path)


def find(environ: Mapping[str, str], named: Path | None = None) -> tuple[Path | None, bool]:
    """The file to read, and whether it has to be there: `named` (--config), `HUNK_CONFIG`, or the user's own.

    There is none of a project: whoever gives a repository to somebody could else choose the address that the edits of
    its files are sent to.
    """
    if named is not None:
        return named, True
    chosen = environ.get(VARIABLE)
    if chosen is not None:
        return (Path(chosen).expanduser(), True) if chosen.strip() else (None, False)
    xdg = Path(environ.get("XDG_CONFIG_HOME", ""))  # the XDG specification has relative values ignored
    folder = xdg / "hunk" if xdg.is_absolute() else platformdirs.user_config_path("hunk", appauthor=False)
    return folder / "config.toml", False


def read(environ: Mapping[str, str], named: Path | None = None) -> ConfigFile:
    """Read the file, if there is one; raises BadRequest where it cannot be read or is not TOML."""
    path, required = find(environ, named)
    if path is None:
        return ConfigFile(None)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadRequest(f"{path} is over {MAX_BYTES // 1024:,} KiB; it is no configuration file", field="config")
        text = data.decode("utf-8-sig")
        raw = tomllib.loads(text)
    except FileNotFoundError:
        if required:
            raise BadRequest(
                f"there is no configuration file {path}; `hunk config init` writes one", field="config"
            ) from None
        return ConfigFile(path)
    except OSError as error:
        raise BadRequest(
            f"cannot read the configuration file {path}: {error.strerror or error}", field="config"
        ) from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is not UTF-8 text (byte {error.start})", field="config") from None
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{path} is not TOML: {error}", field="config") from None
    return ConfigFile(path, True, raw, {key: line for key in raw if (line := _line_of(key, text))})


def _line_of(key: str, text: str) -> int | None:
    """The line that sets a key or opens a table of that name; None where several look as if they did."""
    name = rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
    setting = re.compile(rf"\s*(?:\[\[?\s*{name}\s*[.\]]|{name}\s*[.=])")
    found = [number for number, line in enumerate(text.split("\n"), 1) if setting.match(line)]
    return found[0] if len(found) == 1 else None


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
    file = read(environ, config)
    _refuse_unknown_keys(file)
    _refuse_misspelt_variables(environ)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for each in SETTINGS.values():
        values[each.name], origins[each.name] = _value(each, file, environ, flags or {})
    return Chosen(Settings(**values), origins, file)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that begin as ours do and are no setting."""
    known = {each.variable for each in SETTINGS.values()} | {VARIABLE}
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


HEAD = """\
# Settings of hunk, in TOML. Take the # away before a line to set it; paths are relative to this file.
# The environment (HUNK_ and the name in capitals) and flags have the last word; `hunk config show` tells where
# each value comes from.
"""

WIDTH = 110


def commented_file() -> str:
    """The whole text."""
    parts = [HEAD]
    for group, settings in groupby(SETTINGS.values(), key=lambda each: each.setting.group):
        parts.append(f"\n# {group}\n")
        parts += [_lines(each) for each in settings]
    return "".join(parts)


def as_toml(value: Any) -> str:
    """A value of a setting as TOML has it: what JSON has, as far as settings go."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _lines(each: Declared) -> str:
    words = f"{each.setting.help} {_bounds(each)}"
    default = f"{each.name} =" if each.default is None else f"{each.name} = {as_toml(each.default)}"
    unset = f"  # {each.setting.unset}" if each.default is None else ""
    return "".join(f"\n# {line}" for line in wrap(words, WIDTH)) + f"\n# {default}{unset}\n"


def _bounds(each: Declared) -> str:
    wanted = each.kind.wanted()
    return f"{wanted[:1].upper()}{wanted[1:]}."


def shown(each: Declared, value: Any) -> Any:
    """A value as it may be printed as JSON; a secret is only told to be there."""
    if value is None:
        return None
    if each.setting.secret:
        return "********"
    return json.loads(json.dumps(value, default=str))


def words(each: Declared, values: Mapping[str, Any]) -> str:
    """The same for a person."""
    value = shown(each, values[each.name])
    if value is None:
        return f"({each.setting.unset})"
    return ", ".join(map(str, value)) if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
