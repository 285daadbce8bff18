"""What the order of files in a prompt saves over a session: `python -m benchmarks.reuse.file_order --session FILE`.

No model runs. A recorded session (records of pi's coding agent) is replayed as if each turn's prompt held the files
that were read or edited in the last `--window` turns, whole, and then a conversation of `--behind` tokens. Counted are
the tokens of both that a prefix cache computes again: all behind the first file that changed, came, went or moved.
Compared are files in the order in which they came with `agent_runtime.session.file_order` at several horizons.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_runtime.doctor.diagnosis import BYTES_PER_TOKEN
from agent_runtime.doctor.transcripts import RecordedSession, read_session
from agent_runtime.session.file_order import HORIZON_TURNS, ChangeRates, FileCost, choose_order

HORIZONS = (0, 1, HORIZON_TURNS, 10, 30, 100)
UNREAD_TOKENS = 300
"""Of a file that was written and never read."""


@dataclass(frozen=True, slots=True)
class FileUse:
    """The paths that one turn read and edited."""

    read: tuple[str, ...]
    edited: tuple[str, ...]


def uses_of(session: RecordedSession) -> tuple[list[FileUse], dict[str, int]]:
    """What each turn did, and about how many tokens each file has: those of the longest read."""
    uses: list[FileUse] = []
    tokens: dict[str, int] = {}
    asked: list[str] = []
    for message in session.turns[-1].messages:
        if message.role == "tool" and asked:
            path = asked.pop(0)
            tokens[path] = max(tokens.get(path, 0), round(len(message.text.encode()) / BYTES_PER_TOKEN))
        elif message.role == "assistant":
            calls = [
                (call.name, str(call.arguments["path"]))
                for call in message.tool_calls
                if not isinstance(call.arguments, str) and "path" in call.arguments
            ]
            asked = [path if name == "read" else "" for name, path in calls]
            edited = tuple(path for name, path in calls if name in ("edit", "write"))
            uses.append(FileUse(tuple(path for name, path in calls if name == "read"), edited))
    return uses, tokens


def replay(
    uses: Sequence[FileUse], tokens: dict[str, int], *, window: int, behind: int, horizon: float | None
) -> tuple[int, int]:
    """Tokens computed again over all turns, and how often files changed places; without a horizon none ever does."""
    rates = ChangeRates()
    order: list[str] = []
    last: dict[str, int] = {}
    total = moves = 0
    for turn, use in enumerate(uses):
        last.update(dict.fromkeys((*use.read, *use.edited), turn))
        seen = [path for path, when in last.items() if turn - when <= window]
        rates.observe(seen, use.edited)
        files = {path: FileCost(tokens.get(path, UNREAD_TOKENS), rates.estimate_chance(path)) for path in seen}
        num_cached = 0
        for path in order:
            if path not in files or path in use.edited:
                break
            num_cached += files[path].num_tokens
        kept = [path for path in order if path in files]
        new = [*kept, *(path for path in files if path not in kept)]
        if horizon is not None:
            new = choose_order(kept, files, num_cached=num_cached, num_behind=behind, horizon=horizon)
        moves += [path for path in new if path in kept] != kept
        shared = 0
        for one, other in zip(new, order, strict=False):
            if one != other:
                break
            shared += files[one].num_tokens
        whole = sum(file.num_tokens for file in files.values())
        same = min(shared, num_cached)
        total += whole - same + behind if same < whole else 0
        order = new
    return total, moves


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--session", type=Path, required=True, metavar="FILE")
    parser.add_argument("--window", type=int, default=60, metavar="TURNS")
    parser.add_argument("--behind", type=int, default=8000, metavar="TOKENS")
    options = parser.parse_args(arguments)
    uses, tokens = uses_of(read_session(options.session))
    print(f"{len(uses)} turns, {len(tokens)} files that were read, {sum(len(use.edited) for use in uses)} edits")
    print("| order | tokens computed again | of the first row | moves |\n| --- | --- | --- | --- |")
    first = 0
    for name, horizon in [("as they came", None), *((f"horizon {each}", float(each)) for each in HORIZONS)]:
        total, moves = replay(uses, tokens, window=options.window, behind=options.behind, horizon=horizon)
        first = first or total
        print(f"| {name} | {total:,} | {total / max(1, first):.3f} | {moves} |")


if __name__ == "__main__":
    main()
