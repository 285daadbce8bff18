"""All settings of `hunk`, declared once: types, bounds, defaults and help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from agent_runtime.models.config import DEFAULT_CONTEXT, DEFAULT_MODEL, DEFAULT_NUM_SEQS, Dtype, Quantize
from agent_runtime.telemetry.log import LogFormat, LogLevel
from agent_runtime.types import ReuseName

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

BASES = (bool, int, float, str, Path)


@dataclass(frozen=True, slots=True)
class Kind:
    """`base` is one of `BASES`; `choices` are the only texts that there are, if any; `many` is a tuple of it."""

    base: type[Any]
    choices: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False
    minimum: float | None = None
    maximum: float | None = None

    def from_text(self, text: str) -> Any:
        """A value as a variable holds it; raises ValueError. An empty one is None or () where that is a value."""
        if self.many:
            return tuple(self._one_of_text(part.strip()) for part in text.split(",") if part.strip())
        return None if self.optional and not text.strip() else self._one_of_text(text.strip())

    def from_toml(self, value: Any, folder: Path) -> Any:
        """A value as a file in `folder` holds it, to which paths are relative; raises ValueError."""
        if self.many:
            if not isinstance(value, list):
                raise ValueError
            return tuple(self._one_of_toml(each, folder) for each in value)
        return self._one_of_toml(value, folder)

    def wanted(self) -> str:
        """What to give, in words."""
        one = self._one_wanted()
        return f"a list, each {one}" if self.many else one

    def _one_of_text(self, text: str) -> Any:
        if self.base is bool:
            if text.lower() not in WORDS:
                raise ValueError
            return WORDS[text.lower()]
        if self.base is Path:
            return _path(text)
        return self._bounded(self.base(text))

    def _one_of_toml(self, value: Any, folder: Path) -> Any:
        if self.base is Path:
            return folder / _path(value) if isinstance(value, str) else _refuse()
        if self.base is float and type(value) is int:
            value = float(value)
        if type(value) is not self.base:  # True is an int, too
            raise ValueError
        return self._bounded(value)

    def _bounded(self, value: Any) -> Any:
        if self.choices and value not in self.choices:
            raise ValueError
        if self.base is float and not math.isfinite(value):
            raise ValueError
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            raise ValueError
        return value

    def _one_wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        name = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}[
            self.base
        ]
        match self.minimum, self.maximum:
            case None, None:
                return name
            case least, None:
                return f"{name} of at least {least:g}"
            case None, most:
                return f"{name} of at most {most:g}"
            case least, most:
                return f"{name} from {least:g} to {most:g}"


def kind_of(annotation: Any, minimum: float | None = None, maximum: float | None = None) -> Kind:
    """The kind that a type stands for: a base, a Literal of texts, `tuple[base, ...]`, or one of these or None."""
    optional = False
    if get_origin(annotation) in (Union, UnionType):
        annotation, none = get_args(annotation)
        assert none is NoneType, f"{annotation} | {none} is no kind of setting"
        optional = True
    many = get_origin(annotation) is tuple
    if many:
        annotation, rest = get_args(annotation)
        assert rest is ...
    choices: tuple[str, ...] = ()
    if get_origin(annotation) is Literal:
        annotation, choices = str, get_args(annotation)
    assert annotation in BASES, f"{annotation} is no kind of setting"
    return Kind(annotation, choices, many, optional, minimum, maximum)


def _path(text: str) -> Path:
    return Path(text).expanduser() if text.strip() else _refuse()


def _refuse() -> Any:
    raise ValueError


Command = Literal["serve", "apply", "mcp"]
"""A command that takes settings as flags."""

PREFIX = "HUNK_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a setting is shown and bounded.

    help: one sentence for `--help` and the written file. commands: those that have it as a flag; without any it is set
    by file or environment only. group: the heading in `--help`. metavar: what stands for the value there. minimum,
    maximum: of a number. unset: what a default of None means, in words. secret: never shown.
    """

    help: str
    commands: tuple[Command, ...] = ()
    group: str = "Service"
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    unset: str = ""
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting as a class declares it."""

    name: str
    annotation: Any
    default: Any
    kind: Kind
    setting: Setting

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The command line's name for it."""
        return "--" + self.name.replace("_", "-")


def declared(settings: type[Any]) -> Iterator[Declared]:
    """What a frozen dataclass declares, in its order: each field is `Annotated[type, Setting(...)]` with a default."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        hint = hints[field.name]
        assert get_origin(hint) is Annotated, f"{field.name} is not Annotated[type, Setting(...)]"
        annotation, setting = get_args(hint)
        assert isinstance(setting, Setting), f"{field.name} has no Setting"
        kind = kind_of(annotation, setting.minimum, setting.maximum)
        yield Declared(field.name, annotation, field.default, kind, setting)


SERVE: tuple[Command, ...] = ("serve",)
CLIENTS: tuple[Command, ...] = ("apply", "mcp")
LOADERS: tuple[Command, ...] = ("serve", "apply", "mcp")

LISTENING = "Listening"
LIMITS = "Limits of each tenant"
LOGGING = "Logs and traces"
MODEL = "Model"
REUSE = "Reuse"
CLIENT = "Asking a service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, in the order in which `--help` and the written file have them."""

    root: Annotated[
        Path | None,
        Setting(
            help="Files below it may be named by path.", commands=("serve", "mcp"), metavar="DIR", unset="no files"
        ),
    ] = None
    allow_root: Annotated[
        tuple[Path, ...],
        Setting(
            help="Folders below it may be registered as workspaces, too; may be given again.",
            commands=SERVE,
            metavar="DIR",
        ),
    ] = ()
    watch: Annotated[
        bool, Setting(help="Keep the files of workspaces tokenised, once one is edited.", commands=SERVE)
    ] = True
    deadline: Annotated[
        float | None,
        Setting(
            help="Seconds that the model may take an edit.",
            commands=SERVE,
            metavar="SECONDS",
            minimum=0.1,
            unset="as long as it takes",
        ),
    ] = None

    host: Annotated[str, Setting(help="Address to listen on.", commands=SERVE, group=LISTENING)] = "127.0.0.1"
    port: Annotated[
        int,
        Setting(
            help="Port to listen on; 0 takes a free one.", commands=SERVE, group=LISTENING, minimum=0, maximum=65535
        ),
    ] = 8311
    allow_host: Annotated[
        tuple[str, ...],
        Setting(help="A further name of this service; may be given again.", commands=("serve", "mcp"), group=LISTENING),
    ] = ()
    tokens: Annotated[
        Path | None,
        Setting(
            help="The file with the tokens of those who may use the service; `hunk token new` makes one.",
            commands=("serve", "mcp"),
            group=LISTENING,
            metavar="FILE",
            unset="everybody on this machine may",
        ),
    ] = None
    max_connections: Annotated[
        int,
        Setting(
            help="Connections that are open at once.", commands=SERVE, group=LISTENING, minimum=1, metavar="NUMBER"
        ),
    ] = 1000

    drain: Annotated[
        float,
        Setting(
            help="How long requests may go on after SIGTERM; 5 s at most after Ctrl-C.",
            commands=SERVE,
            group=LISTENING,
            minimum=0.0,
            metavar="SECONDS",
        ),
    ] = 20.0

    requests_per_minute: Annotated[
        float | None,
        Setting(
            help="Requests that a tenant may send; a minute's worth may come at once.",
            commands=SERVE,
            group=LIMITS,
            minimum=0.1,
            metavar="NUMBER",
            unset="any number",
        ),
    ] = None
    concurrent_requests: Annotated[
        int | None,
        Setting(
            help="Requests of a tenant that may be in work at once.",
            commands=SERVE,
            group=LIMITS,
            minimum=1,
            metavar="NUMBER",
            unset="256 with tokens, else any number",
        ),
    ] = None
    tokens_per_minute: Annotated[
        float | None,
        Setting(
            help="Tokens that the model may run for a tenant; cached ones do not count.",
            commands=SERVE,
            group=LIMITS,
            minimum=1.0,
            metavar="NUMBER",
            unset="any number",
        ),
    ] = None

    log_format: Annotated[
        LogFormat | None,
        Setting(
            help="Of the line that each request gets: JSON, or key=value.",
            commands=SERVE,
            group=LOGGING,
            unset="text on a terminal, else json",
        ),
    ] = None
    log_level: Annotated[
        LogLevel,
        Setting(help="debug has health checks, too; warning only what failed.", commands=SERVE, group=LOGGING),
    ] = "info"
    traces: Annotated[
        bool,
        Setting(
            help="Send OpenTelemetry traces; OTEL_EXPORTER_OTLP_ENDPOINT says where to, and suffices.",
            commands=SERVE,
            group=LOGGING,
        ),
    ] = False

    model: Annotated[str, Setting(help="A catalogue name or path.", commands=LOADERS, group=MODEL, metavar="MODEL")] = (
        DEFAULT_MODEL
    )
    context: Annotated[int, Setting(help="Tokens of prompt and answer.", commands=SERVE, group=MODEL, minimum=256)] = (
        DEFAULT_CONTEXT
    )
    device: Annotated[
        str,
        Setting(
            help="Where the model runs: cpu, cuda (the first card) or cuda:N.",
            commands=LOADERS,
            group=MODEL,
            metavar="DEVICE",
        ),
    ] = "cpu"
    dtype: Annotated[
        Dtype, Setting(help="Of the weights; bfloat16 is fast, float32 exact.", commands=LOADERS, group=MODEL)
    ] = "bfloat16"
    quantize: Annotated[
        Quantize | None,
        Setting(
            help="Store the weights in fewer bits: smaller, less exact.", commands=LOADERS, group=MODEL, unset="as is"
        ),
    ] = None
    adapter: Annotated[
        Path | None,
        Setting(
            help="A LoRA adapter (PEFT) to merge into the model.",
            commands=LOADERS,
            group=MODEL,
            metavar="DIR",
            unset="none",
        ),
    ] = None
    batch_invariant: Annotated[
        bool,
        Setting(help="The same bits whatever runs beside an edit; takes longer.", commands=LOADERS, group=MODEL),
    ] = False
    max_num_seqs: Annotated[
        int,
        Setting(help="Edits that the model works on at once.", commands=SERVE, group=MODEL, minimum=1, maximum=512),
    ] = DEFAULT_NUM_SEQS
    kv_gib: Annotated[
        float | None,
        Setting(
            help="GiB of memory for keys and values.",
            commands=SERVE,
            group=MODEL,
            metavar="GIB",
            minimum=0.0,
            unset="two full contexts",
        ),
    ] = None

    reuse: Annotated[
        ReuseName,
        Setting(
            help="What the model takes of earlier edits; fast and turbo approximate.",
            commands=LOADERS,
            group=REUSE,
        ),
    ] = "exact"
    span_memory: Annotated[
        float | None,
        Setting(
            help="GiB of memory for KV that fast and turbo take over; 0: none.",
            commands=LOADERS,
            group=REUSE,
            metavar="GIB",
            minimum=0.0,
            unset="0.25; 1 where --reuse approximates; 0 for a single edit",
        ),
    ] = None
    span_disk: Annotated[
        float,
        Setting(
            help="GiB of disk that keep such KV across starts; 0: none.",
            commands=LOADERS,
            group=REUSE,
            metavar="GIB",
            minimum=0.0,
        ),
    ] = 0.0

    url: Annotated[
        str | None,
        Setting(
            help="Ask the service there instead of a model in this process.",
            commands=CLIENTS,
            group=CLIENT,
            metavar="URL",
            unset="in this process",
        ),
    ] = None
    token: Annotated[
        str | None,
        Setting(
            help="What that service knows the sender by. No flag: others can see a command line.",
            group=CLIENT,
            unset="none",
            secret=True,
        ),
    ] = None

    cache: Annotated[
        Path | None,
        Setting(help="The folder of models, token ids and KV.", group="Catalogue", unset="the user's cache folder"),
    ] = None
    model_sources: Annotated[
        tuple[Literal["hub", "registry"], ...] | None,
        Setting(help="Where models are pulled from, the first tried first.", group="Catalogue", unset="hub, registry"),
    ] = None
    prompt_form: Annotated[
        str | None,
        Setting(help="The form in which any model is asked.", group="Catalogue", unset="the catalogue's"),
    ] = None


SETTINGS = MappingProxyType({each.name: each for each in declared(Settings)})
"""Every setting by name."""
