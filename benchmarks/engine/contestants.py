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

from agent_runtime.models.converted import copy_path
from agent_runtime.models.resolve import resolve
from agent_runtime.models.store import Store
from agent_runtime.process import settings, spin_settings
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.environments import PEERS
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
def entrants(model: str, context: int, peers: Sequence[str], cache_dir: Path) -> Iterator[Entrants]:
    """Load `model` in all of them, one after the other; raises ContestantFailed. They end with the context."""
    with ExitStack() as stack:
        environ = settings(os.environ)
        command = [sys.executable, "-m", "benchmarks.engine.ours", "--model", model, "--context", str(context)]
        ours = stack.enter_context(Contestant(OURS, command, CHECKOUT, environ))
        files = resolve(model, Store(cache_dir))
        folder = files.path if files.kind == "safetensors" else copy_path(files, cache_dir)  # which ours has made
        config_file = folder / "config.json"
        config = ModelConfig.from_hf(json.loads(config_file.read_text(encoding="utf-8")))
        command = [sys.executable, "-m", "benchmarks.engine.ceiling", "--config", str(config_file)]
        machine = stack.enter_context(Contestant("machine", command, CHECKOUT, environ))
        outside = Path(stack.enter_context(TemporaryDirectory(prefix="hunk-peers-")))
        (outside / "benchmarks").symlink_to(CHECKOUT / "benchmarks")  # and nothing else of the checkout
        context = min(context, config.max_positions)
        started = []
        for name in peers:
            python = PEERS[name].python(cache_dir)
            assert python is not None, f"{name} has no environment"
            command = [str(python), "-P", "-m", PEERS[name].module]
            command += ["--model", str(folder), "--context", str(context)]
            its_environ = spin_settings(os.environ) | PEERS[name].environ(cache_dir) | {"PYTHONPATH": str(outside)}
            started.append(stack.enter_context(Contestant(name, command, outside, its_environ)))
        yield Entrants(folder, config, machine, ours, tuple(started))
