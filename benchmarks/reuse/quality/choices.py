"""What may be run again beside what an edit changed: from the syntax around it, by nearness, and by oracles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.reuse.quality.layout import LaidOutProbe, merged
from benchmarks.reuse.quality.scoring import Setting, with_mode
from engine.decoder import Decoder, Pass
from engine.reuse import Reuse

Ranges = list[tuple[int, int]]

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Of the file's tokens behind the edit, in choices that rank them."""

NOTHING, EVERYTHING = "nothing", "all"


@dataclass(frozen=True, slots=True)
class Oracle:
    """What only a full recompute can tell of the file's tokens behind an edit, [num_behind] each.

    attention: how much of the question's attention falls on them, summed over its tokens, a mean of layers and heads.
    deviation: how far their values in layer 1 are from those of the turn before (CacheBlend, arXiv 2405.16444).
    """

    attention: NDArray[np.float64]
    deviation: NDArray[np.float64]


class AttentionDecoder(Decoder):
    """A decoder that sums up where the last tokens of a pass look, on the same weights and scratch memory."""

    def __init__(self, decoder: Decoder, num_last: int) -> None:
        self.__dict__.update(decoder.__dict__)
        self._num_last = num_last
        self.mass: Tensor | None = None

    def _look_back(self, index: int, query: Tensor, pass_: Pass) -> Tensor:
        ((keys, _),) = pass_.kv.runs(index, 0)  # [num_keys, num_kv_heads, head_dim]
        group = self.config.num_heads // self.config.num_kv_heads
        last = query[-self._num_last :].transpose(0, 1).to(torch.float32)
        wide = keys.transpose(0, 1).repeat_interleave(group, 0).to(torch.float32)
        scores = last @ wide.transpose(1, 2) * self.config.head_dim**-0.5
        rows = torch.arange(len(keys) - last.shape[1], len(keys))
        scores.masked_fill_(torch.arange(len(keys)) > rows[:, None], -torch.inf)
        mass = scores.softmax(-1).sum(1).mean(0) / self.config.num_layers
        self.mass = mass if self.mass is None else self.mass + mass
        return super()._look_back(index, query, pass_)


def oracle(decoder: Decoder, probe: LaidOutProbe) -> Oracle:
    """A pass over the prompt behind the edit, and one through two layers over the turn before it."""
    watching = AttentionDecoder(decoder, len(probe.tail))
    first, end = probe.changed[1], probe.tail_start
    shift = len(probe.before.token_ids) - len(probe.after.token_ids)
    new = _layer_values(watching, probe.prompt)[first:end]
    assert watching.mass is not None
    old = _layer_values(ShallowDecoder(decoder), probe.first_prompt)[first + shift : end + shift]
    return Oracle(watching.mass[first:end].double().numpy(), (new - old).norm(dim=-1).double().numpy())


class ShallowDecoder(Decoder):
    """The first two layers of a decoder, for their keys and values."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self.weights = replace(decoder.weights, layers=decoder.weights.layers[:2])


def _layer_values(decoder: Decoder, token_ids: list[int]) -> Tensor:
    """Of layer 1, [num_tokens, num_kv_heads * head_dim] in float32."""
    caches = decoder.new_caches(1, len(token_ids))
    decoder.forward(torch.tensor(token_ids), caches)
    _, values = caches[1].run(0)
    return values.flatten(1).to(torch.float32)


def syntactic(probe: LaidOutProbe) -> dict[str, Ranges]:
    """What the syntax tells: parts of the file behind the edit, which may be empty."""
    end = probe.changed[1]
    inside = max(probe.changed[0], end - 1)
    around = sorted((each for each in probe.definitions if each[0] <= inside < each[1]), key=_length)
    naming = list(_lines_naming(probe))
    holders = [min(found, key=_length) for line in naming if (found := _holding(probe, line))]
    span = [(end, next(each for each in probe.segment_ends if each > inside))]
    definition = [(end, around[0][1])] if around else span
    outermost = [(end, around[-1][1])] if around else span
    return {
        "rest of the line": [_line(probe)],
        "rest of the span": span,
        "rest of the definition": definition,
        "rest of the outermost definition": outermost,
        "lines that name a symbol": naming,
        "span and lines": span + naming,
        "span and definitions that name it": span + holders,
    }


def ranked(probe: LaidOutProbe, known: Oracle) -> Mapping[str, NDArray[np.int64]]:
    """Positions behind the edit, best first."""
    behind = np.arange(probe.changed[1], probe.tail_start)
    return {
        "next tokens": behind,
        "attention of the question": behind[np.argsort(-known.attention, kind="stable")],
        "deviation of values in layer 1": behind[np.argsort(-known.deviation, kind="stable")],
    }


def settings(probe: LaidOutProbe, known: Oracle, shares: Sequence[float] = SHARES) -> dict[str, Setting]:
    """Every choice on one probe, by a name that ends in the share where it has one."""
    found = {NOTHING: _asking([]), EVERYTHING: _asking([(probe.changed[1], probe.tail_start)])}
    for name, ranges in syntactic(probe).items():
        found[name] = _asking(merged(_behind(probe, ranges)))
    for name, order in ranked(probe, known).items():
        for share in shares:
            chosen = np.sort(order[: round(share * len(order))]).tolist()
            found[f"{name} {share:.0%}"] = _asking(merged([(at, at + 1) for at in chosen]))
    return found


def _asking(ranges: Ranges) -> Setting:
    return lambda probe: with_mode(Reuse("turbo", recompute=tuple(ranges)), probe)


def _behind(probe: LaidOutProbe, ranges: Ranges) -> Ranges:
    """What of them lies behind the edit and in the file."""
    return [(max(first, probe.changed[1]), min(end, probe.tail_start)) for first, end in ranges]


def _line(probe: LaidOutProbe) -> tuple[int, int]:
    text, at = probe.probe.after, min(probe.probe.edit_start, len(probe.probe.after) - 1)
    end = text.find("\n", at)
    return probe.tokens(text.rfind("\n", 0, at) + 1, len(text) if end < 0 else end + 1)


def _lines_naming(probe: LaidOutProbe) -> Iterator[tuple[int, int]]:
    """The lines that hold one of the edit's symbols, in tokens."""
    at = 0
    for line in probe.probe.after.splitlines(keepends=True):
        if any(re.search(rf"\b{re.escape(symbol)}\b", line) for symbol in probe.probe.symbols):
            yield probe.tokens(at, at + len(line))
        at += len(line)


def _holding(probe: LaidOutProbe, tokens: tuple[int, int]) -> Ranges:
    return [(tokens[0], end) for first, end in probe.definitions if first <= tokens[0] < end]


def _length(tokens: tuple[int, int]) -> int:
    return tokens[1] - tokens[0]
