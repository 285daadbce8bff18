"""A session's prompts: files in place, notes behind, nothing moves without need, the same calls give the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.errors import BadFile, CorruptModel
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.session import HistoryMessage, PromptLayout, SessionPrompt
from agent_runtime.session.changes import (
    PRIOR_CHANCE,
    ChangeRates,
    FileCost,
    LineEdit,
    apply_edits,
    choose_order,
    diff_lines,
    estimate_prefill,
    find_cheapest_order,
    find_new_edits,
    merge_edits,
    render_note,
    split_lines,
)
from agent_runtime.session.prompt import make_file_segments
from agent_runtime.types import ReuseName
from engine.reuse import PromptSegment
from repo_cache.cache import RepoCache
from tests.models import RealModel

A = "".join(f"def function_{number}(x):\n    return x + {number}\n\n\n" for number in range(40))
A2 = A.replace("return x + 20", "return x + 2000")
B = "LIMIT = 30\n\n\ndef limit():\n    return LIMIT\n"
FILES = {"a.py": A, "b.py": B}
NAMES = ("a.py", "b.py", "docs/c.md")


def session(model: RealModel, **options: Any) -> PromptLayout:
    return PromptLayout(
        ChatTemplate(model.chat_template), model.tokenizer, preamble="You help.", **{"rebase_share": 0.5, **options}
    )


def text_of(model: RealModel, prompt: SessionPrompt) -> str:
    return model.tokenizer.decode(prompt.token_ids)


def said(*texts: str) -> list[HistoryMessage]:
    return [HistoryMessage("assistant" if number % 2 else "user", text) for number, text in enumerate(texts)]


def test_what_stands_where(smollm2: RealModel) -> None:
    prompt = session(smollm2).build_prompt(FILES, said("Hi.", "Hello."), "What now?", clock="It is noon.\n")
    assert text_of(smollm2, prompt) == (
        "<|im_start|>system\nYou help.<|im_end|>\n"
        "<|im_start|>user\nFiles of the project. Notes further on may supersede lines of them; the latest note holds.\n"
        f'<file path="a.py">\n{A}</file>\n<file path="b.py">\n{B}</file>\nHi.<|im_end|>\n'
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nIt is noon.\nWhat now?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [(part.kind, part.name) for part in prompt.parts] == [
        ("preamble", ""),
        ("preamble", ""),
        ("file", "a.py"),
        ("file", "b.py"),
        ("history", "0"),
        ("history", "1"),
        ("question", "2"),
    ]
    assert prompt.parts[-1].end == len(prompt.token_ids) == prompt.to_reuse().segment_ends[-1]


def test_files_have_the_ids_of_the_repository_cache(smollm2: RealModel, tmp_path: Any) -> None:
    (tmp_path / "a.py").write_text(A)
    with RepoCache.open(tmp_path, smollm2.tokenizer, watch=False) as cache:
        tokens = cache.tokens("a.py")
        segments = make_file_segments(smollm2.tokenizer, "a.py", tokens, ends_line=True)
        assert [number for each in segments[1:-1] for number in each.token_ids] == smollm2.tokenizer.encode(A)
        assert len(segments) - 2 == len(tokens.spans)
        from_cache = session(smollm2).build_prompt({"a.py": tokens}, (), "?")
    from_text = session(smollm2).build_prompt({"a.py": A}, (), "?")
    assert from_cache.segments == from_text.segments
    assert len(segments) > 3


def test_no_token_reaches_across_a_border_and_no_text_is_a_control_token(smollm2: RealModel) -> None:
    files = {"a.txt": "x<|im_end|>", "b.txt": "  \n\n", "empty": ""}
    prompt = session(smollm2).build_prompt(files, said("<|im_end|>", "  "), "\n\n<|im_start|>")
    for segment in prompt.segments:
        assert segment.token_ids
    assert (
        text_of(smollm2, prompt).count("<|im_end|>")
        == prompt.token_ids.count(smollm2.tokenizer.encode_template("<|im_end|>")[0]) + 2
    )
    assert '<file path="a.txt">\nx<|im_end|>\n</file>\n' in text_of(smollm2, prompt)
    assert '<file path="empty">\n</file>\n' in text_of(smollm2, prompt)


@pytest.mark.parametrize("mode", ["exact", "balanced", "fast", "turbo"])
def test_a_turn_without_changes_keeps_all_before_the_question(smollm2: RealModel, mode: ReuseName) -> None:
    own = session(smollm2)
    first = own.build_prompt(FILES, (), "One?", mode, clock="10:00\n")
    second = own.build_prompt(FILES, said("One?", "Yes."), "Two?", mode, clock="10:01\n")
    assert text_of(smollm2, second).startswith(text_of(smollm2, first) + "Yes.")
    assert second.num_kept == len(first.token_ids)
    assert second.order == first.order
    assert own.build_prompt(FILES, said("One?", "Yes."), "Three?", mode).num_kept < second.num_kept + 20


def test_a_changed_file_is_written_anew_or_noted(smollm2: RealModel) -> None:
    changed = {**FILES, "a.py": A2}
    prompts = {}
    for mode in ("exact", "balanced", "fast"):
        own = session(smollm2)
        own.build_prompt(FILES, (), "One?", mode)
        prompts[mode] = own.build_prompt(changed, said("One?", "Yes."), "Two?", mode)
    place = text_of(smollm2, prompts["balanced"]).index("This supersedes lines 80-84 of a.py, which now read:\n")
    assert place > text_of(smollm2, prompts["balanced"]).index("Yes.")
    assert A in text_of(smollm2, prompts["balanced"])
    assert "return x + 2000" in text_of(smollm2, prompts["balanced"])[place:]
    assert prompts["balanced"].noted == ("a.py",)
    assert prompts["balanced"].to_reuse().mode == "exact"
    assert prompts["exact"].segments == prompts["fast"].segments
    assert prompts["fast"].to_reuse().mode == "fast"
    ((first, end),) = prompts["fast"].to_reuse().recompute
    asked = smollm2.tokenizer.decode(prompts["fast"].token_ids[first:end])
    assert asked.endswith("<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n")
    assert "Yes." not in asked
    assert end == len(prompts["fast"].token_ids)
    assert prompts["exact"].to_reuse().recompute == ()
    assert A2 in text_of(smollm2, prompts["exact"])
    assert "supersedes lines" not in text_of(smollm2, prompts["exact"])
    assert prompts["balanced"].num_kept > prompts["exact"].num_kept


def test_notes_stay_where_they_were_said_and_only_news_is_added(smollm2: RealModel) -> None:
    own = session(smollm2)
    own.build_prompt(FILES, (), "One?", "balanced")
    second = own.build_prompt({**FILES, "a.py": A2}, said("One?", "Yes."), "Two?", "balanced")
    third = own.build_prompt({**FILES, "a.py": A2}, said("One?", "Yes.", "Two?", "No."), "Three?", "balanced")
    assert third.num_kept == len(second.token_ids)
    both = {"a.py": A2.replace("x + 3\n", "x + 300\n"), "b.py": B}
    fourth = own.build_prompt(both, said("One?", "Yes.", "Two?", "No.", "Three?", "Well."), "Four?", "balanced")
    assert fourth.num_kept == len(third.token_ids)
    assert text_of(smollm2, fourth).count("return x + 2000") == 1
    assert text_of(smollm2, fourth).count("return x + 300\n") == 1


def test_too_many_notes_have_the_file_written_anew(smollm2: RealModel) -> None:
    own = session(smollm2, rebase_share=0.2)
    own.build_prompt(FILES, (), "One?", "balanced")
    much = {"a.py": A, "b.py": B.replace("30", "40")}  # a note is longer than a fifth of this file
    prompt = own.build_prompt(much, said("One?", "Yes."), "Two?", "balanced")
    assert "LIMIT = 40" in text_of(smollm2, prompt)
    assert "LIMIT = 30" not in text_of(smollm2, prompt)
    assert prompt.noted == ()


def test_a_rewritten_history_loses_no_note(smollm2: RealModel) -> None:
    own = session(smollm2)
    own.build_prompt(FILES, (), "One?", "balanced")
    own.build_prompt({**FILES, "a.py": A2}, said("One?", "Yes."), "Two?", "balanced")
    short = own.build_prompt({**FILES, "a.py": A2}, said("Summary."), "Three?", "balanced")
    assert text_of(smollm2, short).count("return x + 2000") == 1
    assert text_of(smollm2, short).rindex("return x + 2000") > text_of(smollm2, short).index("Summary.")


def test_a_turn_that_is_asked_again_has_the_clock_and_the_notes_of_now(smollm2: RealModel) -> None:
    own = session(smollm2)
    own.build_prompt(FILES, (), "One?", "balanced")
    own.build_prompt({**FILES, "a.py": A2}, said("One?", "Yes."), "Two?", "balanced", clock="10:00\n")
    again = own.build_prompt({**FILES, "a.py": A2.replace("2000", "3000")}, said("One?", "Yes."), "Two?", "balanced")
    assert "10:00" not in text_of(smollm2, again)
    assert "return x + 2000" not in text_of(smollm2, again)
    assert text_of(smollm2, again).count("return x + 3000") == 1


def test_behind_what_broke_the_prefix_files_are_written_anew(smollm2: RealModel) -> None:
    other = A.replace("function", "other")
    own = session(smollm2)
    assert own.build_prompt({"a.py": A, "c.py": other}, (), "One?", "balanced").order == ("a.py", "c.py")
    edited = other.replace("return x + 20", "return x + 2000")
    second = own.build_prompt({"a.py": A, "c.py": edited}, said("One?", "Yes."), "Two?", "balanced")
    assert second.noted == ("c.py",)
    third = own.build_prompt({"c.py": edited}, said("One?", "Yes.", "Two?", "No."), "Three?", "balanced")
    assert third.rebased == ("c.py",)
    assert edited in text_of(smollm2, third)
    assert "supersedes lines" not in text_of(smollm2, third)


def read_back(prompt_text: str) -> dict[str, str]:
    """The files as a reader has them who puts every note in its place."""
    files: dict[str, dict[int, str]] = {}
    for piece in prompt_text.split('<file path="')[1:]:
        path, rest = piece.split('">\n', 1)
        lines = rest.split("</file>\n")[0].splitlines(keepends=True)
        files[path] = dict(enumerate(lines, start=1))
    for piece in prompt_text.split("This supersedes line")[1:]:
        where, rest = piece.split(" of ", 1)
        first, _, last = where.removeprefix("s").strip().partition("-")
        path = rest.split(", which", 1)[0]
        deleted = rest.split(", which", 1)[1].startswith(" were deleted")
        shown = "" if deleted else rest.split("```\n")[1]
        files[path][int(first)] = shown
        files[path].update((line, "") for line in range(int(first) + 1, int(last or first) + 1))
    return {path: "".join(lines[number] for number in sorted(lines)) for path, lines in files.items()}


LINES = st.lists(st.sampled_from(["x = 1\n", "y = 2\n", "z = 3\n", "\n"]), min_size=1, max_size=12).map("".join)
VERSIONS = st.dictionaries(st.sampled_from(NAMES), LINES, min_size=1, max_size=3)


@settings(max_examples=30)
@given(st.lists(VERSIONS, min_size=1, max_size=5))
def test_any_session_shows_the_files_as_they_are(smollm2: RealModel, turns: list[Mapping[str, str]]) -> None:
    own, again = (session(smollm2, rebase_share=1.5) for _ in range(2))
    history: list[HistoryMessage] = []
    for number, files in enumerate(turns):
        prompt = own.build_prompt(files, history, f"Question {number}?", "balanced")
        assert prompt == again.build_prompt(files, history, f"Question {number}?", "balanced")
        assert read_back(text_of(smollm2, prompt)) == files
        history += said(f"Question {number}?", "Answer.")


def test_files_likely_to_change_come_last_when_the_order_is_free(smollm2: RealModel) -> None:
    own = session(smollm2)
    texts = {"a.py": A, "b.py": A.replace("function", "other")}
    for number in range(12):
        texts = {**texts, "a.py": A.replace("x + 7", f"x + {number}")}
        prompt = own.build_prompt(texts, (), "?", "exact")
    assert prompt.order == ("b.py", "a.py")


def test_what_is_no_text_and_what_is_no_template_say_so(smollm2: RealModel) -> None:
    with pytest.raises(BadFile, match="lone surrogate"):
        session(smollm2).build_prompt({"a.py": "\ud800"}, (), "?")
    with pytest.raises(BadFile, match="cannot be encoded"):
        session(smollm2).build_prompt({"a.py": "\x06"}, (), "?")  # SmolLM2 has no token for it
    with pytest.raises(CorruptModel, match="every message once"):
        PromptLayout(ChatTemplate("{{ messages[0].content }}"), smollm2.tokenizer)


def test_segments_are_values_of_the_engine(smollm2: RealModel) -> None:
    prompt = session(smollm2).build_prompt(FILES, (), "?", "fast")
    assert all(isinstance(segment, PromptSegment) for segment in prompt.segments)


# The order of files: the choice is the best of all orders, and a file moves only if that pays.


ORDER_NAMES = "abcde"
COSTS = st.builds(FileCost, st.integers(1, 500), st.floats(0.0, 0.95))
ORDER_FILES = st.lists(COSTS, min_size=1, max_size=5).map(lambda costs: dict(zip(ORDER_NAMES, costs, strict=False)))


def brute_expected(order: tuple[str, ...], files: dict[str, FileCost]) -> float:
    """Over all sets of files that change: everything from the first of them on."""
    total = 0.0
    for changed in range(1 << len(order)):
        chance, first = 1.0, len(order)
        for place in reversed(range(len(order))):
            hit = changed >> place & 1
            chance *= files[order[place]].chance if hit else 1 - files[order[place]].chance
            first = place if hit else first
        total += chance * sum(files[path].num_tokens for path in order[first:])
    return total


def cost(
    order: tuple[str, ...], old: list[str], files: dict[str, FileCost], cached: int, behind: int, horizon: float
) -> float:
    same = 0
    for one, other in zip(order, old, strict=False):
        if one != other:
            break
        same += files[one].num_tokens
    same, whole = min(same, cached), sum(file.num_tokens for file in files.values())
    return (0 if same == whole else whole - same + behind) + horizon * estimate_prefill(order, files)


@given(ORDER_FILES)
def test_expected_prefill_is_the_mean_over_all_that_may_happen(files: dict[str, FileCost]) -> None:
    assert estimate_prefill(list(files), files) == pytest.approx(brute_expected(tuple(files), files))


@given(ORDER_FILES)
def test_no_order_is_cheaper_than_the_cheapest(files: dict[str, FileCost]) -> None:
    least = min(estimate_prefill(order, files) for order in permutations(files))
    assert estimate_prefill(find_cheapest_order(files), files) == pytest.approx(least)


@given(ORDER_FILES, st.data())
def test_the_next_order_is_the_best_of_all(files: dict[str, FileCost], data: st.DataObject) -> None:
    old = data.draw(st.permutations(list(files)).map(lambda order: order[: data.draw(st.integers(0, len(order)))]))
    cached = data.draw(st.integers(0, sum(files[path].num_tokens for path in old)))
    behind = data.draw(st.integers(0, 2000))
    horizon = data.draw(st.sampled_from([0.0, 1.0, 10.0, 1000.0]))
    chosen = choose_order(old, files, num_cached=cached, num_after=behind, horizon=horizon)
    assert sorted(chosen) == sorted(files)
    least = min(cost(order, old, files, cached, behind, horizon) for order in permutations(files))
    assert cost(tuple(chosen), old, files, cached, behind, horizon) == pytest.approx(least)


def test_a_file_moves_when_that_pays_within_the_horizon_and_not_before() -> None:
    files = {"hot": FileCost(100, 0.5), "cold": FileCost(1000, 0.01)}
    arguments = {"num_cached": 1100, "num_after": 4000}
    # Each turn behind `hot` costs 500 tokens more than before it; to change places costs 5,100 once.
    assert choose_order(["hot", "cold"], files, horizon=10, **arguments) == ["hot", "cold"]
    assert choose_order(["hot", "cold"], files, horizon=11, **arguments) == ["cold", "hot"]


def test_behind_a_change_the_order_is_free() -> None:
    files = {"a": FileCost(50, 0.0001), "b": FileCost(100, 0.5), "c": FileCost(1000, 0.01)}
    assert choose_order(["a", "b", "c"], files, num_cached=50, num_after=10**6, horizon=1) == ["a", "c", "b"]


def test_new_files_stand_behind_those_that_are_cached() -> None:
    files = {"a": FileCost(1000, 0.05), "b": FileCost(1000, 0.05), "new": FileCost(10, 0.01)}
    assert choose_order(["b", "a"], files, num_cached=2000, num_after=3000) == ["b", "a", "new"]


def test_rates_follow_what_is_seen_and_fade() -> None:
    rates = ChangeRates()
    assert rates.estimate_chance("a") == pytest.approx(PRIOR_CHANCE)
    for turn in range(20):
        rates.observe(["a", "b"], {"a"} if turn % 2 else ())
    assert rates.estimate_chance("b") < PRIOR_CHANCE < 0.2 < rates.estimate_chance("a") < 0.5
    often, seldom = rates.estimate_chance("a"), rates.estimate_chance("b")
    for _ in range(20):
        rates.observe(["b"], {"b"})
    assert rates.estimate_chance("b") > 0.4
    assert PRIOR_CHANCE < rates.estimate_chance("a") < often
    assert seldom < PRIOR_CHANCE


@given(st.lists(st.sets(st.sampled_from(ORDER_NAMES)), max_size=60))
def test_chances_lie_between_nothing_and_certainty(turns: list[set[str]]) -> None:
    rates = ChangeRates()
    for changed in turns:
        rates.observe(ORDER_NAMES, changed)
        assert all(0.0 < rates.estimate_chance(path) < 1.0 for path in ORDER_NAMES)


# Change notes: applied to the first version, they give the current file after any sequence of edits.


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n", "```\n", "é\r\n"]), max_size=14).flatmap(
    lambda lines: st.sampled_from(["", "x"]).map(lambda last: "".join(lines) + last)
)
OLD = [f"line {number}\n" for number in range(1, 11)]


@given(TEXTS, TEXTS)
def test_edits_give_the_new_text(old: str, new: str) -> None:
    edits = diff_lines(split_lines(old), split_lines(new))
    assert "".join(apply_edits(split_lines(old), edits)) == new
    assert all(one.end < other.first for one, other in pairwise(edits))


@settings(max_examples=300)
@given(TEXTS, st.lists(TEXTS, max_size=6), st.integers(1, 3))
def test_what_is_said_turn_by_turn_gives_the_text_of_every_turn(first: str, versions: list[str], context: int) -> None:
    """A reader who puts the lines of each edit in place of those that it names has the file as it is now."""
    old = split_lines(first)
    said: tuple[LineEdit, ...] = ()
    read = {line: [text] for line, text in enumerate(old)}  # by line of the first version: what stands for it
    for version in versions:
        wanted = diff_lines(old, split_lines(version))
        news = find_new_edits(old, said, wanted, context)
        said = merge_edits(said, news)
        assert "".join(apply_edits(old, said)) == version
        assert find_new_edits(old, said, wanted, context) == ()
        assert all(one.end <= other.first for one, other in pairwise(said))
        for edit in news:
            assert edit.end > edit.first or not old
            read.update({line: [] for line in range(edit.first, edit.end)})
            read[edit.first] = list(edit.lines)
        assert "".join(line for number in sorted(read) for line in read[number]) == version


def test_a_later_edit_of_the_same_lines_replaces_the_earlier_one() -> None:
    said = find_new_edits(OLD, (), [LineEdit(2, 3, ("x\n",))], 1)
    assert said == (LineEdit(1, 4, ("line 2\n", "x\n", "line 4\n")),)
    news = find_new_edits(OLD, said, [LineEdit(2, 3, ("y\n",)), LineEdit(8, 9, ("z\n",))], 1)
    assert news[0] == LineEdit(0, 5, ("line 1\n", "line 2\n", "y\n", "line 4\n", "line 5\n"))
    assert merge_edits(said, news) == news
    assert len(news) == 2


def test_what_was_said_already_is_not_said_again() -> None:
    wanted = [LineEdit(1, 2, ("x\n",)), LineEdit(8, 9, ("z\n",))]
    said = find_new_edits(OLD, (), wanted[:1])
    assert find_new_edits(OLD, said, wanted) == (LineEdit(6, 10, ("line 7\n", "line 8\n", "z\n", "line 10\n")),)


def test_what_was_taken_back_is_said_to_read_as_at_first() -> None:
    said = find_new_edits(OLD, (), [LineEdit(4, 5, ("x\n",))], 1)
    assert find_new_edits(OLD, said, (), 1) == (LineEdit(2, 7, tuple(OLD[2:7])),)


def test_near_changes_are_one_note() -> None:
    near = [LineEdit(2, 3, ("x\n",)), LineEdit(5, 6, ("y\n",))]
    assert find_new_edits(OLD, (), near, 1) == (LineEdit(1, 7, ("line 2\n", "x\n", *OLD[3:5], "y\n", "line 7\n")),)


def test_a_note_names_the_lines_that_it_shows() -> None:
    (edit,) = find_new_edits(OLD, (), [LineEdit(4, 5, ("five\n",))])
    assert render_note("src/a.py", edit) == (
        "src/a.py was edited after it was shown. This supersedes lines 3-7 of src/a.py, which now read:\n"
        "```\nline 3\nline 4\nfive\nline 6\nline 7\n```\n"
    )
    alone = render_note("a.py", LineEdit(0, 1, ("```\n", "b")))
    assert "supersedes line 1 of a.py" in alone
    assert "````\n```\nb\n````\n" in alone
    assert "which were deleted" in render_note("a.py", LineEdit(0, 1, ()))
    assert "was empty" in render_note("a.py", LineEdit(0, 0, ("b\n",)))
