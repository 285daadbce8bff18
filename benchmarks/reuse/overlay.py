"""Do models follow notes on a file (mode `balanced`): `python -m benchmarks.reuse.overlay --model M`.

The probes are those of benchmarks/reuse/quality whose answer an edit changes. Each is asked twice in a session of
`agent_runtime.session`: with the file written anew (`full`), and with the file as it was before the edit and a note
behind it (`overlay`), alone and among notes on as many other lines as it takes for the notes to be a share of the file
(`--shares`). Counted are answers that begin with the right value, with the one before the edit (stale), or with
neither.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from math import inf
from pathlib import Path
from random import Random

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.process import settle
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.session import HistoryMessage, PromptLayout
from agent_runtime.session.change_notes import diff_lines, split_lines
from agent_runtime.types import ReuseName
from benchmarks.machine import describe
from benchmarks.reuse.quality.probe import SENSITIVE, Probe
from benchmarks.reuse.quality.probes import MAKERS, make_probes
from repo_cache.tokenizer import BPETokenizer

ANSWER_TOKENS = 24
SHARES = (0.0, 0.25, 0.5)
FIRST_QUESTION = "Does this file look complete? Answer in one word."
MARK = "  # checked"
"""What the other edits add to lines."""

Row = dict[str, str | float]


def sensitive_probes(count: int, seed: int) -> Iterator[Probe]:
    """So many of each kind whose answer the edit changes; one of each kind first, so that a run may be cut short."""
    by_kind = [make_probes(kind, count, seed) for kind in MAKERS]
    for probe in chain.from_iterable(zip_longest(*by_kind)):
        if probe is not None and probe.probe_class in SENSITIVE:
            yield probe


def with_other_edits(probe: Probe, num_edits: int, random: Random) -> str:
    """The new file with as many further lines changed, none near the probe's edit or another."""
    old, new = split_lines(probe.before), split_lines(probe.after)
    changed = [line for edit in diff_lines(new, old) for line in range(edit.first, edit.end + 1)]
    free = [line for line, text in enumerate(new) if text.strip() and all(abs(line - other) > 6 for other in changed)]
    chosen: list[int] = []
    for line in random.sample(free, len(free)):
        if len(chosen) < num_edits and all(abs(line - other) > 6 for other in chosen):
            chosen.append(line)
    return "".join(text.rstrip("\n") + MARK + "\n" if line in chosen else text for line, text in enumerate(new))


def asked(
    template: ChatTemplate, tokenizer: BPETokenizer, probe: Probe, after: str, mode: ReuseName
) -> tuple[list[int], float]:
    """The second turn's prompt, and how many tokens its notes take for each of the file's."""
    session = PromptLayout(template, tokenizer, preamble="You answer questions about code.", rebase_share=inf)
    session.build_prompt({probe.file_name: probe.before}, (), FIRST_QUESTION, mode)
    history = [HistoryMessage("user", FIRST_QUESTION), HistoryMessage("assistant", "Yes.")]
    prompt = session.build_prompt({probe.file_name: after}, history, probe.question, mode)
    lengths = {
        part.name: part.end - first
        for first, part in zip([0, *(part.end for part in prompt.parts)], prompt.parts, strict=False)
    }
    plain = PromptLayout(template, tokenizer, preamble="You answer questions about code.")
    bare = plain.build_prompt({probe.file_name: after}, history, probe.question)
    notes = lengths["2"] - (bare.parts[-1].end - bare.parts[-2].end)
    begun = tokenizer.encode(probe.begun) if probe.begun else []
    return [*prompt.token_ids, *begun], notes / lengths[probe.file_name]


def measure(
    probes: Sequence[Probe],
    template: ChatTemplate,
    tokenizer: BPETokenizer,
    answer: Callable[[list[int]], str],
    shares: Sequence[float] = SHARES,
    seed: int = 0,
) -> list[Row]:
    """A row a probe: what came of it with the file written anew, and under notes of each share."""
    rows: list[Row] = []
    for number, probe in enumerate(probes):
        prompt, _ = asked(template, tokenizer, probe, probe.after, "exact")
        row: Row = {"kind": probe.kind, "class": probe.probe_class, "full": probe.judged(answer(prompt))}
        for share in shares:
            random, num_edits, taken = Random(f"{seed} {number}"), 0, 0.0
            prompt, taken = asked(template, tokenizer, probe, probe.after, "balanced")
            one = taken
            if share > taken:
                num_edits = round((share - taken) / max(one, 0.01))
                after = with_other_edits(probe, num_edits, random)
                prompt, taken = asked(template, tokenizer, probe, after, "balanced")
            row[f"overlay {share}"] = probe.judged(answer(prompt))
            row[f"taken {share}"] = round(taken, 3)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """Shares of right and stale answers, by class and by kind."""
    settings = ["full", *(key for key in rows[0] if key.startswith("overlay"))]
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups["all"].append(row)
        groups[str(row["class"])].append(row)
        groups[f"- {row['kind']}"].append(row)
    lines = ["| probes | number | " + " | ".join(settings) + " |", "| --- " * (2 + len(settings)) + "|"]
    for name, group in groups.items():
        cells = []
        for setting in settings:
            counts = Counter(str(row[setting]) for row in group)
            cells.append(f"{counts['right'] / len(group):.2f} / {counts['stale'] / len(group):.2f}")
        lines.append(f"| {name} | {len(group)} | " + " | ".join(cells) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the table (right / stale)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", metavar="M")
    parser.add_argument("--probes", type=int, default=6, metavar="N", help="of each kind")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(arguments)
    settle()
    from agent_runtime.wiring import open_model  # loads torch
    from engine.types import GenerationRequest

    loaded = open_model(options.model, ModelSettings.from_env(os.environ), LoadOptions(context=8192))
    text = loaded.text

    def answer(prompt: list[int]) -> str:
        result = loaded.engine.run(GenerationRequest(prompt, ANSWER_TOKENS, stop_ids=text.stop_ids))
        return text.tokenizer.decode(result.token_ids)

    with loaded.engine:
        probes = list(sensitive_probes(options.probes, options.seed))
        rows = measure(probes, text.template, text.tokenizer, answer, options.shares, options.seed)
    print(f"{options.model}, right / stale answers; {describe()}")
    print("\n".join(table(rows)))
    if options.json:
        options.json.write_text(json.dumps({"summary": {"model": options.model}, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
