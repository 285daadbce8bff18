"""A session's prompts: files in place, notes behind, nothing moves without need, the same calls give the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.errors import BadFile, CorruptModel
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.session import HistoryMessage, PromptLayout, SessionPrompt
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
