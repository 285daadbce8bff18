"""Start our engine and the peers as contestants, and compare what they wrote."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_runtime.models.store import ModelFiles, ModelStore, locate_copy, resolve
from agent_runtime.process import build_environment, build_spin_environment
from benchmarks.peers.environments import PEERS, Peer
from benchmarks.peers.protocol import Answer, Arrival, Contestant, ContestantFailed
from engine.config import ModelConfig

NEAR_TIE = 0.5
"""Natural logarithm of how much likelier one token may be than another that was taken for it. Logits of bf16 engines
differ by up to a few tenths where they are computed in another order."""

Margin = Callable[[Sequence[int], int, int], float]
"""By how much, after a context, our model finds the first token likelier than the second; natural logarithm."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Outputs compared until they first part; what follows that has another context.

    `first_tokens_wrong` counts outputs whose very first token is another and no near-tie, `parted_far` those that part
    later and at no near-tie.
    """

    outputs: int = 0
    equal: int = 0
    near_ties: int = 0
    parted_far: int = 0
    first_tokens_wrong: int = 0
    tokens_agreed: int = 0
    tokens_compared: int = 0

    @property
    def comparable(self) -> bool:
        """Return whether the two computed the same thing."""
        return self.first_tokens_wrong == 0 and 2 * self.parted_far <= self.outputs

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def compare(arrivals: Sequence[Arrival], ours: Sequence[Answer], theirs: Sequence[Answer], margin: Margin) -> Agreement:
    """Compare the outputs of one job."""
    assert len(ours) == len(theirs) == len(arrivals)
    return sum(
        (
            _compare(arrival.prompt_ids, own.token_ids, other.token_ids, margin)
            for arrival, own, other in zip(arrivals, ours, theirs, strict=True)
        ),
        Agreement(),
    )


def _compare(prompt: tuple[int, ...], own: tuple[int, ...], other: tuple[int, ...], margin: Margin) -> Agreement:
    agreed = next((at for at, (a, b) in enumerate(zip(own, other, strict=True)) if a != b), len(own))
    if agreed == len(own):
        return Agreement(outputs=1, equal=1, tokens_agreed=agreed, tokens_compared=agreed)
    near = margin((*prompt, *own[:agreed]), own[agreed], other[agreed]) <= NEAR_TIE
    return Agreement(
        outputs=1,
        near_ties=int(near),
        parted_far=int(not near and agreed > 0),
        first_tokens_wrong=int(not near and agreed == 0),
        tokens_agreed=agreed,
        tokens_compared=agreed + 1,
    )


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
        return self.ours, *self.peers


@contextmanager
def open_entrants(
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
        environ = build_environment(os.environ)
        command = [sys.executable, "-m", module, "--model", model, "--context", str(context)]
        files = resolve(model, ModelStore(cache_dir))
        ours = stack.enter_context(Contestant(OURS, command, CHECKOUT, environ))
        folder = files.path if files.kind == "safetensors" else locate_copy(files, cache_dir)  # which ours has made
        config_file = folder / "config.json"
        config = ModelConfig.from_hf(json.loads(config_file.read_text(encoding="utf-8")))
        command = [sys.executable, "-m", "benchmarks.engine.roofline", "--config", str(config_file)]
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
    environ = build_spin_environment(os.environ) | peer.environ(cache_dir) | {"PYTHONPATH": str(outside)}
    return Contestant(peer.name, command, outside, environ)


def is_there(name: str, cache_dir: Path) -> bool:
    """Return whether a peer can take part; one that cannot is named."""
    if name not in PEERS:
        sys.exit(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    there = PEERS[name].python(cache_dir) is not None
    if not there:
        print(f"{name} is left out: its environment is not there; run `make peers`", file=sys.stderr)
    return there
