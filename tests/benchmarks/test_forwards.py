"""Passes are counted as an engine makes them, general drafters draft what their servers do, groups are told apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.forwards import (
    DRAFTERS,
    MERGE_DRAFT,
    NgramDraft,
    NoDraft,
    SuffixDecodingDraft,
    Windows,
    count_forwards,
    main,
)
from engine.types import Draft, Proposer
from repo_cache.tokenizer import BPETokenizer

BEFORE = "".join(f"def f{number}():\n    return {number}\n\n\n" for number in range(30)).rstrip("\n") + "\n"
AFTER = BEFORE.replace("    return 12\n", "    total = 12\n    return total\n")


class Knowing:
    """Proposes the target, but for every `period`-th token."""

    def __init__(self, target: Sequence[int], period: int) -> None:
        self._guess = [-1 if at % period == period - 1 else each for at, each in enumerate(target)]

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens(self._guess[len(output_ids) :][:max_tokens])


TARGET = list(range(100))


@pytest.mark.parametrize(
    ("proposer", "windows", "expected"),
    [
        (NoDraft(), Windows(0), 99),  # the prefill gives one
        (Knowing(TARGET, 1000), Windows(9), 10),  # 1 + 9 * 10 tokens, and nine more
        (Knowing(TARGET, 1000), Windows(9, first=100), 0),
        (Knowing(TARGET, 1000), Windows(9, first=89), 1),
        (
            Knowing(TARGET, 10),
            Windows(100, first=100),
            9,
        ),  # a miss at 9, 19, ..., each costs a pass but the last
    ],
)
def test_a_pass_confirms_what_is_right_and_gives_one_more(proposer: Proposer, windows: Windows, expected: int) -> None:
    assert count_forwards(proposer, TARGET, windows) == expected


def test_prompt_lookup_takes_the_first_place_of_the_longest_match() -> None:
    draft = NgramDraft([[1, 2, 3, 9, 2, 4, 1, 2, 5]], 2, least=1, most=2)
    assert draft.propose([7, 1, 2], 10).token_ids == [3, 9]
    assert draft.propose([7, 1, 2, 9], 10).token_ids == [2, 4]
    assert draft.propose([7, 1, 2, 9, 8], 10).token_ids == []
    longer = NgramDraft([[1, 2, 3, 9, 2, 4, 1, 2, 5]], 2, least=2, most=5)
    assert longer.propose([7, 1, 2, 9], 10).token_ids == []


def test_suffix_decoding_drafts_the_commonest_continuation_as_long_as_the_match() -> None:
    draft = SuffixDecodingDraft([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 5, 7]])
    assert draft.propose([1, 2], 10).token_ids == [5, 6]
    assert draft.propose([1, 2, 5], 10).token_ids == [6]
    prompt = list(range(100))
    assert SuffixDecodingDraft([prompt]).propose(prompt[:50], 100).token_ids == prompt[50:62]


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    """A token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return BPETokenizer(bytewise)


def test_the_benchmark_counts_every_style_and_tells_the_groups_apart(
    tmp_path: Path, tokenizer: BPETokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"path": "f.py", "original": BEFORE, "expected": AFTER, "old_text": "    return 12\n"}
    record["new_text"] = "    total = 12\n    return total\n"
    short = record | {"original": "a = 1\n", "expected": "a = 2\n", "old_text": "1", "new_text": "2"}
    cases = tmp_path / "cases.jsonl"
    cases.write_text("".join(json.dumps(each) + "\n" for each in (record, record, short)), encoding="utf-8")
    out = tmp_path / "out.json"

    main(["--cases", str(cases), "--json", str(out)], tokenizer)

    found = json.loads(out.read_text(encoding="utf-8"))
    summary, rows = found["summary"], found["rows"]
    assert summary["edits"] == summary["files"] == 1
    assert summary["mean_tokens"] == len(AFTER.removesuffix("\n") + "\n</updated-code>")
    assert summary["mean_hunks"] == 1
    assert len(summary["mean_by_style"]) == summary["cases"] == len(found["cases"]) > 3
    assert sum(summary["groups"].values()) == summary["cases"]
    everywhere = {row["drafter"]: row for row in rows if row["group"] == "all"}
    assert list(everywhere) == list(DRAFTERS)
    assert everywhere["no draft"]["mean"] == summary["mean_tokens"] - 1
    assert everywhere[MERGE_DRAFT] == {"group": "all", "drafter": MERGE_DRAFT} | {
        key: summary[key] for key in ("cases", "mean", "median", "p90", "most")
    }
    right = next(row for row in rows if row["group"] == "merge right" and row["drafter"] == MERGE_DRAFT)
    assert right["most"] == 0
    assert "no draft" in capsys.readouterr().out


def test_without_cases_it_says_so(tmp_path: Path, tokenizer: BPETokenizer) -> None:
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit, match="holds no pair"):
        main(["--cases", str(tmp_path)], tokenizer)
    with pytest.raises(SystemExit, match="no such file"):
        main(["--cases", str(tmp_path / "nothing")], tokenizer)
