"""The merge draft: it follows the merge, finds its way behind departures, and survives any output."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.speculation import MergeDraft
from engine.speculation.sources import NO_TOKEN, Hunks, Sources, SuffixIndex
from engine.speculation.token_lines import Reindent, TokenLines, complete_line, reindent_line
from engine.types import Draft

# A small byte-level vocabulary in which lines can have any indentation, and a tokenizer for it.


WORDS = ["a", "b", "c", "def", "if", "x", "y", "zz", "(", ")", "...", "# ... rest ..."]
BLANKS = ["\t", "\t\t", " ", "  ", "   ", "    ", "     ", "      ", "       "]
ENDS = ["\n", "\n\n", ")\n", ")\n\n"]
VOCABULARY = [*WORDS, *(f" {word}" for word in WORDS), *BLANKS, *ENDS, "</end>", "1", "2", "3"]
TOKEN_BYTES = [token.encode() for token in VOCABULARY]

_PIECES = re.compile("|".join(re.escape(token) for token in sorted(VOCABULARY, key=len, reverse=True)))


def encode(text: str) -> list[int]:
    """The longest token first, but of blanks before a word all but the last: as byte-level tokenizers write them."""
    parts = re.split(r"([ ]+(?= [^\s]))", text)
    return [VOCABULARY.index(piece) for part in parts for piece in _PIECES.findall(part)]


def decode(token_ids: list[int]) -> str:
    """The text of the ids."""
    return b"".join(TOKEN_BYTES[token_id] for token_id in token_ids).decode()


# The draft as a whole.


FILE = list(range(100, 300))
NEW = [1, 2, 3, 4, 5, 6]
MERGE = [*FILE[:30], *NEW, *FILE[30:]]


def proposal(draft: MergeDraft, output: Sequence[int], max_tokens: int = 8) -> list[int]:
    return list(draft.propose(output, max_tokens).token_ids)


def draft_of(*merges: list[int], update: Sequence[int] = (), prediction: list[int] | None = None) -> MergeDraft:
    return MergeDraft(merges=merges, original=FILE, update=update, prediction=prediction)


def test_the_best_merge_is_drafted_to_its_end() -> None:
    assert proposal(draft_of(MERGE, FILE), [], 1000) == MERGE
    assert proposal(draft_of(MERGE), MERGE[:31], 1000) == MERGE[31:]
    assert proposal(draft_of(MERGE), MERGE) == []


def test_without_a_merge_the_prediction_is_drafted_and_without_that_the_original() -> None:
    assert proposal(draft_of(prediction=MERGE), [], 1000) == MERGE
    assert proposal(draft_of(), [], 1000) == FILE


def test_a_hunk_that_the_model_leaves_is_left_and_the_next_one_drafted() -> None:
    merge = [*FILE[:30], *NEW, *FILE[34:150], 7, 7, *FILE[150:]]
    assert proposal(draft_of(merge), FILE[:31], 1000) == [*FILE[31:150], 7, 7, *FILE[150:]]


def test_hunks_close_by_are_left_together() -> None:
    merge = [*FILE[:30], *NEW, *FILE[34:50], 7, *FILE[50:]]
    assert proposal(draft_of(merge), FILE[:31], 1000) == FILE[31:]


def test_a_hunk_at_another_place_is_drafted_from_the_update_and_the_file_behind_it() -> None:
    update = [*FILE[9:12], *NEW, *FILE[12:15]]
    assert proposal(draft_of(MERGE, update=update), [*FILE[:12], NEW[0]], 12) == [*NEW[1:], *FILE[12:19]]


def test_another_merge_is_taken_where_the_model_writes_it() -> None:
    other = [*FILE[:30], 8, 9, 10, *FILE[30:]]
    assert proposal(draft_of(MERGE, other), [*FILE[:30], 8], 4) == [9, 10, *FILE[30:32]]


def test_behind_a_deletion_and_behind_an_insertion_the_copy_is_found_again() -> None:
    assert proposal(draft_of(), [*FILE[:10], *FILE[20:22]], 3) == FILE[22:25]
    assert proposal(draft_of(), [*FILE[:10], 1, 2, *FILE[10:12]], 3) == FILE[12:15]


def test_the_copy_jumps_back_to_what_is_written_again() -> None:
    assert proposal(draft_of(), [*FILE[:30], *FILE[5:8]], 3) == FILE[8:11]


def test_what_the_model_wrote_itself_is_a_source() -> None:
    written = [*FILE[:10], 1, 2, 3, 4, 5, 6, *FILE[10:20], 1, 2, 3, 4]
    assert proposal(draft_of(), written, 2) == [5, 6]


def test_a_token_that_stands_nowhere_is_taken_to_be_substituted() -> None:
    assert proposal(draft_of(), [*FILE[:10], 7], 3) == FILE[11:14]


BEFORE = """\
def a(x)
    if x
        b
    c

def zz(y)
    1
    2
def c(c)
    3
</end>"""


def texts(*merges: str, update: str) -> MergeDraft:
    return MergeDraft(
        merges=[encode(merge) for merge in merges],
        original=encode(BEFORE),
        update=encode(update),
        token_bytes=TOKEN_BYTES,
    )


def gone_on(draft: MergeDraft, written: str, max_tokens: int = 1000) -> str:
    return decode(proposal(draft, encode(written), max_tokens))


def test_a_line_that_stands_for_code_left_out_is_not_drafted() -> None:
    draft = texts(update="# ... rest ...\ndef zz(y)\n    1\n    y y\n# ... rest ...\n")
    written = BEFORE[: BEFORE.index("    2")] + "    y"
    assert gone_on(draft, written) == " y" + BEFORE[BEFORE.index("\ndef c(c)") :]


def test_a_merge_at_the_wrong_depth_is_drafted_at_the_depth_that_the_model_writes() -> None:
    merge = BEFORE.replace("    1\n    2\n", "  if y\n      1\n  zz\n  2\n")
    right = BEFORE.replace("    1\n    2\n", "    if y\n        1\n    zz\n    2\n")
    at = right.index("    if y")
    assert gone_on(texts(merge, update=""), right[: at + 3]) == right[at + 3 :]


def test_tabs_are_drafted_where_the_model_writes_tabs() -> None:
    merge = BEFORE.replace("    1\n    2\n", "    if y\n        1\n    zz\n    2\n")
    right = BEFORE.replace("    1\n    2\n", "\tif y\n\t\t1\n\tzz\n\t2\n")
    at = right.index("if y")
    assert gone_on(texts(merge, update=""), right[:at], 10).startswith(right[at : right.index("\t2")])


toy_ids = st.lists(st.integers(0, len(TOKEN_BYTES) - 1), max_size=25)
steps = st.lists(st.integers(1, 7), min_size=1, max_size=8)
code = st.lists(
    st.sampled_from(["def a(x)\n", "    if x\n", "        b\n", "    c\n\n", "# ... rest ...\n", "\tzz\n", "y"])
)
texts_of_code = st.one_of(toy_ids, code.map(lambda lines: encode("".join(lines))))


@given(
    merges=st.lists(texts_of_code, max_size=2),
    original=texts_of_code,
    update=texts_of_code,
    prediction=st.none() | texts_of_code,
    output=texts_of_code,
    strides=steps,
    max_tokens=st.integers(0, 9),
    knows_bytes=st.booleans(),
)
@example(  # the indentation and the file that were planned furthest ahead were taken for those at the departure
    merges=[],
    original=[],
    update=[28, 16, 17, 33, 3, 12, 8, 5, 35],
    prediction=[0],
    output=[28, 16, 17, 33, 28, 16, 17, 33],
    strides=[5],
    max_tokens=6,
    knows_bytes=True,
)
@example(  # what was written after the plan began was copied, if the plan was extended only then
    merges=[],
    original=[],
    update=[],
    prediction=None,
    output=[11, 33, 28, 16, 17, 33, 28, 16, 17, 33, 28, 16, 17, 33],
    strides=[2, 7],
    max_tokens=1,
    knows_bytes=True,
)
def test_whatever_is_written_the_draft_is_made_of_the_sources_and_not_of_how_the_output_came(
    merges: list[list[int]],
    original: list[int],
    update: list[int],
    prediction: list[int] | None,
    output: list[int],
    strides: list[int],
    max_tokens: int,
    knows_bytes: bool,
) -> None:
    def make() -> MergeDraft:
        return MergeDraft(
            merges=merges,
            original=original,
            update=update,
            prediction=prediction,
            token_bytes=TOKEN_BYTES if knows_bytes else None,
        )

    in_steps, seen = make(), 0
    for stride in strides:
        seen = min(len(output), seen + stride)
        check(in_steps.propose(output[:seen], max_tokens), max_tokens)
    in_steps.propose(output, 1)
    proposed = in_steps.propose(output, max_tokens)
    assert proposed == make().propose(output, max_tokens)
    known = {token_id for text in (*merges, original, update, prediction or [], output) for token_id in text}
    words = {TOKEN_BYTES[token_id].strip(b" \t") for token_id in known} | {b""}
    if not knows_bytes:
        assert known.issuperset(proposed.token_ids)
    assert all(TOKEN_BYTES[token_id].strip(b" \t") in words for token_id in proposed.token_ids)


def check(draft: Draft, max_tokens: int) -> None:
    assert len(draft.token_ids) <= max_tokens
    assert sum(run.num_tokens for run in draft.runs) == len(draft.token_ids)
    assert all(run.num_tokens > 0 and 0 < run.hazard < 1 for run in draft.runs)
    assert {run.source for run in draft.runs} <= {"merge", "prediction", "original", "update", "output"}


def test_runs_tell_the_sources_and_where_a_departure_is_likely() -> None:
    runs = draft_of(MERGE).propose([], 1000).runs
    assert [run.source for run in runs] == ["merge"] * len(runs)
    assert [run.num_tokens for run in runs] == [30, 1, 5, 1, len(MERGE) - 37]
    assert runs[1].hazard > 10 * runs[0].hazard
    several = draft_of(MERGE, FILE).propose([], 1000).runs
    assert several[0].hazard > runs[0].hazard
    assert [run.source for run in draft_of(prediction=MERGE).propose([], 9).runs] == ["prediction"]
    assert [run.source for run in draft_of().propose([], 9).runs] == ["original"]


def num_passes(target: list[int], draft: MergeDraft, cap: int) -> int:
    """Passes that write `target`, if the model wants exactly that: each confirms a prefix and gives one token."""
    written, passes = 0, 0
    while written < len(target):
        proposed = proposal(draft, target[:written], cap)
        accepted = 0
        while accepted < len(proposed) and target[written : written + accepted + 1] == proposed[: accepted + 1]:
            accepted += 1
        written += accepted + 1
        passes += 1
    return passes


def test_a_right_merge_takes_one_pass_and_a_departure_one_more() -> None:
    assert num_passes(MERGE, draft_of(MERGE), 1000) == 1
    assert num_passes(FILE, draft_of(MERGE), 1000) == 2
    assert num_passes([*MERGE[:50], 99, *MERGE[51:]], draft_of(MERGE), 1000) == 2
    assert num_passes(list(range(500, 540)), draft_of(MERGE), 1000) == 40


@pytest.mark.parametrize("token_bytes", [None, TOKEN_BYTES])
def test_ids_beyond_the_vocabulary_do_no_harm(token_bytes: list[bytes] | None) -> None:
    draft = MergeDraft(merges=[[10**6, 5, 10**6]], original=[], update=[], token_bytes=token_bytes)
    assert proposal(draft, [10**6]) == [5, 10**6]
    assert proposal(draft, [10**6, 10**7]) in ([], [10**6])


# Places of a merge and of the original: the same token outside of hunks, and back again.


START, OLD_START = 5, 100
ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids, ids)
def test_outside_of_hunks_the_texts_are_equal_and_places_are_told_both_ways(
    merge: list[int], original: list[int]
) -> None:
    found = Hunks(merge, original, START, OLD_START)
    for at in range(len(merge)):
        place = START + at
        old_place = found.find_old_place(place)
        assert OLD_START <= old_place <= OLD_START + len(original)
        if not found.touches(place, place + 1):
            assert original[old_place - OLD_START] == merge[at]
            assert found.find_new_place(old_place) == place
    assert [found.find_old_place(START + at) for at in range(len(merge))] == sorted(
        found.find_old_place(START + at) for at in range(len(merge))
    )


@given(ids, ids, ids, ids)
def test_places_together_are_told_as_one_by_one(
    merge: list[int], original: list[int], update: list[int], output: list[int]
) -> None:
    sources = Sources([merge], None, original, update, None)
    sources.texts.grow(output)
    places = np.arange(1, sources.texts.starts[-1] + len(output), dtype=np.int64)
    numbers, ends = sources.texts.locate(places)
    assert numbers.tolist() == [sources.texts.text_of(place) for place in places.tolist()]
    assert ends.tolist() == [sources.texts.end_of(place) for place in places.tolist()]
    old_places = [sources.find_old_place(place) for place in places.tolist()]
    assert sources.find_old_places(places, numbers).tolist() == [-1 if each is None else each for each in old_places]


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 2)), max_size=4), st.integers(1, 40))
def test_a_draft_that_is_planned_piece_by_piece_is_the_one_that_is_planned_at_once(
    departures: list[tuple[int, int]], piece: int
) -> None:
    output = MERGE.copy()
    for at, kind in sorted(departures, reverse=True):
        output[at : at + kind] = [7, 8][: 2 - kind]
    whole, pieces = draft_of(MERGE, FILE, update=NEW), draft_of(MERGE, FILE, update=NEW)
    for written in range(len(output)):
        expected = proposal(whole, output[:written], 1000)
        assert proposal(pieces, output[:written], piece) == expected[:piece]


@given(ids, ids)
def test_hunks_are_in_order_and_what_is_between_them_is_equal(merge: list[int], original: list[int]) -> None:
    at, old_at = START, OLD_START
    for hunk in Hunks(merge, original, START, OLD_START).hunks:
        assert hunk.start - at == hunk.old_start - old_at >= 0
        assert merge[at - START : hunk.start - START] == original[old_at - OLD_START : hunk.old_start - OLD_START]
        at, old_at = hunk.end, hunk.old_end
    assert merge[at - START :] == original[old_at - OLD_START :]


def test_neighbouring_hunks_are_one_region() -> None:
    original = [*range(200), 901, *range(200, 210), 902, *range(210, 400)]
    merge = [*range(200), *range(200, 210), 903, *range(210, 400)]
    found = Hunks(merge, original, 0, 0)
    assert len(found.hunks) == 2
    region = found.find_region(205)
    assert region is not None
    assert (region.old_start, region.old_end) == (200, 212)
    assert (region.start, region.end) == (200, 211)
    assert found.find_region(199) is None
    assert found.find_region(212) is None


def test_a_text_without_changes_has_no_hunk() -> None:
    found = Hunks([1, 2, 3], [1, 2, 3], START, OLD_START)
    assert found.hunks == []
    assert found.find_new_place(found.find_old_place(START + 3)) == START + 3


# Lines are drafted at the indentation that the model gives a block.


LINES = TokenLines(TOKEN_BYTES)


@pytest.mark.parametrize(
    ("pairs", "indent", "expected"),
    [
        ({}, b"  ", b"  "),
        ({b"": b"    "}, b"  ", b"      "),
        ({b"    ": b""}, b"      ", b"  "),
        ({b"        ": b"    "}, b"    ", b""),
        ({b"    ": b"\t"}, b"        ", b"\t\t"),
        ({b"\t": b"  "}, b"\t\t\t", b"      "),
        ({b"  ": b"    ", b"    ": b"        "}, b"      ", b"            "),
        ({b"": b"\t\t", b"    ": b"\t\t\t"}, b"        ", b"\t\t\t\t"),
        ({b"    ": b"      ", b"        ": b"          "}, b"", b"  "),
        ({b"\t": b"  "}, b" ", b" "),  # nothing can be told
    ],
)
def test_what_was_seen_of_some_lines_tells_of_others(pairs: dict[bytes, bytes], indent: bytes, expected: bytes) -> None:
    assert Reindent(pairs)(indent) == expected


words = st.sampled_from(["def", "x", "zz (", "a b", "1", "...", "y)"])
depths = st.integers(0, 7)


@given(depths, depths, words)
def test_a_line_at_another_depth_is_tokenized_as_if_written_there(old: int, new: int, words: str) -> None:
    line = encode(" " * old + words + "\n")
    moved = reindent_line(line, Reindent({b" " * old: b" " * new}), LINES)
    assert moved == encode(" " * new + words + "\n")


@given(depths, depths, words.filter(lambda words: words != "1"))  # " 1" and "  1" both begin with the token " "
def test_a_line_whose_blanks_are_written_is_gone_on_with(old: int, new: int, words: str) -> None:
    line, written = encode(" " * old + words + "\n"), encode(" " * new + words + "\n")
    if not LINES.describe(written[0]).is_blank:
        return
    rest, seen = complete_line(line, written[:1], LINES)
    assert rest == written[1:]
    assert all(Reindent(seen)(b" " * old) == b" " * new for _ in seen)


def test_blank_lines_and_words_without_a_token_stay_as_they_are() -> None:
    blank, unknown = encode("  \n"), [999, *encode("\n")]
    assert reindent_line(blank, Reindent({b"": b"  "}), LINES) == blank
    assert reindent_line(unknown, Reindent({b"": b"  "}), LINES) == unknown


# The suffix index finds every place that a search token by token finds.


few_ids = st.lists(st.integers(0, 2), max_size=12)


def slow_search(texts: list[list[int]], tail: list[int], longest: int) -> dict[int, int]:
    """Place -> length of the match before it, over the texts laid end to end with one place between them."""
    found, start = {}, 1
    for number, text in enumerate(texts):
        last = len(text) if number + 1 < len(texts) else len(text) - 1  # nothing is known behind the output
        for end in range(1, last + 1):
            length = 0
            while length < min(end, len(tail), longest) and text[end - 1 - length] == tail[-1 - length]:
                length += 1
            if length:
                found[start + end] = length
        start += len(text) + 1
    return found


@given(st.lists(few_ids, max_size=3), few_ids, few_ids, st.integers(1, 6))
@example([[0, 0]], [0, 0, 0], [0, 0, 0], 6)
def test_the_search_equals_one_token_by_token(
    sources: list[list[int]], output: list[int], tail: list[int], longest: int
) -> None:
    index = SuffixIndex(sources, room=1)
    index.grow(output)
    places, lengths = index.search(tail, longest)
    assert dict(zip(places.tolist(), lengths.tolist(), strict=True)) == slow_search([*sources, output], tail, longest)


@given(st.lists(few_ids, max_size=3), few_ids, st.lists(st.integers(1, 5), max_size=8))
def test_growing_in_steps_equals_growing_at_once(sources: list[list[int]], output: list[int], steps: list[int]) -> None:
    at_once, in_steps = SuffixIndex(sources), SuffixIndex(sources, room=0)
    at_once.grow(output)
    seen = 0
    for step in [*steps, len(output)]:
        in_steps.grow(output[seen : seen + step])
        seen = min(len(output), seen + step)
    assert in_steps.end == at_once.end
    assert in_steps[0 : at_once.end + 1] == at_once[0 : at_once.end + 1]


def test_the_texts_stand_apart() -> None:
    index = SuffixIndex([[1, 2], [3]])
    index.grow([2, 3])
    assert index.starts == [1, 4, 6]
    assert index[0:9] == [NO_TOKEN, 1, 2, NO_TOKEN, 3, NO_TOKEN, 2, 3, NO_TOKEN]
    places, lengths = index.search([2, 3], 8)
    assert (places.tolist(), lengths.tolist()) == ([5], [1])  # not across texts, and not the output's own end
