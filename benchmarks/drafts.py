"""Measure drafts of new code: `python -m benchmarks.drafts --draft-model qwen2.5-coder-0.5b`.

Every case is one request, prompt and all, written in turns: plainly, a token a pass; with today's draft, which copies
from the prompt (of an edit: from its merges, the file and the edit); and with that draft and the draft model. The
requests of a case are of one kind:

    function    code that a real commit added to a file, asked for by its first line
    tests       unit tests of a file
    chat        how a part of a file could be better, as code and prose
    prose       what a file does, without code
    edit        a lazy edit of a file of 50 lines, which is nearly all copy

All ways write the same text but for near ties of rounding; `same` are the tokens up to there. So seconds are compared
for each token of the answer, the prompt's included. Of the summary, `free_code_ratio` is the plain seconds by those
with all drafts, over the cases of new code (function and tests); `worst_ratio` that of the case where it is least;
`copy_ratio` the seconds of today's draft by those with all drafts, over the edits; `forwards_per_token` is that of new
code. Without `--draft-model`, all drafts are today's.

Beside what the draft model drafted stands the bound: with tokens that are right as often as those were (each with the
same probability, of which the accepted ones of a pass are the sum of powers), and the measured seconds of passes, no
constant length gives more than that many times plain decoding.

The machine's speed drifts, so the ways are run in turns, and every case and round begins with another one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rapidfuzz.distance import Indel

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError
from agent_runtime.llm.chat import build_draft, encode_prompt
from agent_runtime.llm.interface import ChatMessage
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.types import ApplyRequest
from agent_runtime.wiring import open_model
from benchmarks.cases import DEFAULT_CASES
from benchmarks.copy.cases import CopyCase, draw_cases
from benchmarks.copy.ours import CapturedRequest, RequestCapture
from benchmarks.harness import Row, describe_machine, group_by, make_parser, render_rows, say, warn_if_busy, write_json
from benchmarks.snippets import read_pairs
from engine.engine import Engine
from engine.speculation.draft_state import DRAFT_MODEL, MOST_BY_MODEL, compute_token_seconds
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest, Proposer, count_common_prefix

COMMITS = DEFAULT_CASES / "commits"
FILES = ("pairs.jsonl.gz", "languages.jsonl.gz")

KINDS = ("function", "tests", "chat", "prose", "edit")
NEW_CODE = ("function", "tests")

QUESTIONS = {
    "function": "Something is to be added to this file that begins with `{first}`. Write what is to be added, "
    "complete, and nothing else.",
    "tests": "Write unit tests for this file. Write only code.",
    "chat": "How would you improve the error handling of this file? Show the code of one part that you would change, "
    "and say why.",
    "prose": "Explain to a new colleague in a few paragraphs what this file does. Write no code.",
}

SYSTEM = "You are a coding assistant."
BYTES = (1500, 4500)
"""Of a file that is asked about: about 400 to 1,200 tokens."""

ADDED_LINES = (12, 50)
"""Of a function that a commit added."""

EDITED_LINES = 50

DEFINES = ("def ", "class ", "func ", "fn ", "function ")

WAYS = ("plain", "copy", "model")
COUNTS = ("forwards", "drafted", "accepted")


@dataclass(frozen=True, slots=True)
class DraftCase:
    """One request. Each call of `draft` makes the drafter that it has today."""

    kind: str
    name: str
    request: GenerationRequest
    draft: Callable[[], Proposer | None]


@dataclass(frozen=True, slots=True)
class Written:
    """What one way of writing a case took."""

    token_ids: tuple[int, ...]
    seconds: float
    decode_s: float
    forwards: int
    sources: Mapping[str, Mapping[str, int]]


def main() -> None:
    """Measure, print the tables and write the JSON."""
    options = _options()
    settings = ModelSettings.from_env(os.environ)
    print(describe_machine(), flush=True)
    load = warn_if_busy()
    how = LoadOptions(quantize=options.quantize, context=8192, kv_sequences=1, draft_model=options.draft_model)
    try:
        loaded = open_model(options.model, settings, how)
        cases = list(make_cases(loaded, options))
    except (HunkError, OSError, ValueError) as error:
        sys.exit(str(error))
    contest = Contest(loaded, options.rounds)
    rows = list(contest.hold(cases))
    stats = loaded.engine.stats()
    contest.close()
    facts = {
        "model": options.model,
        "draft_model": options.draft_model,
        "precision": loaded.engine.model.precision.describe(),
        "precision_of_draft": None if loaded.draft_model is None else loaded.draft_model.describe(),
        "machine": describe_machine(),
        "load_at_start": load,
        "seed": options.seed,
    }
    print(render_tables(rows, stats.step_times, stats.draft_times), flush=True)
    if options.plot is not None:
        write_plot(rows, options.plot)
    summary = summarise(rows)
    print(json.dumps(summary))
    write_json(options.json, summary | facts, rows)


def _options() -> argparse.Namespace:
    parser = make_parser("drafts", __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument("--draft-model", help="the same, of a smaller model with the same tokenizer; without: none")
    parser.add_argument("--quantize", choices=["auto", "none", "int8", "int4"], default="auto", help="of the model")
    parser.add_argument("--limit", type=int, default=4, help="cases of each kind")
    parser.add_argument("--only", default=",".join(KINDS), help=f"kinds, by commas: {','.join(KINDS)}")
    parser.add_argument("--tokens", type=int, default=256, help="the most of an answer; an edit has its own limit")
    parser.add_argument("--rounds", type=int, default=1, help="how often each case is written; the median counts")
    parser.add_argument("--seed", type=int, default=1, help="which files are drawn")
    parser.add_argument("--plot", type=Path, help="write tokens a second by kind there, as a PNG file")
    options = parser.parse_args()
    options.kinds = [name for name in options.only.split(",") if name]
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if min(options.limit, options.tokens, options.rounds) < 1:
        parser.error("--limit, --tokens and --rounds must be at least 1")
    return options


# The cases.


def make_cases(loaded: LoadedModel, options: argparse.Namespace) -> Iterator[DraftCase]:
    """Yield the cases of the kinds that are asked for, each about a file of another repository."""
    asked = [kind for kind in options.kinds if kind != "edit"]
    for kind, path, text, question in draw_questions(read_commits(), asked, options.limit, options.seed):
        messages = [
            ChatMessage("system", SYSTEM),
            ChatMessage("user", f"The file {path}:\n```\n{text}\n```\n{question}"),
        ]
        prompt = encode_prompt(loaded.text, messages)
        request = GenerationRequest(prompt, options.tokens, stop_ids=loaded.text.stop_ids)
        yield DraftCase(kind, path, request, _make_copier(loaded, prompt, options.tokens))
    if "edit" in options.kinds:
        cells = [(EDITED_LINES, 1 + number % 3) for number in range(options.limit)]
        for drawn in draw_cases(read_pairs(DEFAULT_CASES), cells, options.seed):
            case = next(drawn)
            captured = ask_apply(loaded, case)
            yield DraftCase("edit", f"{case.path}, {case.style}", captured.request, _make_merger(loaded, case))


def read_commits() -> list[dict[str, Any]]:
    """Return the pairs of files of real commits; raises OSError where they are absent."""
    found = []
    for name in FILES:
        with gzip.open(COMMITS / name, "rt", encoding="utf-8") as file:
            found += [json.loads(line) for line in file]
    return found


def draw_questions(
    pairs: Sequence[Mapping[str, Any]], kinds: Sequence[str], limit: int, seed: int
) -> Iterator[tuple[str, str, str, str]]:
    """Yield (kind, path, text, question): `limit` of each kind, the kinds in turns, each of another repository."""
    drawn = list(pairs)
    random.Random(seed).shuffle(drawn)
    left, seen = [kind for _ in range(limit) for kind in kinds], set[str]()
    for pair in drawn:
        text, first = pair["original"], _find_added(pair)
        if pair["repo"] in seen or not BYTES[0] <= len(text) <= BYTES[1]:
            continue
        kind = next((kind for kind in left if kind != "function" or first), None)
        if kind is not None:
            left.remove(kind)
            seen.add(pair["repo"])
            yield kind, pair["path"], text, QUESTIONS[kind].format(first=first)


def _find_added(pair: Mapping[str, Any]) -> str:
    """Return the first line of a definition that a commit added, "" if it added none of a fair size."""
    before, after = pair["original"].splitlines(), pair["expected"].splitlines()
    for op in Indel.opcodes(before, after):
        added = after[op.dest_start : op.dest_end]
        if op.tag == "insert" and ADDED_LINES[0] <= len(added) <= ADDED_LINES[1]:
            first = next((line.strip() for line in added if line.strip().startswith(DEFINES)), "")
            if first:
                return first
    return ""


def _make_copier(loaded: LoadedModel, prompt: Sequence[int], max_tokens: int) -> Callable[[], Proposer]:
    return lambda: build_draft(loaded.text, prompt, "", max_tokens)


def _make_merger(loaded: LoadedModel, case: CopyCase) -> Callable[[], Proposer | None]:
    return lambda: ask_apply(loaded, case).proposer


def ask_apply(loaded: LoadedModel, case: CopyCase) -> CapturedRequest:
    """Return what an apply of the case asks the engine for."""
    capture = cast(Engine, RequestCapture(loaded.engine.max_seq_len))
    merger = ModelMerger(LoadedModel(loaded.name, capture, loaded.text, 0.0, 0))
    request = ApplyRequest(
        case.before.encode(), case.edit, path=case.path, format="lazy", mode="model", decide="generate"
    )
    try:
        Applier(lambda: merger).apply(request)
    except CapturedRequest as captured:
        return captured
    raise ValueError(f"the rules decide {case.name}, and no model was asked")


# The measurement.


class Contest:
    """Writes cases in all ways, on two engines that share the model: one has the draft model."""

    def __init__(self, loaded: LoadedModel, rounds: int) -> None:
        self._engine = loaded.engine
        self._plain = Engine(loaded.engine.model, loaded.text.tokenizer.token_bytes(), loaded.engine.config)
        self._rounds = rounds
        self._ways = WAYS if loaded.draft_model is not None else WAYS[:2]

    def hold(self, cases: Sequence[DraftCase]) -> Iterator[Row]:
        """Yield a row for each case."""
        for number, case in enumerate(cases):
            written: dict[str, list[Written]] = {way: [] for way in self._ways}
            for turn in range(number, number + self._rounds):
                first = turn % len(self._ways)
                for way in self._ways[first:] + self._ways[:first]:
                    written[way].append(self._write(case, way))
            row = make_row(case, written)
            say(f"{number + 1} of {len(cases)}: {case.kind}, {case.name}: {row['ratio']:.2f}")
            yield row

    def close(self) -> None:
        """Close both engines."""
        self._plain.close()
        self._engine.close()

    def _write(self, case: DraftCase, way: str) -> Written:
        engine = self._engine if way == "model" else self._plain
        engine.forget_cached()
        draft = None if way == "plain" else case.draft()
        start = time.perf_counter()
        first = start
        steps = engine.generate(case.request, draft)
        for step in steps:
            if first == start and step.token_ids:
                first = time.perf_counter()
        end = time.perf_counter()
        assert steps.result is not None, "the output has ended"
        usage = steps.result.usage
        sources = {name: asdict(by) for name, by in usage.by_source.items()}
        forwards = usage.forwards - usage.prefill_forwards + 1
        return Written(steps.result.token_ids, end - start, end - first, forwards, sources)


def make_row(case: DraftCase, written: Mapping[str, Sequence[Written]]) -> Row:
    """Return a case's figures. Of several rounds the medians of the seconds count; all write what the first did."""
    row: Row = {"kind": case.kind, "name": case.name, "prompt": len(case.request.prompt)}
    seconds = {
        way: statistics.median(each.seconds / len(each.token_ids) for each in runs) for way, runs in written.items()
    }
    for way, runs in written.items():
        one, count = runs[0], len(runs[0].token_ids)
        row[way] = {
            "tokens": count,
            "seconds": seconds[way] * count,
            "tok_s": count / statistics.median(each.decode_s for each in runs),
            "forwards_per_token": one.forwards / count,
            "sources": one.sources,
            "same": count_common_prefix(one.token_ids, written["plain"][0].token_ids),
        }
    best = list(written)[-1]
    row |= {"ratio": seconds["plain"] / seconds[best], "ratio_copy": seconds["copy"] / seconds[best]}
    return row


def summarise(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the summary; a figure is None where no case shows it."""
    best = WAYS[-1] if rows and WAYS[-1] in rows[0] else "copy"
    new_code = [row for row in rows if row["kind"] in NEW_CODE]
    edits = [row for row in rows if row["kind"] == "edit"]
    tokens = sum(row[best]["tokens"] for row in new_code)
    return {
        "free_code_ratio": _compare(new_code, "plain", best),
        "worst_ratio": min((row["ratio"] for row in rows), default=None),
        "copy_ratio": _compare(edits, "copy", best),
        "forwards_per_token": sum(row[best]["forwards_per_token"] * row[best]["tokens"] for row in new_code) / tokens
        if tokens
        else None,
    }


def _compare(rows: Sequence[Row], way: str, best: str) -> float | None:
    """Return the seconds of one way by those of another, of as many tokens."""
    own = sum(row[best]["seconds"] for row in rows)
    other = sum(row[way]["seconds"] * row[best]["tokens"] / row[way]["tokens"] for row in rows)
    return other / own if own else None


def find_share_right(drafted: float, accepted: float) -> float:
    """Return q for which q + q ** 2 + ... + q ** drafted, the expected accepted tokens of a pass, is `accepted`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        q = (low + high) / 2
        expected = drafted if q == 1.0 else q * (1.0 - q**drafted) / (1.0 - q)
        low, high = (q, high) if expected < accepted else (low, q)
    return low


def compute_bound(share_right: float, times: StepTimes, draft_times: StepTimes) -> float:
    """Return how many times as quick as plain decoding drafts of the best constant length are."""
    each_s = compute_token_seconds(1.0 - share_right, 1, MOST_BY_MODEL, times, draft_times(1))
    return times(1) / each_s


def render_tables(rows: Sequence[Row], times: StepTimes, draft_times: StepTimes | None) -> str:
    """Render a table of the kinds, a line for each way, and one of the sources of the drafts."""
    lines: list[Row] = []
    sources: list[Row] = []
    for kind, ones in group_by(rows, lambda row: str(row["kind"])).items():
        for way in (way for way in WAYS if way in ones[0]):
            tokens = sum(row[way]["tokens"] for row in ones)
            forwards = sum(row[way]["forwards_per_token"] * row[way]["tokens"] for row in ones)
            lines.append(
                {
                    "kind": kind,
                    "way": way,
                    "cases": len(ones),
                    "tokens": tokens,
                    "forwards": forwards / tokens,
                    "tok_s": tokens / sum(row[way]["tokens"] / row[way]["tok_s"] for row in ones),
                    "ratio": _compare(ones, "plain", way),
                    "worst": min(_compare([row], "plain", way) or 0.0 for row in ones),
                }
            )
            for source in sorted({name for row in ones for name in row[way]["sources"]}):
                counted = [row[way]["sources"].get(source, {}) for row in ones]
                sums = {
                    name: sum(each.get(name, 0) for each in counted) for name in ("forwards", "drafted", "accepted")
                }
                line: Row = {"kind": kind, "way": way, "source": source, "bound": None, "right": None} | sums
                if source == DRAFT_MODEL and draft_times is not None and sums["forwards"]:
                    mean = {name: sums[name] / sums["forwards"] for name in ("drafted", "accepted")}
                    line["right"] = find_share_right(**mean)
                    line["bound"] = compute_bound(line["right"], times, draft_times)
                sources.append(line)
    return render_rows(lines, COLUMNS) + "\n\n" + render_rows(sources, SOURCES)


def write_plot(rows: Sequence[Row], file: Path) -> None:
    """Write the decoded tokens a second of each kind and way, a dot for each case, as a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    kinds = group_by(rows, lambda row: str(row["kind"]))
    for place, (way, label, colour) in enumerate(LABELS):
        if way not in rows[0]:
            continue
        for at, ones in enumerate(kinds.values()):
            x, speeds = at + 0.27 * (place - 1), [row[way]["tok_s"] for row in ones]
            total = sum(row[way]["tokens"] for row in ones)
            mean = total / sum(row[way]["tokens"] / row[way]["tok_s"] for row in ones)
            axes.bar(x, mean, width=0.25, color=colour, label=label if at == 0 else None)
            axes.text(x, mean * 0.93, f"{mean:.0f}", ha="center", va="top", fontsize=8, in_layout=False)
            axes.scatter([x] * len(speeds), speeds, color="black", s=6, zorder=3)
    measured = [row[way]["tok_s"] for row in rows for way in WAYS if way in row]
    limits = min(measured) / 2, 2 * max(measured)  # where all are alike, the axis would have no length
    axes.set(
        ylabel="tokens a second (log)", yscale="log", ylim=limits, xticks=range(len(kinds)), xticklabels=list(kinds)
    )
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90)
    plt.close(figure)


LABELS = (
    ("plain", "a token a pass", "#b8bcc4"),
    ("copy", "copies", "#6f9bd1"),
    ("model", "copies and a draft model", "#d08a3c"),
)

COLUMNS = {
    "kind": "{kind}",
    "drafts": "{way}",
    "cases": "{cases}",
    "tokens": "{tokens}",
    "forwards a token": "{forwards:.3f}",
    "decode tok/s": "{tok_s:.1f}",
    "of plain": "{ratio:x}",
    "worst": "{worst:x}",
}

SOURCES = {
    "kind": "{kind}",
    "drafts": "{way}",
    "source": "{source}",
    "forwards": "{forwards}",
    "drafted": "{drafted}",
    "accepted": "{accepted}",
    "each right": "{right:.2f}",
    "bound": "{bound:x}",
}


if __name__ == "__main__":
    main()
