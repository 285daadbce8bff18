"""The configuration file: where it is looked for, and what stands in it on which line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

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
