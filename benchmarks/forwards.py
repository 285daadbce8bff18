"""Count forward passes by way of drafting: `python -m benchmarks.forwards`.

No model runs: the target is the text after a real edit, and a draft is accepted as far as it equals it. A case is a
pair of texts of at least 80 lines, before and after, and a lazy snippet made of them, in each style that can express
the edit. The merge draft drafts the editor's merge or its first candidate, even when it is wrong; where the editor has
none, it drafts the original first.

Counted are the passes after the prefill, which gives the first token itself. The merge draft puts the whole merge into
the pass that ends the prefill; after that a pass drafts 1,024 tokens at most. The row below it has this cap in that
pass, too. The other rows draft as general servers do, and nothing in that pass:

    n-gram              vLLM's ngram method: what followed the first place of the longest match of 2 to 5 tokens, 64
    suffix decoding     vLLM's suffix method (Arctic): the commonest continuation, as long as the match; in its tree of
                        depth 24 that is 12 tokens at most
    prompt lookup       transformers: what followed the first place of the last 2 tokens (1 where there is none), 10
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.process import set_environment
from benchmarks.cases import DEFAULT_CASES
from benchmarks.edit_formats import diff_texts
from benchmarks.harness import make_parser, write_json
from benchmarks.snippets import STYLES, Pair, make_snippet, read_pairs
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.types import AlreadyApplied, Merged
from engine.speculation import MergeDraft
from engine.speculation.sources import NO_TOKEN, SuffixIndex
from engine.types import Draft, Proposer
from repo_cache.tokenizer import BPETokenizer

MIN_LINES = 80
ANSWER_END = "\n</updated-code>"
"""What the answer to the service's prompt ends with, the last thing that is drafted."""

Group = Literal["merge right", "merge wrong", "no merge"]
Encode = Callable[[str], list[int]]
Answers = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ForwardsCase:
    """One edit: the texts as token ids; `target` is what a model writes that makes no mistake.

    `merged` are the editor's merges, best first, none where it has none, and `merges` their ids; `group` says whether
    the first one is the target.
    """

    id: str
    style: str
    group: Group
    num_hunks: int
    before: str
    after: str
    snippet: str
    merged: tuple[str, ...]
    merges: tuple[tuple[int, ...], ...]
    original: tuple[int, ...]
    update: tuple[int, ...]
    target: tuple[int, ...]


def make_cases(path: Path, encode: Encode, *, limit: int | None, seed: int) -> list[ForwardsCase]:
    """Every real pair of at least MIN_LINES lines in every style that can say it; a sample of them with `limit`."""
    drawn = [(pair, style) for pair in read_pairs(path, MIN_LINES) for style in STYLES]
    if limit is not None:
        random.Random(seed).shuffle(drawn)
    answer = make_encoder(encode)
    found: list[ForwardsCase] = []
    for pair, style in drawn:
        if limit is not None and len(found) == limit:
            break
        snippet = make_snippet(pair.before, pair.after, pair.path, style, seed)
        if snippet is not None:
            found.append(make_case(pair, style, snippet, encode, answer))
            print(f"\r{len(found)} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def make_encoder(encode: Encode) -> Answers:
    """Makes ids of whole texts as a model is to write them, of each once."""
    return cache(lambda text: tuple(encode(text.removesuffix("\n") + ANSWER_END)))


def make_case(pair: Pair, style: str, snippet: str, encode: Encode, answer: Answers) -> ForwardsCase:
    """Return one edit, said by a snippet in a style, and what the editor makes of it."""
    merged = list(_list_merges(pair, snippet))
    right = bool(merged) and merged[0] == pair.after
    return ForwardsCase(
        id=pair.id,
        style=style,
        group="merge right" if right else "merge wrong" if merged else "no merge",
        num_hunks=len(diff_texts(pair.before.split("\n"), pair.after.split("\n"))),
        before=pair.before,
        after=pair.after,
        snippet=snippet,
        merged=tuple(merged),
        merges=tuple(answer(text) for text in merged),
        original=answer(pair.before),
        update=tuple(encode(snippet.strip("\n"))),
        target=answer(pair.after),
    )


def _list_merges(pair: Pair, snippet: str) -> Iterator[str]:
    """Yield what the editor's rules make of a snippet: one merge, its candidates, or nothing."""
    try:
        outcome = merge(pair.before, parse(snippet, "lazy"), find_language(pair.path))
    except EditSyntaxError:
        return
    if isinstance(outcome, Merged):
        yield outcome.text
    elif isinstance(outcome, AlreadyApplied):
        yield pair.before
    else:
        yield from (candidate.text for candidate in outcome.candidates)


UNCAPPED = 1 << 30


@dataclass(frozen=True, slots=True)
class Windows:
    """How many tokens a pass drafts: `first` in the pass that ends the prefill, then `size`."""

    size: int
    first: int = 0


def count_forwards(proposer: Proposer, target: Sequence[int], windows: Windows) -> int:
    """Return passes after the prefill until all of `target` is written.

    Each pass confirms the drafted tokens that are right, and gives one more; so does the prefill, which is not counted.
    """
    written, passes = 0, -1
    while written < len(target):
        room = min(windows.first if passes < 0 else windows.size, len(target) - written)
        draft = list(proposer.propose(target[:written], room).token_ids) if room else []
        written += count_common(draft, target[written : written + len(draft)]) + 1
        passes += 1
    return passes


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens are equal from the start."""
    if list(one) == list(other):
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


TREE_DEPTH = 24
"""`suffix_decoding_max_tree_depth` of vLLM: a match and what is drafted after it are no longer together."""

MIN_PROBABILITY = 0.1
"""`suffix_decoding_min_token_prob` of vLLM."""


class NgramDraft:
    """Drafts what follows another place that the output's last tokens stand at.

    The longest match of `least` to `most` tokens counts; of equal ones the first place.

    - transformers, prompt lookup: PromptLookupCandidateGenerator, 10 tokens, matches of 2 or 1, the first place.
    - vLLM, ngram: NgramProposer, the longest match between prompt_lookup_min and _max, the first place.
    """

    def __init__(self, prompt: Sequence[Sequence[int]], num_tokens: int, *, least: int, most: int) -> None:
        self._context = SuffixIndex(prompt)
        self._num_tokens = num_tokens
        self._least, self._most = least, most
        self._num_seen = 0

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        self._context.grow(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        places, lengths = self._context.search(output_ids[-self._most :], self._most)
        if not len(places) or lengths.max() < self._least:
            return Draft.from_tokens([])
        place = int(places[lengths == lengths.max()][0])
        return Draft.from_tokens(_cut_at_end(self._context[place : place + min(max_tokens, self._num_tokens)]))


class SuffixDecodingDraft:
    """The method of vLLM's and Arctic's suffix decoding: the most frequent continuation of the longest match.

    As long as the match (`max_spec_factor` 1), within a tree of TREE_DEPTH tokens, while its estimated probability is
    at least MIN_PROBABILITY. So 12 tokens after a match of 12 are the longest draft. Oliaro et al. 2024
    (SuffixDecoding). Of all match lengths the method takes the one with the best sum of probabilities; here it is the
    longest up to half the depth, which is that wherever the continuation is certain.
    """

    def __init__(self, prompt: Sequence[Sequence[int]]) -> None:
        self._context = SuffixIndex(prompt)
        self._num_seen = 0

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        self._context.grow(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        longest = TREE_DEPTH // 2
        places, lengths = self._context.search(output_ids[-longest:], longest)
        if not len(places):
            return Draft.from_tokens([])
        length = int(lengths.max())
        followers = [self._context[place : place + length] for place in places[lengths == length].tolist()]
        draft: list[int] = []
        probability = 1.0
        while len(draft) < min(length, max_tokens):
            counts = Counter(each[len(draft)] for each in followers if len(each) > len(draft))
            token_id, count = counts.most_common(1)[0] if counts else (NO_TOKEN, 0)
            probability *= count / max(1, len(followers))
            if token_id == NO_TOKEN or probability < MIN_PROBABILITY:
                break
            draft.append(token_id)
            followers = [each for each in followers if each[: len(draft)] == draft]
        return Draft.from_tokens(draft)


class NoDraft:
    """Nothing: a token a pass."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens([])


def _cut_at_end(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(NO_TOKEN)] if NO_TOKEN in token_ids else token_ids


CAP = 1024
MERGE_DRAFT = "merge draft"


@dataclass(frozen=True, slots=True)
class Drafter:
    """One way of drafting: the proposer that it has for a case, and how much of it is put before the model."""

    make: Callable[[ForwardsCase, Sequence[bytes]], Proposer]
    windows: Windows


def _make_merge_draft(case: ForwardsCase, token_bytes: Sequence[bytes]) -> MergeDraft:
    return MergeDraft(merges=case.merges, original=case.original, update=case.update, token_bytes=token_bytes)


def _list_prompt(case: ForwardsCase) -> list[Sequence[int]]:
    return [case.original, case.update]


DRAFTERS: Mapping[str, Drafter] = {
    MERGE_DRAFT: Drafter(_make_merge_draft, Windows(CAP, first=UNCAPPED)),
    "merge draft, the fused pass capped too": Drafter(_make_merge_draft, Windows(CAP, first=CAP)),
    "n-gram of 2 to 5, 64": Drafter(lambda case, _: NgramDraft(_list_prompt(case), 64, least=2, most=5), Windows(64)),
    "vLLM suffix decoding, 12 in effect": Drafter(
        lambda case, _: SuffixDecodingDraft(_list_prompt(case)), Windows(CAP)
    ),
    "transformers prompt lookup, 10": Drafter(
        lambda case, _: NgramDraft(_list_prompt(case), 10, least=1, most=2), Windows(10)
    ),
    "no draft": Drafter(lambda case, _: NoDraft(), Windows(0)),
}
"""By name. General servers draft nothing in the pass that ends the prefill: they draft from the output's tail."""


GROUPS = ("all", "merge right", "merge wrong", "no merge")


@dataclass(frozen=True, slots=True)
class Count:
    """What one case takes with each way of drafting, by name."""

    case: ForwardsCase
    forwards: dict[str, int]


def make_rows(counts: Sequence[Count]) -> list[dict[str, Any]]:
    """Return a row for each way of drafting over all cases, and over those of each group that has any."""
    return [row for group in GROUPS for row in _make_group_rows(group, counts)]


def summarise(counts: Sequence[Count], drafter: str) -> dict[str, Any]:
    """Return one drafter's figures over all cases, and what the cases are."""
    cases = [one.case for one in counts]
    by_style: dict[str, list[int]] = defaultdict(list)
    by_group: dict[str, int] = defaultdict(int)
    for one in counts:
        by_style[one.case.style].append(one.forwards[drafter])
        by_group[one.case.group] += 1
    return {
        "cases": len(cases),
        **_compute_figures([one.forwards[drafter] for one in counts]),
        "edits": len({(case.before, case.target) for case in cases}),
        "files": len({case.before for case in cases}),
        "mean_tokens": round(statistics.fmean(len(case.target) for case in cases)),
        "mean_hunks": round(statistics.fmean(case.num_hunks for case in cases), 2),
        "groups": {group: by_group[group] for group in GROUPS if group in by_group},
        "mean_by_style": {style: round(statistics.fmean(found), 2) for style, found in sorted(by_style.items())},
    }


def make_case_row(one: Count) -> dict[str, Any]:
    case = one.case
    what = {"id": case.id, "style": case.style, "group": case.group, "tokens": len(case.target)}
    return what | {"hunks": case.num_hunks, "forwards": one.forwards}


def render_lines(rows: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{summary['cases']} snippets of {summary['edits']} edits of {summary['files']} different files; "
        f"mean {summary['mean_tokens']:,} tokens, {summary['mean_hunks']} hunks"
    )
    for group in GROUPS:
        members = [row for row in rows if row["group"] == group]
        if members:
            yield ""
            yield f"| forward passes after the prefill; {group}: {members[0]['cases']} | mean | median | p90 | most |"
            yield "| --- | --- | --- | --- | --- |"
            for row in members:
                figures = (f"{row[key]:,}" for key in ("mean", "median", "p90", "most"))
                yield f"| {row['drafter']} | {' | '.join(figures)} |"
    yield ""
    yield "mean by style: " + ", ".join(f"{style} {mean}" for style, mean in summary["mean_by_style"].items())


def _make_group_rows(group: str, counts: Sequence[Count]) -> Iterator[dict[str, Any]]:
    members = [one for one in counts if group in ("all", one.case.group)]
    for drafter in members[0].forwards if members else ():
        figures = _compute_figures([one.forwards[drafter] for one in members])
        yield {"group": group, "drafter": drafter, "cases": len(members), **figures}


def _compute_figures(numbers: Sequence[int]) -> dict[str, float]:
    ordered = sorted(numbers)
    return {
        "mean": round(statistics.fmean(ordered), 2),
        "median": statistics.median(ordered),
        "p90": ordered[-(-9 * len(ordered) // 10) - 1],
        "most": ordered[-1],
    }


TOKENIZER = "qwen2.5-coder-0.5b"


def main(arguments: Sequence[str] | None = None, tokenizer: BPETokenizer | None = None) -> None:
    """Count, print the table and write the JSON."""
    options = _options(arguments)
    if tokenizer is None:
        from agent_runtime.models.tokenizer import open_tokenizer  # loads torch: only after `set_environment`

        try:
            tokenizer = open_tokenizer(TOKENIZER, ModelSettings.from_env(os.environ))
        except HunkError as error:
            sys.exit(f"the tokenizer is that of {TOKENIZER}: {error}")
    cases = make_cases(options.cases, tokenizer.encode, limit=options.limit, seed=options.seed)
    if not cases:
        sys.exit(f"{options.cases} holds no pair of 80 lines that a snippet can be made of")
    counts = count_cases(cases, tokenizer.token_bytes())
    rows, summary = make_rows(counts), summarise(counts, MERGE_DRAFT)
    print("\n".join(render_lines(rows, summary)))
    write_json(options.json, summary, rows, cases=[make_case_row(one) for one in counts])


def count_cases(cases: Sequence[ForwardsCase], token_bytes: Sequence[bytes]) -> list[Count]:
    """Run every case with every way of drafting."""
    counts = []
    for number, case in enumerate(cases, start=1):
        print(f"\r{number}/{len(cases)} counted", end="", file=sys.stderr, flush=True)
        found = {
            name: count_forwards(drafter.make(case, token_bytes), case.target, drafter.windows)
            for name, drafter in DRAFTERS.items()
        }
        counts.append(Count(case, found))
    print(file=sys.stderr)
    return counts


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("forwards", __doc__)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="a .jsonl or .jsonl.gz file, or a folder")
    parser.add_argument("--limit", type=int, help="a sample of this many cases")
    parser.add_argument("--seed", type=int, default=0, help="for the snippets and the sample")
    options = parser.parse_args(arguments)
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such file or folder; name one with --cases")
    return options


if __name__ == "__main__":
    set_environment()
    main()
