"""Edits in messages, as hosted apply services take them, and the names of files without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.errors import BadRequest
from agent_runtime.server.openai.requests import (
    MAX_BORDERS,
    MAX_CHARACTERS,
    ApplyMessage,
    guess_file_name,
    parse_apply_message,
)

CODE = "def area(r):\n    return 3 * r * r\n"
UPDATE = "def area(r):\n    return 3.14 * r * r\n"


def message(code: str, update: str, instruction: str | None = None, between: str = "\n") -> str:
    first = "" if instruction is None else f"<instruction>{instruction}</instruction>{between}"
    return f"{first}<code>{code}</code>{between}<update>{update}</update>"


@pytest.mark.parametrize("between", ["", "\n", "\r\n", "\n\n  "])
@pytest.mark.parametrize("instruction", [None, "make it precise", "", "a\nb"])
def test_the_sections_are_what_stands_between_the_tags(instruction: str | None, between: str) -> None:
    read = parse_apply_message(message(CODE, UPDATE, instruction, between))
    assert read == ApplyMessage(CODE, UPDATE, instruction or "")


def test_white_space_about_the_message_counts_for_nothing() -> None:
    assert parse_apply_message(f"\n  {message(CODE, UPDATE)}\r\n ") == ApplyMessage(CODE, UPDATE)


TEXTS = st.text(st.sampled_from("ab \n\r\t<>/é"), max_size=12)


@given(TEXTS, TEXTS)
def test_texts_without_tags_arrive_byte_for_byte(code: str, update: str) -> None:
    """But for line ends at all four inner borders, which belong to the message."""
    read = parse_apply_message(message(f"x{code}", update))
    assert read == ApplyMessage(f"x{code}", update)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_that_set_both_texts_apart_from_the_tags_are_not_of_the_texts(end: str) -> None:
    code, update = (text.replace("\n", end) for text in (CODE, UPDATE))
    assert parse_apply_message(message(f"{end}{code}{end}", f"{end}{update}{end}")) == ApplyMessage(code, update)
    cut = code.removesuffix(end)
    assert parse_apply_message(message(f"{end}{cut}{end}", f"{end}{update}{end}")) == ApplyMessage(cut, update)
    assert parse_apply_message(message(f"{end}{end}", f"{end}{update}{end}")) == ApplyMessage("", update)


def test_a_file_that_begins_with_a_blank_line_keeps_it() -> None:
    code = f"\n{CODE}"
    assert parse_apply_message(message(code, UPDATE)) == ApplyMessage(code, UPDATE)
    assert parse_apply_message(message("\n", UPDATE)) == ApplyMessage("\n", UPDATE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What does <code> mean?",
        "<code>a</code>",
        "<update>a</update>",
        "<code>a</code> and then <update>b</update>",
        "<code>a</code><update>b</update> Write the whole file.",
        "Merge this: <code>a</code><update>b</update>",
        "<instruction>i</instruction><update>b</update>",
        "<instruction>i</instruction>, <code>a</code><update>b</update>",
        "<update>b</update><code>a</code>",
    ],
)
def test_another_form_is_a_question_like_any_other(text: str) -> None:
    assert parse_apply_message(text) is None


WRAPPED = "PROMPT = '''\n<instruction>x</instruction>\n<code>a</code>\n<update>b</update>\n'''\n"


@pytest.mark.parametrize("sample", [WRAPPED, WRAPPED.replace("\n<instruction>x</instruction>", "")])
@pytest.mark.parametrize("instruction", [None, "raise it"])
@pytest.mark.parametrize("code_has", [True, False])
@pytest.mark.parametrize("update_has", [True, False])
def test_texts_that_hold_the_tags_are_told_apart_where_each_closes_what_it_opens(
    sample: str, instruction: str | None, code_has: bool, update_has: bool
) -> None:
    code, update = CODE + sample * code_has, UPDATE + sample * update_has
    read = parse_apply_message(message(code, update, instruction))
    assert read == ApplyMessage(code, update, instruction or "")


@pytest.mark.parametrize(
    ("code", "update"),
    [
        ("a = '</code><update>'\n", "b\n"),
        ("a\n", "b = '</code><update>'\n"),
        ("a\n</code><update></update><code>\n", "b\n"),
    ],
)
def test_texts_that_cannot_be_told_apart_are_refused(code: str, update: str) -> None:
    with pytest.raises(BadRequest, match="/v1/code/apply"):
        parse_apply_message(message(code, update))


def test_an_instruction_may_hold_tags_of_the_later_sections() -> None:
    read = parse_apply_message(message(CODE, UPDATE, "see </code><update>"))
    assert read == ApplyMessage(CODE, UPDATE, "see </code><update>")


def test_tags_that_only_balance_when_the_file_is_cut_are_refused() -> None:
    with pytest.raises(BadRequest, match="/v1/code/apply"):
        parse_apply_message(message("</instruction><code>b\n", UPDATE, "close it with </code>"))


def test_texts_full_of_tags_are_refused_and_not_searched() -> None:
    with pytest.raises(BadRequest, match="more than"):
        parse_apply_message(message("</code><update>" * (MAX_BORDERS + 1), "b"))


def test_one_closing_tag_in_a_text_changes_nothing() -> None:
    code, update = "a = '</code>'\n", "b = '<update>'  # <code>\n"
    assert parse_apply_message(message(code, update)) == ApplyMessage(code, update)


SAMPLES = {
    "file.py": "import os\n\n\ndef size(path):\n    return os.stat(path).st_size  # bytes\n",
    "file.ts": "import { log } from './log';\n\nexport function log2(value: number): number {\n  return 2;\n}\n",
    "file.tsx": "import React from 'react';\n\nexport function Hello() {\n  return <b>Hello</b>;\n}\n",
    "file.go": 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hello")\n}\n',
    "file.rs": "use std::fs;\n\npub fn size(path: &str) -> u64 {\n    fs::metadata(path).unwrap().len()\n}\n",
    "file.cpp": "#include <vector>\n\nint first(const std::vector<int>& all) {\n  return all.front();\n}\n",
    "file.cs": "using System;\n\nnamespace Shop {\n    class Cart {\n        int Total() { return 1; }\n    }\n}\n",
    "file.java": "package shop;\n\npublic class Cart {\n    int total() {\n        return 1;\n    }\n}\n",
    "file.php": "<?php\n\nfunction twice($value) {\n    return $value * 2;\n}\n",
    "file.rb": "def twice(value)\n  value * 2\nend\n",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_language_is_told_by_the_text(name: str) -> None:
    assert guess_file_name(SAMPLES[name]) == name
    assert guess_file_name(SAMPLES[name].replace("\n", "\r\n")) == name


def test_javascript_counts_as_typescript() -> None:
    assert guess_file_name("function add(a, b) {\n  return a + b;\n}\n") == "file.ts"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "limit = 10\n",
        "# Notes\n\nclass Cart:\n\nis what we begin with, and then: nothing (yet.\n",
        "def broken(:\n    return\n",
        '{"function": "none"}\n',
        "def f():\n    pass\n" * (MAX_CHARACTERS // 10),
    ],
)
def test_a_text_that_proves_nothing_has_no_name(text: str) -> None:
    assert guess_file_name(text) == ""
