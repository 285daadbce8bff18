"""Holds the timed part: our engine and the peers in processes of their own, on edits and on turns of the sessions."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from random import Random

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import ModelSettings
from benchmarks.engine.__main__ import is_there
from benchmarks.engine.contestants import entrants
from benchmarks.peers.contestant import ContestantFailed
from benchmarks.reuse.counting import Prompt
from benchmarks.reuse.pairs import EditPair, edit_pairs
from benchmarks.reuse.prompts import Prompts
from benchmarks.reuse.timing import PairTimes, measure
from engine.reuse import PromptSegment

CONTEXT = 16_384


def hold(
    options: argparse.Namespace, prompts: Prompts, made: Mapping[str, Sequence[Prompt]]
) -> tuple[list[PairTimes], dict[str, int], list[str]]:
    """The times, our memory, and what took part; ends the program where our engine cannot be run."""
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    peers = [name for name in options.peers.split(",") if name and is_there(name, cache_dir)]
    pairs = edit_pairs(prompts.tokenizer, options.pairs, options.seed)
    pairs += sampled_turns(made, options.turns, options.seed)
    print(f"{options.model}: loading in {', '.join(['hunk', *peers])}", file=sys.stderr, flush=True)
    try:
        with entrants(options.model, CONTEXT, peers, cache_dir, module="benchmarks.reuse.ours") as found:
            most = min(CONTEXT, found.config.max_positions)
            times = measure(found.ours, found.peers, fitting(pairs, most), options.modes, options.rounds)
            return times, found.ours.ask("memory"), [one.version for one in found.all]
    except (ContestantFailed, ModelUnavailable) as error:
        sys.exit(str(error))


def sampled_turns(made: Mapping[str, Sequence[Prompt]], count: int, seed: int) -> list[EditPair]:
    """Turns of the sessions, each with the one before it and its answer: so many of either kind.

    One kind goes on from the turn before, of the other the prompt was compacted in between.
    """
    random = Random(f"turns\0{seed}")
    kinds: dict[str, list[EditPair]] = {"turn": [], "compacted": []}
    for name, prompts in made.items():
        for number in range(1, len(prompts)):
            before, now = prompts[number - 1], prompts[number]
            first = (*before.segments, PromptSegment(before.answer_ids))
            kind = "compacted" if now.compacted else "turn"
            kinds[kind].append(EditPair(f"{name[:24]}:{number}", kind, first, tuple(now.segments)))
    return [pair for found in kinds.values() for pair in random.sample(found, min(count, len(found)))]


def fitting(pairs: Sequence[EditPair], context: int) -> list[EditPair]:
    """Those whose prompts, and a token after them, fit a model's context; the others are named."""
    found = []
    for pair in pairs:
        longest = 1 + max(sum(len(segment.token_ids) for segment in prompt) for prompt in pair.prompts)
        if longest <= context:
            found.append(pair)
        else:
            print(f"{pair.id} is left out: {longest} tokens do not fit the model's {context}", file=sys.stderr)
    return found
