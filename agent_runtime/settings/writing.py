"""A configuration file to begin with: every setting with what it is for, commented out at its default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from textwrap import wrap
from typing import Any

from agent_runtime.settings.declaration import SETTINGS
from agent_runtime.settings.setting import Declared

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
