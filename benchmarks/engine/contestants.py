"""Starts the contestants: our engine from the checkout, the peers from outside of it."""

from __future__ import annotations

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
from agent_runtime.threads import spin_settings
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.environments import PEERS

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = "hunk"


@dataclass(frozen=True, slots=True)
class Entrants:
    """Who takes part, where the model lies as the folder that all but ours read, and who measures the machine."""

    folder: Path
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
        environ = spin_settings(os.environ)
        arguments = ["--context", str(context)]
        command = [sys.executable, "-m", "benchmarks.engine.ours", "--model", model, *arguments]
        ours = stack.enter_context(Contestant(OURS, command, CHECKOUT, environ))
        files = resolve(model, Store(cache_dir))
        folder = files.path if files.kind == "safetensors" else copy_path(files, cache_dir)  # which ours has made
        command = [sys.executable, "-m", "benchmarks.engine.ceiling", "--config", str(folder / "config.json")]
        machine = stack.enter_context(Contestant("machine", command, CHECKOUT, environ))
        outside = Path(stack.enter_context(TemporaryDirectory(prefix="hunk-peers-")))
        (outside / "benchmarks").symlink_to(CHECKOUT / "benchmarks")  # and nothing else of the checkout
        started = []
        for name in peers:
            python = PEERS[name].python(cache_dir)
            assert python is not None, f"{name} has no environment"
            command = [str(python), "-P", "-m", PEERS[name].module, "--model", str(folder), *arguments]
            started.append(
                stack.enter_context(Contestant(name, command, outside, environ | {"PYTHONPATH": str(outside)}))
            )
        yield Entrants(folder, machine, ours, tuple(started))
