"""Resolves settings, and makes the model's options of them.

A flag wins over the environment, the environment over the file, the file over the default.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import platformdirs

from agent_runtime.config.settings import PREFIX, SETTINGS, Setting, Settings
from agent_runtime.errors import BadRequest, find_nearest
from agent_runtime.models.config import DEFAULT_SPAN_GIB, KV_SHARE, SMALL_SPAN_GIB, LoadOptions, ModelSettings
from agent_runtime.workspace.history import History

VARIABLE = "HUNK_CONFIG"
"""Names the file in place of the usual one; empty: none is read."""

MAX_BYTES = 1 << 20
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The configuration file; `path` is None where none is to be read. raw: its values by key."""

    path: Path | None
    found: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def locate(self, key: str) -> str:
        """Return `FILE:LINE` of the line that sets a key or opens a table of that name; `FILE` where it is not sure."""
        name = rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
        setting = re.compile(rf"\s*(?:\[\[?\s*{name}\s*[.\]]|{name}\s*[.=])")
        found = [number for number, line in enumerate(self.text.split("\n"), 1) if setting.match(line)]
        return f"{self.path}:{found[0]}" if len(found) == 1 else str(self.path)


def find_file(environ: Mapping[str, str], given: Path | None = None) -> tuple[Path | None, bool]:
    """Find the file to read: `given` (--config), `HUNK_CONFIG` or the user's own; the flag says whether it must exist.

    A project has no file: a repository from somebody else could otherwise choose where the edits of its files are sent.
    """
    if given is not None:
        return given, True
    variable = environ.get(VARIABLE)
    if variable is not None:
        return (Path(variable).expanduser(), True) if variable.strip() else (None, False)
    xdg = Path(environ.get("XDG_CONFIG_HOME", ""))  # the XDG specification has relative values ignored
    folder = xdg / "hunk" if xdg.is_absolute() else platformdirs.user_config_path("hunk", appauthor=False)
    return folder / "config.toml", False


def read_file(environ: Mapping[str, str], given: Path | None = None) -> ConfigFile:
    """Read the file, if there is one; raises BadRequest where it cannot be read or is not TOML."""
    path, is_required = find_file(environ, given)
    if path is None:
        return ConfigFile(None)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadRequest(f"{path} is over {MAX_BYTES // 1024:,} KiB; it is no configuration file", field="config")
        text = data.decode("utf-8-sig")
        return ConfigFile(path, True, tomllib.loads(text), text)
    except FileNotFoundError:
        if not is_required:
            return ConfigFile(path)
        fault = f"there is no configuration file {path}; `hunk config init` writes one"
    except OSError as error:
        fault = f"cannot read the configuration file {path}: {error.strerror or error}"
    except UnicodeDecodeError as error:
        fault = f"{path} is not UTF-8 text (byte {error.start})"
    except tomllib.TOMLDecodeError as error:
        fault = f"{path} is not TOML: {error}"
    raise BadRequest(fault, field="config")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from, and the place there: `FILE:LINE`, a variable, a flag."""

    layer: Literal["default", "file", "environment", "flag"]
    place: str = ""

    def __str__(self) -> str:
        return self.place or self.layer


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """All settings, and the origin of each value."""

    values: Settings
    origins: Mapping[str, Origin]
    file: ConfigFile

    def has_flag(self, name: str) -> bool:
        """Whether the setting was given on the command line."""
        return self.origins[name].layer == "flag"


def resolve(
    environ: Mapping[str, str], flags: Mapping[str, Any] | None = None, *, config: Path | None = None
) -> ResolvedSettings:
    """Resolve all settings; `flags` are checked values from the command line, `config` is the file of `--config`.

    Raises BadRequest, naming the place, for an unknown key, a misspelt variable or a value that is not allowed.
    """
    file, flags = read_file(environ, config), flags or {}
    for key in [key for key in file.raw if key not in SETTINGS]:
        near = _find_setting(key)
        hint = f"did you mean {near}?" if near else "`hunk config show` lists them"
        raise BadRequest(f"{file.locate(key)}: there is no setting {key!r}; {hint}", field=key)
    for name in find_unknown_variables(environ):
        if near := _find_setting(name.removeprefix(PREFIX)):
            raise BadRequest(f"the variable {name} is no setting; did you mean {SETTINGS[near].variable}?", field=name)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name, setting in SETTINGS.items():
        if name in flags:
            values[name], origins[name] = flags[name], Origin("flag", setting.flag)
        elif (text := environ.get(setting.variable)) is not None:
            origins[name] = Origin("environment", setting.variable)
            try:
                values[name] = setting.parse_text(text)
            except ValueError:
                raise _make_error(setting, setting.variable, setting.variable, text) from None
        elif name in file.raw and file.path is not None:
            origins[name] = Origin("file", file.locate(name))
            try:
                values[name] = setting.parse_toml(file.raw[name], file.path.parent)
            except ValueError:
                raise _make_error(setting, name, f"{origins[name]}: {name}", file.raw[name]) from None
        else:
            values[name], origins[name] = setting.default, Origin("default")
    return ResolvedSettings(Settings(**values), origins, file)


def find_unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin with `HUNK_` and are no setting: they may be another program's."""
    known = {setting.variable for setting in SETTINGS.values()} | {VARIABLE}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _find_setting(name: str) -> str | None:
    return find_nearest(name.lower().replace("-", "_"), SETTINGS)


def _make_error(setting: Setting, field: str, where: str, value: Any) -> BadRequest:
    shown = "not valid" if setting.secret else repr(value)
    if len(shown) > SHOWN_CHARACTERS:
        shown = f"{shown[:SHOWN_CHARACTERS]}..."
    return BadRequest(f"{where} is {shown}: give {setting.describe_values()}", field=field)


HEAD = """\
# Settings of hunk, in TOML. Remove the # before a line to set it; paths are relative to this file.
# The environment (HUNK_ and the name in capitals) and flags take precedence; `hunk config show` prints where each
# value comes from.
"""

WIDTH = 110


def render_template() -> str:
    """Render the file that `hunk config init` writes: every setting with its default, commented out."""
    parts = [HEAD]
    for group, settings in groupby(SETTINGS.values(), key=lambda setting: setting.group):
        parts.append(f"\n# {group}\n")
        for setting in settings:
            allowed = setting.describe_values()
            words = wrap(f"{setting.help} {allowed[:1].upper()}{allowed[1:]}.", WIDTH)
            default = "  # " + setting.unset if setting.default is None else " " + json.dumps(setting.default)
            parts.append("".join(f"\n# {line}" for line in words) + f"\n# {setting.name} ={default}\n")
    return "".join(parts)


def to_json(setting: Setting, value: Any) -> Any:
    """Return a value as JSON has it; a secret is masked."""
    if value is not None and setting.secret:
        return "********"
    return json.loads(json.dumps(value, default=str))


def format_value(setting: Setting, value: Any) -> str:
    """Format a value for a person."""
    shown = to_json(setting, value)
    if shown is None:
        return f"({setting.unset})"
    if isinstance(shown, list):
        return ", ".join(map(str, shown))
    return str(shown).lower() if isinstance(shown, bool) else str(shown)


def make_model_settings(environ: Mapping[str, str], resolved: ResolvedSettings | None = None) -> ModelSettings:
    """Return where models are stored and how they are prompted; raises BadRequest on a bad value.

    Without `resolved`, for commands that take no settings as flags, they are resolved here.
    """
    values = (resolved or resolve(environ)).values
    sources = None if values.model_sources is None else ",".join(values.model_sources)
    from_file = {"cache": values.cache, "model_sources": sources, "prompt_form": values.prompt_form}
    variables = {SETTINGS[name].variable: str(value) for name, value in from_file.items() if value is not None}
    return ModelSettings.from_env({**variables, **environ})


def make_history(values: Settings, models: ModelSettings) -> History | None:
    """Return the history of writes, None if it is turned off."""
    return History(models.cache_dir / "history", int(values.history * 1e6)) if values.history else None


def make_single_options(values: Settings) -> LoadOptions:
    """Return how to load a model for a single edit."""
    return LoadOptions(
        values.dtype,
        adapter=values.adapter,
        quantize=values.quantize,
        kv_dtype=values.kv_dtype,
        draft_model=values.draft_model,
        kv_sequences=1,
        batch_invariant=values.batch_invariant,
        span_gib=values.span_memory or 0.0,
        span_disk_gib=values.span_disk,
        device=values.device,
    )


def make_service_options(values: Settings) -> LoadOptions:
    """Return how a service loads its model, for many edits."""
    span_gib = values.span_memory
    if span_gib is None:
        span_gib = SMALL_SPAN_GIB if values.reuse == "exact" and not values.span_disk else DEFAULT_SPAN_GIB
    return replace(
        make_single_options(values),
        context=values.context,
        max_num_seqs=values.max_num_seqs,
        kv_gib=values.kv_gib,
        max_batched_tokens=values.max_batched_tokens,
        prefill_beside_decodes=values.prefill_beside_decodes,
        kv_sequences=2,
        kv_share=KV_SHARE,
        span_gib=span_gib,
        span_disk_gib=values.span_disk if span_gib else 0.0,
        kv_tier=values.kv_tier,
        kv_tier_key=values.kv_tier_key,
        tensor_parallel=values.tensor_parallel,
    )
