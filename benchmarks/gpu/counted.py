"""The least time that the measured things take on a card, counted from the model's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.roofline import Rows, kv_token_bytes, work
from benchmarks.forwards.counting import common_len
from benchmarks.ops.ceilings import Ceilings
from engine.config import ModelConfig
from engine.types import Proposer

PROMPTS = (2048, 8192, 32768)
"""Tokens of the prompts that are prefilled."""

CONTEXT = 2048
"""Tokens before those that are decoded."""

PLAIN = f"plain decoding behind {CONTEXT:,} tokens, tok/s"

PASSES = (1, 64, 256, 512)
"""Rows of the passes that are counted: the pending token and a draft."""

CONTEXTS = (8192, 32768, 131072)
"""Tokens of the prompts whose second turn is measured."""

COLD = "cold"
MODES = (COLD, "exact", "fast", "turbo")
"""A first turn, and the ways of a second."""

CHANGED = 64
"""Tokens of the second turn that are new, in the middle of the prompt."""

SEGMENT = 512
"""Tokens of a segment, the unit that is recomputed around a change."""

ITEM_BYTES = 2
"""bfloat16."""

FASTEST_CLAIM = 10_500
"""Tokens a second that the fastest vendor of applied edits claims; nobody has published how they are measured."""

MOST_DRAFTED = 512
"""Rows of a pass over a draft, where acceptance is counted without a machine's times."""


@dataclass(frozen=True, slots=True)
class CountedPass:
    """A pass over a draft: behind so many tokens of the output, how many it drafts and how many of them are right."""

    num_written: int
    num_drafted: int
    num_accepted: int


def pass_s(config: ModelConfig, rows: Rows, ceilings: Ceilings) -> float:
    """The roofline of one pass."""
    done = work(config, [rows], ITEM_BYTES)
    return max(done.flops / ceilings.flops_s, done.num_bytes / ceilings.copy_bytes_s)


def prefill_tok_s(config: ModelConfig, num_tokens: int, ceilings: Ceilings) -> float:
    """Tokens a second of a prompt in one pass."""
    return num_tokens / pass_s(config, Rows(0, num_tokens), ceilings)


def decode_s(config: ModelConfig, num_rows: int, ceilings: Ceilings) -> float:
    """Seconds of a pass over a token and its draft, all of whose rows get logits."""
    return pass_s(config, Rows(CONTEXT, num_rows, num_rows), ceilings)


def copy_tok_s(config: ModelConfig, prompt_len: int, passes: Sequence[CountedPass], ceilings: Ceilings) -> float:
    """Tokens a second of an output that is written in these passes, behind a prompt that is cached."""
    seconds = sum(
        pass_s(config, Rows(prompt_len - 1 + each.num_written, each.num_drafted + 1, each.num_drafted + 1), ceilings)
        for each in passes
    )
    return sum(each.num_accepted + 1 for each in passes) / seconds


def accepted_passes(proposer: Proposer, target: Sequence[int], most: int = MOST_DRAFTED) -> list[CountedPass]:
    """The passes in which `target` is written where each drafts as much as it may: its acceptance pattern."""
    found: list[CountedPass] = []
    written = 0
    while written < len(target):
        room = min(most, len(target) - written - 1)  # the pass gives one more
        draft = list(proposer.propose(target[:written], room).token_ids)[:room] if room else []
        accepted = common_len(draft, target[written : written + len(draft)])
        found.append(CountedPass(written, len(draft), accepted))
        written += accepted + 1
    return found


def second_turn_s(config: ModelConfig, num_tokens: int, mode: str, ceilings: Ceilings) -> float:
    """Seconds to the first token of a prompt that was run before but for CHANGED tokens in its middle.

    cold: all is run. exact: what stands behind the change, too. fast: the changed segment, and what is stored of the
    rest is read and written. turbo: the same for the changed tokens alone.
    """
    if mode == COLD:
        return pass_s(config, Rows(0, num_tokens), ceilings)
    changed_at = num_tokens // 2
    if mode == "exact":
        return pass_s(config, Rows(changed_at, num_tokens - changed_at), ceilings)
    num_run = (SEGMENT if mode == "fast" else CHANGED) + 1  # the last token is run in any case
    num_placed = num_tokens - changed_at - num_run
    moved_s = 2 * num_placed * kv_token_bytes(config, ITEM_BYTES) / ceilings.copy_bytes_s
    return moved_s + pass_s(config, Rows(num_tokens - num_run, num_run), ceilings)


def bounds(config: ModelConfig, ceilings: Ceilings) -> dict[str, float]:
    """What follows from a model's shape: the most tokens a second, the least ms, by the names that the tables have."""
    found = {prefill_name(num): prefill_tok_s(config, num, ceilings) for num in PROMPTS}
    found[PLAIN] = 1 / decode_s(config, 1, ceilings)
    found |= {pass_name(num): 1e3 * decode_s(config, num, ceilings) for num in PASSES}
    for num in CONTEXTS:
        found |= {turn_name(num, mode): 1e3 * second_turn_s(config, num, mode, ceilings) for mode in MODES}
    return found


def prefill_name(num_tokens: int) -> str:
    """As a table has it."""
    return f"prefill of {num_tokens:,} tokens, tok/s"


def pass_name(num_rows: int) -> str:
    """As a table has it."""
    rows = "1 row" if num_rows == 1 else f"{num_rows} rows"
    return f"pass over {rows} behind {CONTEXT:,} tokens, ms"


def turn_name(num_tokens: int, mode: str) -> str:
    """As a table has it."""
    return f"first token of {num_tokens:,}, {mode}, ms"
