"""Measure quality and speed of quantised weights and KV: `python -m benchmarks.quantize --model M [--json OUT]`.

All schemes run in one process on the same texts, in turns with weights as they are (`none`). Quality is of every next
token in the first `--tokens` tokens of each text: the Kullback-Leibler divergence of the quantised model's distribution
from that of weights as they are (in nats), how often the likeliest token is the same, and the perplexity. The texts are
modules of Python's standard library, which lie on every machine; `--text` gives others. Speed is of forward passes over
1 to 512 tokens after a prefix of 256: the least time of several, of `none` divided by the scheme's. The last scheme is
what KV in int8 would be without powers of two that share out large biases of keys.
"""

from __future__ import annotations

import heapq
import os
import shlex
import textwrap
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_runtime.models.config import DEFAULT_MODEL, LoadOptions, ModelSettings, Quantize
from agent_runtime.models.loader import LoadedModel
from agent_runtime.wiring import open_model
from benchmarks.harness import describe_machine, make_parser, render_rows, write_json
from engine.decoder import Decoder

WEIGHTS: tuple[Quantize, ...] = ("none", "int8", "int4")
KV_INT8, UNSCALED = "int8 KV", "int8 KV, biases as they are"
SCHEMES = (*WEIGHTS, KV_INT8, UNSCALED)
"""The last two have the weights of `none`."""

TEXTS = tuple(Path(str(module.__file__)) for module in (heapq, textwrap, shlex))
LOGIT_ROWS = 64
"""Positions whose logits are held at a time."""

PREFIX_LEN = 256
PASS_SIZES = (1, 4, 16, 64, 512)
REPEATS = 7

COLUMNS = {
    "scheme": "{scheme}",
    "GB a row reads": "{weights_gb:n}",
    "KL mean": "{kl_mean:n}",
    "KL p99": "{kl_p99:n}",
    "top-1 alike": "{top1:.3f}",
    "perplexity": "{perplexity:n}",
    "decode tok/s": "{decode_tok_s:n}",
    **{f"x at {size}": f"{{speed_{size}:n}}" for size in PASS_SIZES},
}


@dataclass(slots=True)
class Quality:
    """What is found position by position, against the reference."""

    kls: list[Tensor] = field(default_factory=list)
    alike: list[Tensor] = field(default_factory=list)
    surprisals: list[Tensor] = field(default_factory=list)

    def add(self, reference: Tensor, logits: Tensor, next_ids: Tensor) -> None:
        """Logits [num_rows, vocab_size] of both, and the tokens int64 [num_rows] that do follow."""
        expected, actual = reference.float().log_softmax(dim=-1), logits.float().log_softmax(dim=-1)
        self.kls.append((expected.exp() * (expected - actual)).sum(dim=-1))
        self.alike.append((expected.argmax(dim=-1) == actual.argmax(dim=-1)).float())
        self.surprisals.append(-actual.gather(1, next_ids[:, None])[:, 0])

    def summary(self) -> dict[str, float]:
        """Means over all positions, and the divergence that one position in a hundred exceeds."""
        kls = torch.cat(self.kls)
        return {
            "kl_mean": float(kls.mean()),
            "kl_p99": float(kls.quantile(0.99)),
            "top1": float(torch.cat(self.alike).mean()),
            "perplexity": float(torch.cat(self.surprisals).mean().exp()),
        }


@torch.inference_mode()
def measure_quality(decoders: Sequence[Decoder], texts: Sequence[Sequence[int]]) -> list[Quality]:
    """Of each decoder against the first, which is among them; texts as token ids."""
    found = [Quality() for _ in decoders]
    for token_ids in texts:
        ids = torch.tensor(token_ids)
        hidden = [decoder.forward(ids[:-1], decoder.new_caches(1, len(ids))) for decoder in decoders]
        for start in range(0, len(ids) - 1, LOGIT_ROWS):
            rows = slice(start, start + LOGIT_ROWS)
            reference = decoders[0].logits(hidden[0][rows])
            for quality, decoder, states in zip(found, decoders, hidden, strict=True):
                quality.add(reference, decoder.logits(states[rows]), ids[1:][rows])
    return found


@torch.inference_mode()
def measure_passes(decoders: Sequence[Decoder], sizes: Sequence[int], repeats: int) -> list[list[float]]:
    """Least seconds of a pass over each number of tokens with its last token's logits, for each decoder, in turns."""
    vocab_size = decoders[0].config.vocab_size
    ids = torch.randint(vocab_size, (PREFIX_LEN + max(sizes),), generator=torch.Generator().manual_seed(0))
    caches = [decoder.new_caches(1, len(ids)) for decoder in decoders]
    for decoder, cache in zip(decoders, caches, strict=True):
        decoder.forward(ids[:PREFIX_LEN], cache)
    least = [[float("inf")] * len(sizes) for _ in decoders]
    for number, size in enumerate(sizes):
        for _ in range(repeats):
            for index, decoder in enumerate(decoders):
                started = time.perf_counter()
                decoder.logits(decoder.forward(ids[PREFIX_LEN : PREFIX_LEN + size], caches[index])[-1:])
                least[index][number] = min(least[index][number], time.perf_counter() - started)
                for layer in caches[index]:
                    layer.truncate(0, PREFIX_LEN)
    return least


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and write the JSON."""
    parser = make_parser("quantize", __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a catalogue name or path")
    parser.add_argument("--text", type=Path, nargs="+", default=TEXTS, metavar="FILE", help="texts of the quality")
    parser.add_argument("--tokens", type=int, default=1024, metavar="N", help="of each text, at most")
    options = parser.parse_args(arguments)
    if options.tokens < 2:
        parser.error("--tokens: give 2 or more; every token but the first is predicted")
    loaded = [_load(options.model, scheme) for scheme in WEIGHTS]
    tokenizer = loaded[0].text.tokenizer
    texts = [tokenizer.encode(path.read_text(encoding="utf-8"))[: options.tokens] for path in options.text]
    texts = [token_ids for token_ids in texts if len(token_ids) > 1]
    if not texts:
        parser.error("--text: the files hold less than two tokens")
    decoders = [model.engine.model for model in loaded]
    decoders += [store_kv_in_int8(decoders[0], shares_biases=scheme == KV_INT8) for scheme in (KV_INT8, UNSCALED)]
    rows = _rows(decoders, measure_quality(decoders, texts), measure_passes(decoders, PASS_SIZES, REPEATS))
    names = ", ".join(path.name for path in options.text)
    num_tokens = sum(map(len, texts))
    print(f"{loaded[0].name}, {num_tokens} tokens of {names}; {describe_machine()}\n\n{render_rows(rows, COLUMNS)}")
    summary = {"model": loaded[0].name, "machine": describe_machine(), "texts": names, "num_tokens": num_tokens}
    summary |= {f"{row['scheme']}_{key}": row[key] for row in rows for key in row if key != "scheme"}
    write_json(options.json, summary, rows)
    return 0


def _load(name: str, scheme: Quantize) -> LoadedModel:
    return open_model(name, ModelSettings.from_env(os.environ), LoadOptions(context=256, quantize=scheme))


def store_kv_in_int8(decoder: Decoder, *, shares_biases: bool = True) -> Decoder:
    """Return a decoder on the same weights and memory whose keys and values are in int8. shares_biases: keys are
    divided by powers of two where biases are large, as usual.
    """
    other, weights = copy(decoder), decoder.weights
    layers = weights.layers
    if not shares_biases:
        layers = tuple(replace(layer, key_scales=None, key_bias=None) for layer in layers)
    other.weights = replace(weights, layers=layers, kv_format=replace(weights.kv_format, is_int8=True))
    return other


def _rows(
    decoders: Sequence[Decoder], qualities: Sequence[Quality], seconds: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    return [
        {
            "scheme": scheme,
            "weights_gb": decoder.weights.num_bytes / 1e9,
            **quality.summary(),
            "decode_tok_s": 1 / times[0],
            **{f"speed_{size}": seconds[0][index] / times[index] for index, size in enumerate(PASS_SIZES)},
        }
        for scheme, decoder, quality, times in zip(SCHEMES, decoders, qualities, seconds, strict=True)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
