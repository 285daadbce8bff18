"""Train an adapter that writes edits, and count the edits that it writes right: `python examples/train_adapter`.

The adapter is a LoRA (arXiv 2106.09685) of the upper layers that acts on the answer alone, from the prompt's last token
on (as in activated LoRA, arXiv 2504.12397): the keys and values of files and prompts stay those of the bare model.

The steps, each of which goes on where it was stopped:

1. Lazy snippets that no rule decides are made of real commits, and drawn from real ones (`../shared/data`). The model
   reads each prompt and its right answer once. What the lower layers compute of it is kept, and the keys and values of
   the prompt in the upper ones.
2. The adapter is trained to choose every token of the right answers.
3. After each epoch the real snippets of repositories that are in no training text are counted for which every token of
   the right answer would be chosen: these the model would write exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from agent_runtime.errors import HunkError
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.store import ModelStore, find_tensor_folder, resolve
from agent_runtime.wiring import open_model
from benchmarks.cases import DEFAULT_CASES, Case
from benchmarks.harness import describe_machine, render_rows, say
from benchmarks.lossy import draw_cases, find_edits
from benchmarks.snippets.imitations import make_imitations
from editor.types import Unresolved
from engine.contiguous_cache import CacheView, KVCache
from engine.decoder import LM_HEAD_ROWS, Batch, Decoder, StoreOps
from engine.weights.checkpoint import TensorFolder

UNSEEN = frozenset(
    {
        "MrVPlusOne/Coeditor",
        "gin-gonic/gin",
        "google/gson",
        "jqlang/jq",
        "microsoft/vscode-copilot-chat",
        "sinatra/sinatra",
    }
)
"""Repositories whose real snippets are counted, and which are not trained on."""

OFFERED = 4
"""The service has the model choose among so many readings of a snippet before it has it write."""

RANK, SCALE = 16, 2.0
RATE, BATCH, WARM_UP = 5e-4, 4, 6
"""Of the training: the learning rate, answers of a step, and steps until the rate is reached."""

NUM_LIKELY = 8
"""Of each choice of the bare model so many candidates are kept; the loss is computed among those of a whole answer."""

PARTS = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)

TENSORS = {f"{part}.weight" for part in (*PARTS, "input_layernorm", "post_attention_layernorm")}
"""Of a layer, beside biases."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the bare model computes of a prompt and its right answer.

    hidden: what the first upper layer gets, from the prompt's last token to the answer's last but one. keys, values: of
    the prompt's other tokens, of every upper layer. likely: the most likely tokens at each place.
    """

    answer: Tensor  # int64 [num_tokens]
    hidden: Tensor  # [num_tokens, hidden_size]
    keys: Tensor  # [num_layers, num_kv_heads, num_prompt - 1, head_dim]
    values: Tensor
    likely: Tensor  # int64 [num_tokens, NUM_LIKELY]

    def count_misses(self) -> int:
        """Return how many tokens of the right answer the bare model would not choose, given the right ones before."""
        return int((self.likely[:, 0] != self.answer).sum())


@dataclass(frozen=True, slots=True)
class Example:
    """An edit and the file of its reading. is_offered: one of the readings that the model chooses among is right."""

    file: Path
    is_offered: bool
    num_tokens: int

    def read(self) -> Reading:
        """Return the reading."""
        return Reading(*torch.load(self.file, mmap=True))


class RecordingOps(StoreOps):
    """Keeps what layer `first` gets: the sums of the residual stream before it."""

    recorded: Tensor

    def __init__(self, decoder: Decoder, batch: Batch, kv: CacheView, first: int) -> None:
        super().__init__(decoder, batch, kv, decoder.scratch)
        self._left = 2 * first  # each layer adds twice

    def add_norm(self, hidden: Tensor, delta: Tensor, delta_weight: Tensor | None, weight: Tensor | None) -> Tensor:
        """As `LayerOps.add_norm`."""
        normed = super().add_norm(hidden, delta, delta_weight, weight)
        self._left -= 1
        if self._left == 0:
            self.recorded = hidden.clone()
        return normed


class Reader:
    """Reads prompts and answers; what a prompt has in common with the last one is not read again."""

    def __init__(self, decoder: Decoder, first_layer: int, context: int) -> None:
        self._decoder = decoder
        self._first = first_layer
        self._caches: list[KVCache] = decoder.new_caches(1, context)
        self._known: list[int] = []

    @torch.inference_mode()
    def read(self, prompt: Sequence[int], answer: Sequence[int]) -> Reading:
        """Return the reading of an answer to a prompt."""
        ids = [*prompt, *answer[:-1]]
        differs = (at for at, pair in enumerate(zip(ids, self._known, strict=False)) if pair[0] != pair[1])
        shared = min(next(differs, len(self._known)), len(prompt) - 1)
        for cache in self._caches:
            cache.truncate(0, shared)
        batch = Batch.from_chunks([(shared, ids[shared:])], torch.device("cpu"))
        ops = RecordingOps(self._decoder, batch, CacheView(self._caches, 0, None, len(ids) - shared), self._first)
        hidden = self._decoder.run_layers(batch.token_ids, ops)[-len(answer) :]
        self._known = ids
        logits = (self._decoder.logits(rows) for rows in hidden.split(LM_HEAD_ROWS))
        likely = torch.cat([rows.topk(NUM_LIKELY).indices for rows in logits])
        upper, prompt_only = self._caches[self._first :], slice(0, len(prompt) - 1)
        keys, values = (
            torch.stack([each[0, :, prompt_only] for each in part]).to(torch.bfloat16)
            for part in ([cache.keys for cache in upper], [cache.values for cache in upper])
        )
        return Reading(torch.tensor(answer), ops.recorded[-len(answer) :].float(), keys, values, likely)


class UpperLayers(nn.Module):
    """The layers of a Qwen2 or Llama decoder from one on, with a LoRA of each projection; only the LoRA is trained."""

    def __init__(self, decoder: Decoder, folder: Path, first_layer: int) -> None:
        """Raises ValueError for a model of another family, and for a layer that it does not have."""
        super().__init__()
        tensors, self._decoder, config = TensorFolder(folder), decoder, decoder.config
        names = tensors.shapes()
        self._layers = []
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        if not 0 < first_layer < config.num_layers:
            raise ValueError(f"--first-layer must be from 1 to {config.num_layers - 1} for this model")
        for index in range(first_layer, config.num_layers):
            prefix = f"model.layers.{index}."
            own = [name for name in names if name.startswith(prefix)]
            self._layers.append({name.removeprefix(prefix): tensors.read(name).float() for name in own})
            if {
                name.removesuffix(".bias") + ".weight" * name.endswith(".bias") for name in self._layers[-1]
            } != TENSORS:
                raise ValueError(f"{config.architecture} is no Qwen2 or Llama, whose layers this program computes")
            for part in PARTS:
                num_out, num_in = self._layers[-1][f"{part}.weight"].shape
                name = f"{index}.{part}".replace(".", "/")
                self.down[name] = nn.Parameter(torch.randn(RANK, num_in) / num_in**0.5)
                self.up[name] = nn.Parameter(torch.zeros(num_out, RANK))
        self._final_norm = tensors.read("model.norm.weight").float()
        self._first = first_layer

    def forward(self, reading: Reading) -> Tensor:
        """Return the hidden states after the last norm, [num_tokens, hidden_size]."""
        config, hidden = self._decoder.config, reading.hidden.clone()
        num_rows, start = len(hidden), reading.keys.shape[2]
        positions = torch.arange(start, start + num_rows)
        ((cos, sin),) = self._decoder.get_rotations(positions).values()
        mask = torch.arange(start + num_rows) <= positions[:, None]
        for at, layer in enumerate(self._layers):
            x = F.rms_norm(hidden, hidden.shape[1:], layer["input_layernorm.weight"], config.rms_norm_eps)
            q, k, v = (
                self._project(at, f"self_attn.{name}_proj", x).view(num_rows, -1, config.head_dim).transpose(0, 1)
                for name in "qkv"
            )
            q, k = (_rotate(each, cos, sin) for each in (q, k))
            k, v = (torch.cat([kept[at].float(), new], dim=1) for kept, new in ((reading.keys, k), (reading.values, v)))
            out = F.scaled_dot_product_attention(q[None], k[None], v[None], mask, enable_gqa=True)[0]
            hidden = hidden + self._project(at, "self_attn.o_proj", out.transpose(0, 1).reshape(num_rows, -1))
            x = F.rms_norm(hidden, hidden.shape[1:], layer["post_attention_layernorm.weight"], config.rms_norm_eps)
            gated = F.silu(self._project(at, "mlp.gate_proj", x)) * self._project(at, "mlp.up_proj", x)
            hidden = hidden + self._project(at, "mlp.down_proj", gated)
        return F.rms_norm(hidden, hidden.shape[1:], self._final_norm, config.rms_norm_eps)

    def _project(self, at: int, part: str, x: Tensor) -> Tensor:
        name = f"{self._first + at}.{part}".replace(".", "/")
        out = F.linear(x, self._layers[at][f"{part}.weight"], self._layers[at].get(f"{part}.bias"))
        return out + (x @ self.down[name].T) @ self.up[name].T * SCALE


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Trainer:
    """Trains and counts."""

    def __init__(self, decoder: Decoder, folder: Path, first_layer: int) -> None:
        """folder: of the model's tensors."""
        torch.manual_seed(0)
        self._decoder = decoder
        self.layers = UpperLayers(decoder, folder, first_layer)
        names = TensorFolder(folder).shapes()
        head = "lm_head.weight" if "lm_head.weight" in names else "model.embed_tokens.weight"
        self._rows = TensorFolder(folder).read(head)

    def compute_loss(self, reading: Reading) -> Tensor:
        """Return the summed cross-entropy of an answer's tokens, among the likely ones of the whole answer."""
        some, places = torch.cat([reading.answer, reading.likely.flatten()]).unique(return_inverse=True)
        logits = self.layers(reading) @ self._rows[some].float().T
        return F.cross_entropy(logits, places[: len(reading.answer)], reduction="sum")

    @torch.inference_mode()
    def count_misses(self, reading: Reading) -> int:
        """As `Reading.count_misses`, of the model with the adapter."""
        chosen = [
            token
            for rows in self.layers(reading).to(self._decoder.weights.dtype).split(LM_HEAD_ROWS)
            for token in self._decoder.likeliest(rows).token_ids.tolist()
        ]
        return sum(own != right for own, right in zip(chosen, reading.answer.tolist(), strict=True))

    def train(self, examples: Sequence[Example], epochs: int, out: Path) -> Iterator[int]:
        """Train, and yield the number of each epoch, from 1 on; those of an earlier run are not trained again."""
        optimiser = torch.optim.AdamW(self.layers.parameters(), lr=RATE, weight_decay=0.0)
        per_epoch, started = len(examples) // BATCH, time.monotonic()
        num_steps = epochs * per_epoch
        for epoch in range(epochs):
            file = out / f"epoch-{epoch + 1}.pt"
            if file.exists():
                weights, state = torch.load(file)
                self.layers.load_state_dict(weights)
                optimiser.load_state_dict(state)
                yield epoch + 1
                continue
            order, total, seen = random.Random(epoch).sample(examples, len(examples)), 0.0, 0
            for at in range(per_epoch):
                step = epoch * per_epoch + at
                for group in optimiser.param_groups:
                    group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1.0 - step / num_steps)
                for example in order[at * BATCH : (at + 1) * BATCH]:
                    loss = self.compute_loss(example.read())
                    (loss / (100 * BATCH)).backward()  # type: ignore[no-untyped-call]
                    total, seen = total + loss.item(), seen + example.num_tokens
                nn.utils.clip_grad_norm_(self.layers.parameters(), 1.0)
                optimiser.step()
                optimiser.zero_grad()
                if at % 5 == 4 or at + 1 == per_epoch:
                    seconds = time.monotonic() - started
                    say(f"epoch {epoch + 1}: step {at + 1} of {per_epoch}, loss {total / seen:.4f}, {seconds:.0f} s")
            write_whole(file, (self.layers.state_dict(), optimiser.state_dict()))
            yield epoch + 1


def main() -> None:
    """Read, train, count and print the table."""
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    say(describe_machine())
    try:
        how = LoadOptions(context=4096, kv_sequences=1)
        loaded = open_model(options.model, ModelSettings.from_env(os.environ), how)
        trainer = Trainer(loaded.engine.model, find_folder(loaded), options.first_layer)
        check_begun(options)
        cases = draw_cases(0)
        unseen = [case for case in cases if case.repo in UNSEEN]
        made = make_imitations(DEFAULT_CASES / "commits", 10 * options.examples, 5, "train")
        seen = [case for case in [*cases, *made] if case.repo not in UNSEEN]
        tests = read_examples(loaded, unseen, options.tests, options.first_layer, "test", out)
        examples = read_examples(loaded, seen, options.examples, options.first_layer, "train", out)
    except (HunkError, OSError, ValueError) as error:
        sys.exit(str(error))
    num_tokens = sum(each.num_tokens for each in examples)
    say(f"{(time.monotonic() - started) / 60:.0f} minutes for readings; {len(examples)} answers of {num_tokens} tokens")
    rows = [measure(trainer, tests, 0, out)]
    for epoch in trainer.train(examples, options.epochs, out):
        rows.append(measure(trainer, tests, epoch, out) | {"seen": epoch * num_tokens})
        print(render_rows(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
        save_adapter(trainer.layers, out / f"adapter-{epoch}")
    print(render_rows(rows, COLUMNS))
    print(f"{(time.monotonic() - started) / 60:.0f} minutes in all; {count_bytes(trainer.layers) / 1e6:.1f} MB in int8")
    loaded.engine.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/train_adapter", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a Qwen2 or Llama of the catalogue")
    parser.add_argument("--out", type=Path, default=Path("train_adapter"), help="folder of all that is kept")
    parser.add_argument("--examples", type=int, default=160, help="answers to train on; six to nine a minute with AVX2")
    parser.add_argument("--tests", type=int, default=60, help="most answers that are counted")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--first-layer", type=int, default=8, help="the first layer that the adapter changes")
    options = parser.parse_args()
    if min(options.tests, options.epochs, options.first_layer) < 1 or options.examples < BATCH:
        parser.error(f"--tests, --epochs and --first-layer must be at least 1, --examples at least {BATCH}")
    return options


def check_begun(options: argparse.Namespace) -> None:
    """Keep what the run is of; raises ValueError if the folder holds one of another model or other counts."""
    file: Path = options.out / "options.json"
    asked = {name: value for name, value in vars(options).items() if name != "out"}
    begun = json.loads(file.read_text()) if file.exists() else asked
    if begun != asked:
        given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in begun.items())
        raise ValueError(f"{options.out} was begun with {given}; go on with these, or take another --out")
    file.write_text(json.dumps(asked))


def find_folder(loaded: LoadedModel) -> Path:
    """Return the folder with the model's tensors, or of its converted copy."""
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    return find_tensor_folder(resolve(loaded.name, ModelStore(cache_dir)), cache_dir)


def read_examples(
    loaded: LoadedModel, cases: Iterable[Case], limit: int, first_layer: int, kind: str, out: Path
) -> list[Example]:
    """Return up to `limit` examples; readings of an earlier run are not computed again."""
    reader, examples, started = Reader(loaded.engine.model, first_layer, 4096), list[Example](), time.monotonic()
    for number, (case, task, edit) in enumerate(islice(find_edits(loaded, cases), limit)):
        file = out / f"{kind}-{number:04}.pt"
        if not file.exists():
            reading = reader.read(edit.prompt, edit.answer)
            write_whole(file, [getattr(reading, name) for name in Reading.__slots__])
            if number % 10 == 9:
                say(f"{kind}: {number + 1} of {limit} answers read, {time.monotonic() - started:.0f} s")
        readings = task.by_rule.candidates[:OFFERED] if isinstance(task.by_rule, Unresolved) else ()
        is_offered = any(each.text == case.expected for each in readings)
        examples.append(Example(file, is_offered, len(edit.answer)))
    return examples


def measure(trainer: Trainer, tests: Sequence[Example], epoch: int, out: Path) -> dict[str, float]:
    """Return the row of an epoch; 0 is the bare model. What an earlier run has counted is not counted again."""
    file = out / f"tests-{epoch}.json"
    if not file.exists():
        misses = [trainer.count_misses(each.read()) if epoch else each.read().count_misses() for each in tests]
        file.write_text(json.dumps(misses))
    misses, bare = (json.loads((out / f"tests-{number}.json").read_text()) for number in (epoch, 0))
    exact = [count == 0 for count in misses]
    return {
        "epoch": epoch,
        "seen": 0,
        "tests": len(tests),
        "exact": sum(exact),
        "not_offered": sum(right and not each.is_offered for right, each in zip(exact, tests, strict=True)),
        "misses": sum(misses) / len(misses),
        "gained": sum(right and count > 0 for right, count in zip(exact, bare, strict=True)),
        "lost": sum(count == 0 and not right for right, count in zip(exact, bare, strict=True)),
    }


def save_adapter(layers: UpperLayers, folder: Path) -> None:
    """Write the adapter in bf16, as PEFT does."""
    folder.mkdir(exist_ok=True)
    tensors = {
        f"base_model.model.model.layers.{name.replace('/', '.')}.lora_{matrix}.weight": weight.detach().bfloat16()
        for matrix, some in (("A", layers.down), ("B", layers.up))
        for name, weight in some.items()
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE, "bias": "none"}
    config["target_modules"] = [part.rpartition(".")[2] for part in PARTS]
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def count_bytes(layers: UpperLayers) -> int:
    """Return the size of the adapter in int8, with a float32 scale for each row."""
    return sum(each.numel() + 4 * len(each) for each in layers.parameters())


def write_whole(file: Path, content: object) -> None:
    """Save a file by torch, all or nothing."""
    part = file.with_suffix(".part")
    torch.save(content, part)
    part.replace(file)


COLUMNS = {
    "epoch": "{epoch}",
    "tokens seen": "{seen}",
    "tests": "{tests}",
    "written right": "{exact}",
    "not offered": "{not_offered}",
    "gained": "{gained}",
    "lost": "{lost}",
    "wrong tokens a test": "{misses:.2f}",
}


if __name__ == "__main__":
    main()
