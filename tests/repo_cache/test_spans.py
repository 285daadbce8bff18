"""Spans tile a file's tokens and end at syntax borders; an incremental cut equals the cut from scratch."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repo_cache import chunks, syntax
from repo_cache import spans as changes
from repo_cache.chunks import (
    BLOCK_BYTES,
    GROUP_TOKENS,
    LONG_BYTES,
    MAX_TOKENS,
    MIN_BLOCK_BYTES,
    MIN_TOKENS,
    cut_spans,
    find_block_starts,
    recut_spans,
    select_borders,
    update_block_starts,
)
from repo_cache.incremental import (
    EncodedText,
    ReencodedText,
    TextChange,
    TokenChange,
    encode_text,
    find_text_change,
    reencode,
)
from repo_cache.spans import CutText, FileSpans, KeptRun, SpanChanges, compare_spans, compute_span_keys
from repo_cache.syntax import GRAMMARS, find_language, find_syntax_borders, parse, reparse
from repo_cache.tokenizer import BPETokenizer
from tests.memory import bytes_kept
from tests.models import SHARED_DATA, real_model
from tests.repo_cache.sources import SUFFIXES, edited, source

FINGERPRINT = b"tokenizer"


@cache
def tokenizer() -> BPETokenizer:
    return real_model("qwen2.5-coder-0.5b").tokenizer


def cut_whole(data: bytes, language: str | None) -> tuple[EncodedText, CutText]:
    text = encode_text(tokenizer(), data)
    made = cut_spans(text, language, FINGERPRINT)
    made.spans.check_integrity(len(text.token_ids))
    return text, made


def span_texts(text: EncodedText, spans: FileSpans) -> list[bytes]:
    edges = [0, *text.token_ends[spans.ends - 1].tolist()]
    return [text.data[start:end] for start, end in pairwise(edges)]


def check_recut(data: bytes, language: str | None, random: Random, num_edits: int) -> None:
    """Edits one after another: each next cut is the cut from scratch, with trees of the last one and without."""
    text, made = cut_whole(data, language)
    for _ in range(num_edits):
        after = reencode(tokenizer(), text, edited(text.data, random))
        again = recut_spans(made, text, after, language, FINGERPRINT)
        scratch = cut_spans(after.text, language, FINGERPRINT)
        assert again.spans == scratch.spans
        assert again.trees.keys() == scratch.trees.keys()
        assert recut_spans(CutText(made.spans, {}), text, after, language, FINGERPRINT).spans == scratch.spans
        text, made = after.text, again


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_next_cut_is_the_cut_from_scratch(suffix: str) -> None:
    for seed in range(4):
        check_recut(source(suffix, 60), find_language(f"a.{suffix}"), Random(seed), 10)


@pytest.mark.parametrize("suffix", ["java", "cs", "json", "html", "cpp", "py"])
def test_the_next_cut_of_a_long_block_is_the_cut_from_scratch(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LONG_BYTES", 1000)
    for seed in range(4):
        check_recut(source(suffix, 60), find_language(f"a.{suffix}"), Random(seed), 10)


@pytest.mark.long
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_next_cut_is_the_cut_from_scratch_for_long(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for long_bytes in (1000, LONG_BYTES):
        monkeypatch.setattr(chunks, "LONG_BYTES", long_bytes)
        for seed in range(60):
            check_recut(source(suffix, Random(seed).randrange(1, 100)), find_language(f"a.{suffix}"), Random(seed), 20)


def test_a_long_sound_block_is_parsed_from_its_old_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    data = source("java", 120)
    text, made = cut_whole(data, "java")
    assert any(tree.num_bytes > LONG_BYTES for tree in made.trees.values())
    after = reencode(tokenizer(), text, data.replace(b"int total = 60;", b"int total = 61;"))
    scratch = cut_spans(after.text, "java", FINGERPRINT)
    monkeypatch.setattr("repo_cache.syntax.parse", None)  # what a reparse falls back to
    monkeypatch.setattr(chunks, "parse", None)
    assert recut_spans(made, text, after, "java", FINGERPRINT).spans == scratch.spans


def test_where_nothing_changed_nothing_is_cut() -> None:
    text, made = cut_whole(source("py", 5), "python")
    assert recut_spans(made, text, reencode(tokenizer(), text, text.data), "python", FINGERPRINT) is made


@pytest.mark.parametrize("suffix", ["java", "ts", "py"])
def test_a_tree_from_an_old_tree_has_the_borders_of_a_new_one(suffix: str) -> None:
    """Error recovery in Java comes out otherwise at every twelfth edit where parts of the old tree are used again."""
    language = find_language(f"a.{suffix}")
    random = Random(1)
    data = source(suffix, 15)
    for _ in range(150):
        tree, after = parse(data, language), edited(data, random)
        change = find_text_change(data, after)
        if change is not None and tree is not None and (scratch := parse(after, language)) is not None:
            again = reparse(tree, data, after, change)
            assert again is not None
            assert find_syntax_borders(again, after, 300) == find_syntax_borders(scratch, after, 300)
        data = after if len(after) > 3000 else source(suffix, 15)


def test_tokens_that_changed_far_from_the_text_count_as_changed() -> None:
    text, made = cut_whole(source("py", 60), "python")
    ids = text.token_ids.copy()
    ids[5] += 1
    change = TextChange(len(text.data) - 2, len(text.data) - 1, len(text.data) - 1)
    tokens = TokenChange(5, len(ids), len(ids))
    after = ReencodedText(EncodedText(text.data, ids, text.token_ends), change, tokens, len(ids))
    again = recut_spans(made, text, after, "python", FINGERPRINT)
    assert again.spans == cut_spans(after.text, "python", FINGERPRINT).spans
    assert again.spans.get_key(0) != made.spans.get_key(0)


paragraphs = st.lists(
    st.sampled_from(["a\n", "\n", "\n\n", " b\n", "}\n", "def f\n", " \n", "x" * 300 + "\n"]), max_size=150
)


@given(paragraphs, paragraphs, paragraphs, paragraphs)
def test_the_next_blocks_are_the_blocks_from_scratch(
    head: list[str], old: list[str], new: list[str], tail: list[str]
) -> None:
    before, data = (("".join([*head, *middle, *tail])).encode() for middle in (old, new))
    change = find_text_change(before, data)
    if change is not None:
        again = update_block_starts(find_block_starts(before, None), len(before), data, None, change)
        assert again.tolist() == find_block_starts(data, None).tolist()


def test_blocks_are_bounded_on_both_sides() -> None:
    data = source("py", 200)
    lengths = np.diff(np.append(find_block_starts(data, "python"), len(data)))
    assert lengths.min() >= MIN_BLOCK_BYTES
    assert lengths.max() <= 2 * BLOCK_BYTES
    assert len(lengths) > 10


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_spans_tile_the_file_within_bounds(suffix: str) -> None:
    text, made = cut_whole(source(suffix, 80), find_language(f"a.{suffix}"))
    spans = made.spans
    assert b"".join(span_texts(text, spans)) == text.data
    lengths = np.diff(spans.ends.astype(int), prepend=0)
    assert lengths.max() <= MAX_TOKENS
    assert lengths.min() >= MIN_TOKENS
    assert np.median(lengths) <= 2 * GROUP_TOKENS


def test_definitions_are_spans_with_what_belongs_to_them() -> None:
    text, made = cut_whole(source("py", 40), "python")
    texts = span_texts(text, made.spans)
    assert all(piece.strip().startswith((b"import", b"# What")) for piece in texts)
    assert sum(piece.count(b"def ") == 1 for piece in texts) >= 39
    for suffix, first in (("rs", b"/// What"), ("java", b"/** What"), ("go", b"// Name"), ("css", b"/*")):
        text, made = cut_whole(source(suffix, 40), find_language(f"a.{suffix}"))
        inner = [piece.strip() for piece in span_texts(text, made.spans)[1:]]
        assert all(piece.startswith(first) for piece in inner), suffix


def test_a_key_is_the_hash_of_fingerprint_and_ids() -> None:
    text, made = cut_whole(source("py", 10), "python")
    for span in made.spans:
        ids = text.token_ids[span.start : span.end].astype("<u4").tobytes()
        assert span.key == blake2b(FINGERPRINT + ids, digest_size=16).digest()
    assert made.spans.list_keys() == [span.key for span in made.spans]
    assert (
        compute_span_keys(b"other", text.token_ids, 0, [3]).tobytes()
        != compute_span_keys(FINGERPRINT, text.token_ids, 0, [3]).tobytes()
    )
    assert compute_span_keys(FINGERPRINT, text.token_ids, 0, []).shape == (0, 16)


@pytest.mark.parametrize(
    "data", [source("py", 20), source("md", 20), b"x = 1\r\n" * 300, b"  a\n\n" * 200, b"a " * 900]
)
def test_lines_are_those_that_a_span_has_a_part_in(data: bytes) -> None:
    text, made = cut_whole(data, "python")
    lines = data.splitlines(keepends=True)
    for span, piece in zip(made.spans, span_texts(text, made.spans), strict=True):
        first = int(text.token_ends[span.start - 1]) if span.start else 0
        assert span.first_line == data.count(b"\n", 0, first)
        inside = b"".join(lines[span.first_line : span.end_line])
        assert piece.lstrip(b" \t") in inside
        last = data.count(b"\n", 0, first + len(piece.rstrip(b" \t")) - 1) + 1
        assert span.end_line == last


def test_spans_by_index() -> None:
    _, made = cut_whole(source("py", 10), "python")
    spans = made.spans
    assert [spans[index] for index in range(len(spans))] == list(spans)
    assert spans[-1] == list(spans)[-1]
    with pytest.raises(IndexError):
        spans[len(spans)]
    assert spans.nbytes <= 30 * len(spans) + 8 * len(spans.block_starts)


def num_other_keys(old: FileSpans, new: FileSpans) -> int:
    return len(set(new.list_keys()) - set(old.list_keys()))


def test_lines_at_the_top_move_no_border_below() -> None:
    data = source("py", 200)
    _, made = cut_whole(data, "python")
    for top in (b"import json\n", b"x = 1\n" * 50, b"'''Text.\n\nMore.\n'''\n"):
        _, moved = cut_whole(top + data, "python")
        assert num_other_keys(made.spans, moved.spans) <= 2 + len(top) // 100


@pytest.mark.parametrize("broken", [b"(", b'"""', b"}", b"class :", b"\\"])
def test_a_syntax_error_stays_in_its_block(broken: bytes) -> None:
    data = source("py", 200)
    _, made = cut_whole(data, "python")
    at = data.index(b"total = other + 100")
    _, other = cut_whole(data[:at] + broken + data[at:], "python")
    most = 3 * BLOCK_BYTES // (2 * GROUP_TOKENS)  # what a block and its neighbours hold
    assert 1 <= num_other_keys(made.spans, other.spans) <= most


def test_an_edit_changes_the_span_it_is_in_and_at_most_its_neighbours() -> None:
    data = source("py", 100)
    text, made = cut_whole(data, "python")
    random = Random(1)
    for number in random.sample(range(100), 30):
        after = reencode(tokenizer(), text, data.replace(b"total = other + %d\n" % number, b"total = other - 1\n"))
        assert num_other_keys(made.spans, recut_spans(made, text, after, "python", FINGERPRINT).spans) <= 3


def test_real_edits_of_long_files_leave_nearly_all_tokens_in_spans_with_the_same_keys() -> None:
    path = SHARED_DATA / "agent_sessions" / "edit_cases.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there: the real edits of the project's machines")
    cases = [json.loads(line) for line in path.read_text().splitlines()][::4]
    num_kept = num_tokens = 0
    for case in cases:
        if len(case["original"]) > 8000:
            language = find_language(case["path"])
            text, made = cut_whole(case["original"].encode(), language)
            after = reencode(tokenizer(), text, case["expected"].encode())
            again = recut_spans(made, text, after, language, FINGERPRINT).spans
            assert again == cut_spans(after.text, language, FINGERPRINT).spans
            keys = set(made.spans.list_keys())
            num_kept += sum(span.end - span.start for span in again if span.key in keys)
            num_tokens += again.num_tokens
    assert num_tokens > 10_000
    assert num_kept / num_tokens > 0.95


HOSTILE = {
    "empty": b"",
    "blank": b"\n" * 5000,
    "spaces": b" " * 20000,
    "one line": b"x" * 30000,
    "one token": b"a",
    "statements on one line": b"a(1);" * 8000,
    "open brackets": b"[" * 20000,
    "nested": b"[" * 5000 + b"]" * 5000,
    "open strings": b'"' * 5001,
    "open comments": b"<!--" * 3000,
    "deep yaml": b"".join(b" " * depth + b"a:\n" for depth in range(600)),
    "yaml in a line": b"- " * 3000,
    "returns": b"a\r\r\n\r" * 2000,
    "repeating": b"x = 1\n" * 4000,
    "errors": b") " * 10000,
    "controls": bytes(range(1, 127)) * 50,
}


@pytest.mark.parametrize("language", [None, "python", "yaml", "html", "json", "markdown", "cpp"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_cut(name: str, language: str | None) -> None:
    data = HOSTILE[name]
    text, made = cut_whole(data, language)
    lengths = np.diff(made.spans.ends.astype(int), prepend=0)
    assert lengths.max(initial=0) <= MAX_TOKENS
    after = reencode(tokenizer(), text, data[: len(data) // 2] + b"x" + data[len(data) // 2 :])
    assert (
        recut_spans(made, text, after, language, FINGERPRINT).spans
        == cut_spans(after.text, language, FINGERPRINT).spans
    )


def test_from_an_empty_file_and_to_one() -> None:
    for before, data in ((b"", source("py", 30)), (source("py", 30), b""), (b"", b"x"), (b"x", b"")):
        text, made = cut_whole(before, "python")
        after = reencode(tokenizer(), text, data)
        assert (
            recut_spans(made, text, after, "python", FINGERPRINT).spans
            == cut_spans(after.text, "python", FINGERPRINT).spans
        )


def test_every_grammar_reads_its_language() -> None:
    for suffix in SUFFIXES:
        language = find_language(f"folder/A.{suffix.upper()}")
        tree = parse(source(suffix, 3), language)
        assert (tree is None) == (language is None)
        assert tree is None or not tree.has_error, suffix
    assert all(parse(b"\n", language) is not None for language in GRAMMARS)
    assert find_language("Makefile") is None


def test_nothing_of_a_parsed_text_stays_in_memory() -> None:
    before = b"def f(x):\n    return x\n" * 200
    after = before.replace(b"return x", b"return 1", 1)
    change = find_text_change(before, after)
    assert change is not None

    def parsed_twice() -> None:
        old = parse(before, "python")
        assert old is not None
        assert reparse(old, before, after, change) is not None

    assert bytes_kept(syntax, parsed_twice, times=40) < 2_000


END, APART, REACH = 400, 16, 60
borders = st.dictionaries(st.integers(1, END - 1), st.integers(0, 9), max_size=60).map(
    lambda found: sorted(found.items())
)


def by_definition(found: list[tuple[int, int]], start: int, end: int) -> list[int]:
    """The docstring of `select_borders`, word for word."""

    def is_stronger(other: tuple[int, int], own: tuple[int, int]) -> bool:
        return other[1] > own[1] or (other[1] == own[1] and other[0] < own[0])

    def nearest(own: tuple[int, int], among: list[tuple[int, int]]) -> tuple[int, int]:
        stronger = [other[0] for other in among if is_stronger(other, own)]
        before = max([start, *(place for place in stronger if place < own[0])])
        return before, min([end, *(place for place in stronger if place > own[0])])

    running = [
        own for own in found if own[0] - nearest(own, found)[0] >= APART and nearest(own, found)[1] - own[0] >= APART
    ]
    return [own[0] for own in running if nearest(own, running)[1] - nearest(own, running)[0] > REACH]


def cut(found: list[tuple[int, int]], start: int = 0, end: int = END) -> list[int]:
    places, strengths = [place for place, _ in found], [strength for _, strength in found]
    return select_borders(places, strengths, start, end, apart=APART, reach=REACH)


@given(borders)
def test_cuts_are_those_of_the_definition(found: list[tuple[int, int]]) -> None:
    assert cut(found) == by_definition(found, 0, END)


@given(borders)
def test_pieces_are_not_short(found: list[tuple[int, int]]) -> None:
    edges = [0, *cut(found), END]
    assert len(edges) == 2 or all(later - earlier >= APART for earlier, later in pairwise(edges))


@given(borders, borders, st.integers(100, 300))
def test_what_is_far_away_does_not_count(found: list[tuple[int, int]], other: list[tuple[int, int]], at: int) -> None:
    """Whatever stands before `at` is replaced: cuts behind `at` and what their decision looks at stay."""
    behind = [border for border in found if border[0] >= at]
    changed = [border for border in other if border[0] < at] + behind
    far = at + REACH + 2 * APART
    assert [place for place in cut(found) if place > far] == [place for place in cut(changed) if place > far]


def test_of_equal_strengths_the_first_counts() -> None:
    assert cut([(200, 1), (210, 1)]) == [200]
    assert cut([(200, 1), (210, 2)]) == [210]


# The difference of two versions: every span in one place, and as many kept as can be.


letters = st.text("abcdef", max_size=12)


def letter_spans(text: str) -> FileSpans:
    """A file of one span a letter, which is its key."""
    num = len(text)
    return FileSpans(
        ends=np.arange(1, num + 1, dtype=np.uint32),
        keys=np.frombuffer("".join(letter * 16 for letter in text).encode(), np.uint8).reshape(num, 16),
        first_lines=np.arange(num, dtype=np.uint32),
        mid_line=np.zeros(num, np.bool_),
        num_lines=num,
        block_starts=np.zeros(min(num, 1), np.uint32),
        block_spans=np.zeros(min(num, 1), np.uint32),
    )


def longest_common(old: str, new: str) -> int:
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, left in enumerate(old):
        for j, right in enumerate(new):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def check_changes(old: str, new: str, found: SpanChanges) -> None:
    kept = [(run.old + step, run.new + step) for run in found.kept for step in range(run.length)]
    olds = [left for left, _ in [*kept, *found.moved, *found.changed]] + list(found.removed)
    news = [right for _, right in [*kept, *found.moved, *found.changed]] + list(found.new)
    assert sorted(olds) == list(range(len(old)))
    assert sorted(news) == list(range(len(new)))
    assert all(old[left] == new[right] for left, right in [*kept, *found.moved])
    assert kept == sorted(kept)
    assert [right for _, right in kept] == sorted(right for _, right in kept)
    assert all(run.length > 0 for run in found.kept)
    # What is neither kept nor moved has its key on one side only.
    left_old = Counter(old[left] for left in [*(pair[0] for pair in found.changed), *found.removed])
    left_new = Counter(new[right] for right in [*(pair[1] for pair in found.changed), *found.new])
    assert not left_old & left_new
    # Changed pairs stand between the same kept spans.
    for left, right in found.changed:
        assert sum(place < left for place, _ in kept) == sum(place < right for _, place in kept)
    between = [sum(place < left for place, _ in kept) for left in found.removed]
    assert not set(between) & {sum(place < right for _, place in kept) for right in found.new}


@given(letters, letters)
def test_every_span_is_in_one_place_and_no_more_could_be_kept(old: str, new: str) -> None:
    found = compare_spans(letter_spans(old), letter_spans(new))
    check_changes(old, new, found)
    assert found.num_kept == longest_common(old, new)


@given(letters, letters)
def test_files_too_long_for_a_matrix_lose_no_span(old: str, new: str) -> None:
    limit, changes.MAX_MATRIX_BITS = changes.MAX_MATRIX_BITS, 0
    try:
        check_changes(old, new, compare_spans(letter_spans(old), letter_spans(new)))
    finally:
        changes.MAX_MATRIX_BITS = limit


def test_a_swap_an_edit_and_an_insertion() -> None:
    found = compare_spans(letter_spans("abcdef"), letter_spans("abxdefc"))
    assert found.kept == (KeptRun(0, 0, 2), KeptRun(3, 3, 3))
    assert found.moved == ((2, 6),)
    assert found.new == (2,)
    assert compare_spans(letter_spans("abc"), letter_spans("axxc")) == SpanChanges(
        (KeptRun(0, 0, 1), KeptRun(2, 3, 1)), (), ((1, 1),), (2,)
    )


def test_a_file_that_came_or_went() -> None:
    assert compare_spans(None, letter_spans("ab")) == SpanChanges(new=(0, 1))
    assert compare_spans(letter_spans("ab"), None) == SpanChanges(removed=(0, 1))
    assert compare_spans(None, None) == SpanChanges()
