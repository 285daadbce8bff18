"""`hunk doctor`: the first byte that differs, its cause and its cost, in prompts, requests and recorded sessions."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.doctor import Diagnosis, PromptText, diagnose, read_prompt, render_prompt
from agent_runtime.doctor.diagnosis import (
    RUN,
    count_causes,
    count_common_characters,
    count_tokens,
    diagnose_turn,
    find_broken_turns,
    find_runs,
)
from agent_runtime.doctor.transcripts import RecordedMessage, TextPart, ToolCall, parse_request, read_session
from agent_runtime.errors import BadFile, BadRequest, HunkError
from tests.agent_runtime.cli.test_cli import assert_one_clear_line, hunk
from tests.agent_runtime.serving import hunk_here
from tests.models import SHARED_DATA, RealModel

BODY = "You are a coding agent.\n" + "".join(f"Rule {number}: be careful.\n" for number in range(40))
CODE = "".join(f"def function_{number}(x):\n    return x + {number}\n\n\n" for number in range(20))
TOOLS = [{"name": name, "description": f"Does {name}.", "parameters": {"type": "object"}} for name in ("a", "b", "c")]
USER = {"role": "user", "content": "Please mend the parser."}
SYSTEM = {"role": "system", "content": BODY}


def plain(text: str) -> PromptText:
    return PromptText(text, (TextPart("text", "", 0, len(text)),))


def of_texts(first: str, second: str) -> Diagnosis:
    return diagnose(plain(first), plain(second))


def of_requests(first: dict[str, Any], second: dict[str, Any]) -> Diagnosis:
    return diagnose(render_prompt(parse_request(first)), render_prompt(parse_request(second)))


def kind(diagnosis: Diagnosis) -> str:
    assert diagnosis.status == "broken"
    assert diagnosis.cause is not None
    assert diagnosis.cause.advice
    return diagnosis.cause.kind


def what(diagnosis: Diagnosis) -> str:
    assert diagnosis.cause is not None
    return diagnosis.cause.what


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2026-01-31T09:30:00Z", "2026-01-31T09:30:07Z"),
        ("2026-01-31", "2026-02-01"),
        ("Sat, 31 Jan 2026 09:30:00", "Sun, 1 Feb 2026 09:30:00"),
        ("January 31, 2026", "February 1, 2026"),
        ("31.01.2026", "01.02.2026"),
        ("09:30", "09:31"),
        ("09:59:59", "10:00:00"),
        ("1769851800", "1769851860"),
        ("1769851800123", "1769851860456"),
    ],
)
def test_a_timestamp_at_byte_0_is_named(before: str, after: str) -> None:
    found = of_texts(f"{before}\n{BODY}", f"{after}\n{BODY}")
    assert kind(found) == "timestamp"
    assert what(found) == f"a date or time at byte 0: {before} became {after}"
    assert found.position is not None
    assert found.position.line == 1
    assert found.position.byte == count_common_characters(before, after)
    assert found.counts.num_kept < 10
    assert found.counts.num_same / found.counts.num_tokens > 0.9


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("7f0c1b9e-1c8b-4a52-9c1c-0d6a3b5c7e11", "03b2a1c4-52f0-4b1d-8a8e-6a7f3f1e2d90", "uuid"),
        ("Session: sess_8f3k2j9d1q", "Session: sess_1x9v7b4n2m", "id"),
        ("Request req-01ab23cd45ef", "Request req-98fe76dc54ba", "id"),
        ("commit 9f8e7d6c5b4a", "commit 0a1b2c3d4e5f", "id"),
        ("Turn 7 of at most 50", "Turn 8 of at most 50", "counter"),
        ("You have used 12,345 tokens", "You have used 13,001 tokens", "counter"),
        ("Be brief.", "Be thorough.", "text"),
        ("x = parse_header1(a)", "y = parse_header2(b)", "text"),
        ("Call parse_header_v1x for it.", "Call parse_header_v2x for it.", "text"),
    ],
)
def test_other_values_that_never_stay(before: str, after: str, expected: str) -> None:
    assert kind(of_texts(f"Hello.\n{before}\n{BODY}", f"Hello.\n{after}\n{BODY}")) == expected


def test_the_place_counts_bytes_lines_and_columns() -> None:
    found = of_texts("é日😀\nab é 10:01 x\n", "é日😀\nab é 10:02 x\n")
    assert found.position is not None
    assert (found.position.byte, found.position.line, found.position.column) == (
        len("é日😀\nab é 10:0".encode()),
        2,
        10,
    )
    assert found.before is not None
    assert found.after is not None
    assert (found.before.text, found.after.text) == ("ab é 10:01 x", "ab é 10:02 x")
    assert found.after.text[found.after.mark] == "2"
    assert what(found).startswith(f"a date or time at byte {len('é日😀 ab é '.encode())}:")


def test_line_endings_and_white_space() -> None:
    assert kind(of_texts(BODY, BODY.replace("\n", "\r\n"))) == "line_endings"
    assert kind(of_texts(f"a = 1\n    b\n{BODY}", f"a = 1\n\tb\n{BODY}")) == "whitespace"
    assert kind(of_texts(f"a\n\nb\n{BODY}", f"a\nb\n{BODY}")) == "whitespace"


def test_tools_in_another_order() -> None:
    first, second = ({"messages": [SYSTEM, USER], "tools": tools} for tools in (TOOLS, [TOOLS[2], *TOOLS[:2]]))
    found = of_requests(first, second)
    assert kind(found) == "tools_order"
    assert found.position is not None
    assert found.position.part == "the tools"
    lines = "".join(json.dumps(tool) + "\n" for tool in TOOLS)
    other = "".join(json.dumps(tool) + "\n" for tool in reversed(TOOLS))
    assert kind(of_texts(f"{lines}{BODY}", f"{other}{BODY}")) == "tools_order"


def test_tools_with_other_keys_and_other_tools() -> None:
    turned = [dict(reversed(tool.items())) for tool in TOOLS]
    first = {"messages": [SYSTEM, USER], "tools": TOOLS}
    assert kind(of_requests(first, {"messages": [SYSTEM, USER], "tools": turned})) == "tools_keys"
    found = of_requests(first, {"messages": [SYSTEM, USER], "tools": [*TOOLS[1:], {"name": "new"}]})
    assert kind(found) == "tools_changed"
    assert what(found) == "other tools: new added, a removed"


def test_a_reminder_that_moves() -> None:
    reminder = "\n<reminder>Keep the todo list up to date.</reminder>"
    first = [SYSTEM, {"role": "user", "content": f"Please mend the parser.{reminder}"}]
    second = [SYSTEM, USER, {"role": "assistant", "content": "Done."}, {"role": "user", "content": f"More.{reminder}"}]
    found = of_requests({"messages": first}, {"messages": second})
    assert kind(found) == "moved"
    assert "todo list" in what(found)
    lines = ["Always say what you are about to do.\n", "Never touch what you were not asked to.\n"]
    assert kind(of_texts("".join([*lines, BODY]), "".join([*lines[::-1], BODY]))) == "moved"


def test_a_line_more_in_the_systems_message() -> None:
    longer = {"role": "system", "content": BODY + "The user likes tabs.\n"}
    found = of_requests({"messages": [SYSTEM, USER]}, {"messages": [longer, USER]})
    assert kind(found) == "system_line"
    assert what(found) == "the system message has 1 line more: 'The user likes tabs.'"
    other = of_requests({"messages": [longer, USER]}, {"messages": [SYSTEM, USER]})
    assert what(other) == "the system message has 1 line less: 'The user likes tabs.'"


def test_a_history_that_was_rewritten() -> None:
    talk = [SYSTEM, USER]
    for number in range(6):
        talk += [{"role": "assistant", "content": f"Step {number} is done."}, {"role": "user", "content": "Go on."}]
    summary = [SYSTEM, {"role": "user", "content": "Summary: five steps were done."}, *talk[-3:]]
    found = of_requests({"messages": talk}, {"messages": summary})
    assert kind(found) == "history"
    assert "message 2 (user) was rewritten; the second prompt has 9 fewer messages" in what(found)


@pytest.mark.parametrize(
    "layout",
    [
        '<file path="src/a.py">\n{}</file>\n',
        "## src/a.py\n\n```python\n{}```\n",
        "File: src/a.py\n```\n{}```\n",
        "```python src/a.py\n{}```\n",
        "`src/a.py`:\n```\n{}```\n",
        "==> src/a.py <==\n{}",
        "This is the file `src/a.py`:\n\n```python\n{}```\n",
    ],
)
def test_an_edited_file_is_named_with_its_line(layout: str) -> None:
    edited = CODE.replace("    return x + 9\n", "    return x - 9\n")
    found = of_texts(BODY + layout.format(CODE) + BODY, BODY + layout.format(edited) + BODY)
    assert kind(found) == "file"
    assert what(found) == "src/a.py was edited at line 38 (1 line changed)"
    assert kind(of_texts(layout.format(CODE) + "```\n\nGo on.\n", layout.format(CODE) + "```\n\nStop.\n")) == "text"


def test_an_edited_file_in_a_tools_result_is_named_by_the_call() -> None:
    call = {"function": {"name": "read", "arguments": '{"path": "src/a.py"}'}, "type": "function", "id": "1"}
    asked: list[dict[str, Any]] = [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    other = {"function": {"name": "read", "arguments": '{"path": "src/b.py"}'}, "type": "function", "id": "2"}
    asked[-1]["tool_calls"] = [call, other]
    first = [*asked, {"role": "tool", "content": CODE}]
    second = [
        *asked,
        {"role": "tool", "content": CODE.replace("x + 3", "x * 3")},
        {"role": "assistant", "content": "."},
    ]
    found = of_requests({"messages": first}, {"messages": second})
    assert what(found) == "src/a.py was edited at line 14 (1 line changed)"


def test_what_comes_behind_the_first_is_told_as_well() -> None:
    first = f"10:30\n{BODY}Turn 7\n{BODY}"
    found = of_texts(first, first.replace("10:30", "10:31").replace("Turn 7", "Turn 8"))
    assert [(line, cause.kind) for line, cause in found.later] == [(43, "counter")]


def test_equal_and_continued_prompts_are_not_broken(smollm2: RealModel) -> None:
    assert of_texts(BODY, BODY).status == "same"
    found = diagnose(plain(BODY), plain(BODY + "More.\n"), smollm2.tokenizer)
    assert found.status == "continued"
    assert found.counts.num_kept == len(smollm2.tokenizer.encode(BODY))
    assert found.cause is None
    assert of_texts(BODY + "More.\n", BODY).status == "broken"


def test_with_a_tokenizer_tokens_are_counted(smollm2: RealModel) -> None:
    first, second = f"09:30 o'clock\n{BODY}{CODE}", f"09:31 o'clock\n{BODY}{CODE}"
    found = diagnose(plain(first), plain(second), smollm2.tokenizer)
    ids = smollm2.tokenizer.encode(second)
    assert not found.counts.estimated
    assert found.counts.num_tokens == len(ids)
    assert found.position is not None
    assert (
        found.position.token
        == found.counts.num_kept
        == next(
            at
            for at, (one, other) in enumerate(zip(smollm2.tokenizer.encode(first), ids, strict=False))
            if one != other
        )
    )
    assert found.num_recomputed == len(ids) - found.counts.num_kept
    assert found.num_recomputed - 4 <= found.counts.num_same < found.num_recomputed
    late = diagnose(plain(BODY + first), plain(BODY + second), smollm2.tokenizer)
    assert late.counts.num_same <= late.num_recomputed < found.num_recomputed + 4
    guessed = of_texts(first, second)
    assert guessed.counts.estimated
    assert 0.5 < guessed.counts.num_tokens / len(ids) < 2.0


@given(st.text("ab", max_size=60), st.text("ab", max_size=60), st.integers(0, 10))
def test_runs_are_what_both_have(first: str, second: str, start: int) -> None:
    found = find_runs(first, second, start)
    for place, length in found:
        assert length >= RUN
        assert second[place : place + length] in first
        assert place >= start
    covered = {at for place, length in found for at in range(place, place + length)}
    assert sum(length for _, length in found) == len(covered)
    for place in range(start, len(second) - RUN + 1):
        if not covered & set(range(place, place + RUN)):
            assert second[place : place + RUN] not in first


@given(st.text("abé", max_size=40), st.text("abé", max_size=40))
def test_the_first_character_is_the_first(first: str, second: str) -> None:
    shorter = min(len(first), len(second))
    assert count_common_characters(first, second) == next(
        (at for at in range(shorter) if first[at] != second[at]), shorter
    )


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_two_texts_have_an_answer(first: str, second: str) -> None:
    found = of_texts(first, second)
    assert (found.status == "same") == (first == second)
    assert (found.status != "broken") == second.startswith(first)
    json.dumps(found.to_json())
    assert count_tokens(first, second, count_common_characters(first, second), None).num_same >= 0


def requests(path: Path, bodies: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return path


def test_a_session_names_the_turns_that_broke(tmp_path: Path) -> None:
    clocks = [{"role": "system", "content": f"It is 10:{30 + turn // 2}.\n{BODY}"} for turn in range(4)]
    recorded = read_session(requests(tmp_path / "s.jsonl", [{"messages": [each, USER]} for each in clocks]))
    broken = list(find_broken_turns(recorded))
    assert [each.number for each in broken] == [3]
    assert count_causes(broken) == {"timestamp": 1}
    assert diagnose_turn(recorded, 2).status == "same"
    assert kind(diagnose_turn(recorded, 3)) == "timestamp"
    for number in (1, 5):
        with pytest.raises(BadRequest, match="2 to 4"):
            diagnose_turn(recorded, number)


def test_recorded_sessions_only_grow() -> None:
    path = SHARED_DATA / "agent_sessions" / "large-session.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    recorded = read_session(path)
    assert not list(find_broken_turns(replace(recorded, turns=recorded.turns[:100])))


def test_prompts_that_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"a\xff")
    with pytest.raises(BadFile, match="byte 1"):
        read_prompt(bad)
    bad.write_text('{"messages": [1]}')
    with pytest.raises(BadFile, match="no request"):
        read_prompt(bad)
    bad.write_text('{"messages": ')
    assert read_prompt(bad).parts[0].kind == "text"  # no JSON: a text like any other
    with pytest.raises(BadFile, match="cannot be read"):
        read_prompt(tmp_path / "none")


def test_the_command_names_a_timestamp_at_byte_0(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"2026-01-31 09:30:00\n{BODY}")
    second.write_text(f"2026-01-31 09:31:10\n{BODY}")
    done = hunk("doctor", first, second)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a date or time at byte 0: 2026-01-31 09:30:00 became 2026-01-31 09:31:10" in done.stdout
    assert "The prefix breaks at byte 15 (line 1, column 16)" in done.stdout
    assert "estimated" in done.stdout
    lines = done.stdout.splitlines()
    mark = next(number for number, line in enumerate(lines) if line.strip() == "^")
    assert lines[mark - 1][lines[mark].index("^")] == "0"
    answer = json.loads(hunk("doctor", first, second, "--json", "--prefill-speed", "100").stdout)
    assert answer["status"] == "broken"
    assert answer["cause"]["kind"] == "timestamp"
    assert answer["break"] == {"byte": 15, "line": 1, "column": 16, "token": None, "part": ""}
    assert answer["cost"]["seconds"] == pytest.approx(answer["cost"]["recomputed_tokens"] / 100, abs=1e-3)


def test_the_command_on_a_session(tmp_path: Path, smollm2: RealModel) -> None:
    clocks = [{"messages": [{"role": "system", "content": f"It is 10:3{turn}.\n{BODY}"}, USER]} for turn in range(3)]
    path = requests(tmp_path / "s.jsonl", clocks)
    smollm2.tokenizer.save(tmp_path / "tokenizer.json")
    done = hunk_here("doctor", "--session", path, "--tokenizer", tmp_path / "tokenizer.json")
    assert done.exit_code == 0, done.output
    assert "2 of 3 turns broke the prefix (2 x timestamp)" in done.stdout
    assert "Turn 2 cost most" in done.stdout
    assert "estimated" not in done.stdout
    answer = json.loads(hunk_here("doctor", "--session", path, "--json").stdout)
    assert (answer["turns"], [row["turn"] for row in answer["broken"]]) == (3, [2, 3])
    assert json.loads(hunk_here("doctor", "--session", path, "--turn", "2", "--json").stdout)["status"] == "broken"
    requests(path, clocks[:1] * 2)
    assert "nothing broke" in hunk_here("doctor", "--session", path).stdout


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    text = tmp_path / "a"
    text.write_text("a")
    assert_one_clear_line(hunk("doctor", text), 2, "FIRST and SECOND")
    for arguments, code, said in [
        ((text, tmp_path / "none"), 2, "none cannot be read"),
        ((text, tmp_path), 2, "cannot be read"),
        ((text, text, "--session", text), 2, "not both"),
        ((text, text, "--turn", "2"), 2, "--session"),
        (("--session", text), 2, "not JSON"),
        ((text, text, "--prefill-speed", "0"), 2, "--prefill-speed"),
        ((text, text, "--tokenizer", "no-such-model"), 4, "no-such-model"),
    ]:
        fault = hunk_here("doctor", *arguments).exception
        assert isinstance(fault, HunkError), arguments
        assert fault.exit_code == code
        assert said in str(fault)
        assert "\n" not in str(fault)


CALL = {"type": "toolCall", "id": "1", "name": "read", "arguments": {"path": "a.py"}}
PI = [
    {"type": "session", "id": "x", "timestamp": "2025-11-20T23:33:50.805Z"},
    {"type": "message", "message": {"role": "user", "content": [{"type": "text", "text": "Look at a.py."}]}},
    {"type": "message", "message": {"role": "assistant", "content": []}},  # broken off
    {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}, CALL]}},
    {
        "type": "message",
        "message": {"role": "toolResult", "toolName": "read", "content": [{"type": "text", "text": "x = 1\u2028\n"}]},
    },
    {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "One."}]}},
]
MESSAGES = (
    RecordedMessage("user", "Look at a.py."),
    RecordedMessage("assistant", "Yes.", (ToolCall("read", {"path": "a.py"}),)),
    RecordedMessage("tool", "x = 1\u2028\n", tool="read"),
)
OPENAI_CALL = {"function": {"name": "read", "arguments": '{"path": "a.py"}'}, "id": "1", "type": "function"}
OPENAI: list[dict[str, Any]] = [
    {"role": "user", "content": "Look at a.py."},
    {"role": "assistant", "content": "Yes.", "tool_calls": [OPENAI_CALL]},
    {"role": "tool", "name": "read", "content": "x = 1\u2028\n"},
    {"role": "assistant", "content": "One."},
]


def written(path: Path, rows: list[Any]) -> Path:
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_records_of_pi(tmp_path: Path, name: str) -> None:
    turns = read_session(written(tmp_path / name, PI)).turns
    assert [turn.messages for turn in turns] == [MESSAGES[:1], MESSAGES]
    assert [turn.answer for turn in turns] == [MESSAGES[1], RecordedMessage("assistant", "One.")]
    assert list(turns[-1:]) == [turns[1]]


def test_a_trajectory_with_calls_as_python_prints_them(tmp_path: Path) -> None:
    history = [OPENAI[0], {**OPENAI[1], "tool_calls": str([OPENAI_CALL])}, *OPENAI[2:]]
    turns = read_session(written(tmp_path / "a.traj.gz", [{"history": history, "trajectory": []}])).turns
    assert turns[-1].messages == MESSAGES


def test_lines_that_are_messages_or_requests(tmp_path: Path) -> None:
    assert read_session(written(tmp_path / "a.jsonl", OPENAI)).turns[-1].messages == MESSAGES
    tools = [{"type": "function", "function": {"name": "read"}}]
    requests = [{"messages": OPENAI[:3], "tools": tools}, {"messages": OPENAI[2:3], "system": "Be brief."}]
    first, second = read_session(written(tmp_path / "b.jsonl", requests)).turns
    assert (first.messages, first.tools) == (MESSAGES, tuple(tools))
    assert second.messages == (RecordedMessage("system", "Be brief."), MESSAGES[2])


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"type": "session"}\n', "no turn"),
        ("a.jsonl", b"{\n", "line 1"),
        ("a.jsonl", b"\n[1]\n", "line 2"),
        ("a.jsonl", b"\xff", "byte 0"),
        ("a.jsonl", b'{"messages": 1}', "`messages`"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b"x" * 1000)[:-9], "cannot be read"),
        ("a.traj", b"{}", "`history`"),
    ],
)
def test_what_is_no_session_says_so(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BadFile, match=said) as caught:
        read_session(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        read_session(tmp_path / "gone.jsonl")
