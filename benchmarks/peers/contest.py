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

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize
from gguf.quants import quantize as quantize_blocks

from agent_runtime.models.store import ModelFiles, ModelStore, find_tensor_folder, resolve
from agent_runtime.process import build_environment, build_spin_environment
from benchmarks.peers.environments import PEERS, Peer
from benchmarks.peers.protocol import Answer, Arrival, Contestant, ContestantFailed
from engine.config import ModelConfig
from engine.families import parse_config

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
    quantize: str = "none",
    module: str = "benchmarks.engine.ours",
    speculation: bool = False,
) -> Iterator[Entrants]:
    """Load `model` in all of them, one after the other. They end with the context.

    `module` serves our engine, its weights quantised as `quantize` says; peers that read GGUF files get weights of as
    many bits, where they can. With `speculation`, the peers are started so that jobs may say how to draft. A peer that
    cannot be started is named and left out; raises ContestantFailed where ours cannot, and ModelUnavailable where the
    model cannot be had.
    """
    with ExitStack() as stack:
        environ = build_environment(os.environ)
        command = [sys.executable, "-m", module, "--model", model, "--context", str(context), "--quantize", quantize]
        files = resolve(model, ModelStore(cache_dir))
        ours = stack.enter_context(Contestant(OURS, command, CHECKOUT, environ))
        folder = find_tensor_folder(files, cache_dir)  # which ours has made
        config_file = folder / "config.json"
        config = parse_config(json.loads(config_file.read_text(encoding="utf-8")))
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
                peer = PEERS[name]
                place = _locate_gguf(peer.gguf[quantize], files, cache_dir) if peer.gguf else folder
                started.append(stack.enter_context(_start(peer, place, options, cache_dir, outside)))
            except ContestantFailed as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
        yield Entrants(folder, config, machine, ours, tuple(started))


def _locate_gguf(weights: str, files: ModelFiles, cache_dir: Path) -> Path:
    """Return the model's GGUF file, or a copy of it with weights of this type, which is made once."""
    if files.kind != "gguf":
        raise ContestantFailed(f"it reads GGUF files only, and {files.name} is none")
    if not weights:
        return files.path
    place = cache_dir / "peers" / "models" / f"{files.path.stem}-{weights.lower()}.gguf"
    if not place.exists():
        print(f"writing {place}", file=sys.stderr, flush=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / place.name
            write_gguf_copy(files.path, made, weights)
            made.replace(place)
    return place


def write_gguf_copy(source: Path, target: Path, weights: str) -> None:
    """Write a GGUF file anew with all matrices in the type `weights`, such as "Q8_0", and vectors in float32."""
    kind = GGMLQuantizationType[weights]
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name == "general.file_type":
            writer.add_file_type(LlamaFileType["MOSTLY_" + weights])
        elif field.name != "general.architecture" and not field.name.startswith("GGUF."):
            element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        stored = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize_blocks(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _start(peer: Peer, model: Path, options: Sequence[str], cache_dir: Path, outside: Path) -> Contestant:
    python = peer.python(cache_dir)
    assert python is not None, f"{peer.name} has no environment"
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
