"""Starts the contestants: our engine from the checkout, the peers from outside of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_runtime.models.bf16_copy import locate_copy
from agent_runtime.models.store import ModelFiles, ModelStore, resolve
from agent_runtime.process import settings, spin_settings
from benchmarks.peers.contestant import Contestant, ContestantFailed
from benchmarks.peers.environments import PEERS, Peer
from engine.config import ModelConfig

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = "hunk"


@dataclass(frozen=True, slots=True)
class Entrants:
    """Who takes part, where the model lies as the folder that all but ours read, and who measures the machine."""

    folder: Path
    config: ModelConfig
    machine: Contestant
    ours: Contestant
    peers: tuple[Contestant, ...]

    @property
    def all(self) -> tuple[Contestant, ...]:
        """Ours, then the peers."""
        return self.ours, *self.peers


@contextmanager
def entrants(
    model: str,
    context: int,
    peers: Sequence[str],
    cache_dir: Path,
    *,
    module: str = "benchmarks.engine.ours",
    speculation: bool = False,
) -> Iterator[Entrants]:
    """Load `model` in all of them, one after the other. They end with the context.

    `module` serves our engine. With `speculation`, the peers are started so that jobs may say how to draft. A peer that
    cannot be started is named and left out; raises ContestantFailed where ours cannot, and ModelUnavailable where the
    model cannot be had.
    """
    with ExitStack() as stack:
        environ = settings(os.environ)
        command = [sys.executable, "-m", module, "--model", model, "--context", str(context)]
        files = resolve(model, ModelStore(cache_dir))
        ours = stack.enter_context(Contestant(OURS, command, CHECKOUT, environ))
        folder = files.path if files.kind == "safetensors" else locate_copy(files, cache_dir)  # which ours has made
        config_file = folder / "config.json"
        config = ModelConfig.from_hf(json.loads(config_file.read_text(encoding="utf-8")))
        command = [sys.executable, "-m", "benchmarks.engine.ceiling", "--config", str(config_file)]
        machine = stack.enter_context(Contestant("machine", command, CHECKOUT, environ))
        outside = Path(stack.enter_context(TemporaryDirectory(prefix="hunk-peers-")))
        (outside / "benchmarks").symlink_to(CHECKOUT / "benchmarks")  # and nothing else of the checkout
        started = []
        for name in peers:
            options = [
                "--context",
                str(min(context, config.max_positions)),
                *(["--speculation"] if speculation else []),
            ]
            try:
                started.append(stack.enter_context(_start(PEERS[name], files, folder, options, cache_dir, outside)))
            except ContestantFailed as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
        yield Entrants(folder, config, machine, ours, tuple(started))


def _start(
    peer: Peer, files: ModelFiles, folder: Path, options: Sequence[str], cache_dir: Path, outside: Path
) -> Contestant:
    python = peer.python(cache_dir)
    assert python is not None, f"{peer.name} has no environment"
    if peer.reads_gguf and files.kind != "gguf":
        raise ContestantFailed(f"it reads GGUF files only, and {files.name} is none")
    model = files.path if peer.reads_gguf else folder
    command = [str(python), "-P", "-m", peer.module, "--model", str(model), *options]
    environ = spin_settings(os.environ) | peer.environ(cache_dir) | {"PYTHONPATH": str(outside)}
    return Contestant(peer.name, command, outside, environ)
