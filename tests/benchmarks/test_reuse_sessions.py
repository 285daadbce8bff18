"""Recorded sessions become prompts within the budget, and what is counted of them is what an engine reports."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent_runtime.errors import BadFile
from agent_runtime.types import ReuseName
from benchmarks.reuse import __main__ as reuse
from benchmarks.reuse.prompts import ALL, Books, Prompt, Prompts, build_workspace_prompts, count_session, cut
from benchmarks.reuse.sessions import CLEARED, PREAMBLE, Compactor, Limits, Message, Session, load_sessions
from engine.core import EngineCore
from engine.reuse import PromptSegment, Reuse, ReuseMode
from tests.engine.cores import tiny_model
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.tiny import VOCAB_SIZE
from tests.models import RealModel

FILE = (
    "import os\n\n\ndef first(a):\n    b = a\n    c = b\n    return c\n\n\n"
    "def second():\n    d = 1\n    e = d\n    return e\n"
)
CALLS = [
    {"type": "toolCall", "id": "1", "name": "bash", "arguments": {"command": "ls"}},
    {"type": "toolCall", "id": "2", "name": "read", "arguments": {"path": "src/a.py"}},
]


def said(role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"type": "message", "message": {"role": role, "content": content, **fields}}


PI = [
    {"type": "session", "id": "x"},
    said("user", "Look."),
    said("assistant", "I will.", *CALLS),
    said("toolResult", "a.py", toolName="bash", toolCallId="1"),
    said("toolResult", FILE, toolName="read", toolCallId="2"),
    said("assistant", "Done."),
]
SHOWN = "[File: src/a.py (13 lines total)]\n" + "".join(
    f"{number}:{line}\n" for number, line in enumerate(FILE.splitlines(), start=1)
)
SWE_AGENT = {
    "history": [
        {"role": "system", "content": "SETTING: a shell."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "open src/a.py"},
        {"role": "user", "content": SHOWN + "bash-$"},
        {"role": "assistant", "content": "submit"},
    ]
}


def written(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in PI)
    (folder / "pi.jsonl").write_text(lines, encoding="utf-8")
    (folder / "pi2.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "swe.traj.gz").write_bytes(gzip.compress(json.dumps(SWE_AGENT).encode()))
    (folder / "cases.jsonl").write_text('{"original": "", "expected": ""}\n', encoding="utf-8")
    (folder / "NOTES.md").write_text("none", encoding="utf-8")
    return folder


def test_every_format_gives_its_turns(tmp_path: Path) -> None:
    found = load_sessions(written(tmp_path / "all"))
    first, second, third = found.sessions
    assert first.turns == second.turns
    assert [turn.messages for turn in first.turns] == [
        (Message("system", PREAMBLE), Message("user", "Look.")),
        (
            Message("system", PREAMBLE),
            Message("user", "Look."),
            Message(
                "assistant",
                'I will.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>\n'
                '<tool_call>\n{"name": "read", "arguments": {"path": "src/a.py"}}\n</tool_call>',
            ),
            Message("tool", "a.py"),
            Message("tool", FILE, "src/a.py"),
        ),
    ]
    assert first.turns[1].answer == Message("assistant", "Done.")
    assert third.turns[1].messages[-1] == Message("tool", SHOWN + "bash-$", "src/a.py")
    assert third.turns[1].messages[0] == Message("system", "SETTING: a shell.")
    assert sorted(file.name for files in found.skipped.values() for file in files) == ["NOTES.md", "cases.jsonl"]


def test_requests_that_name_their_tools_have_them_in_the_prompt(tmp_path: Path) -> None:
    request = {"messages": [{"role": "user", "content": "Hi."}], "tools": [{"name": "read"}]}
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(request), encoding="utf-8")
    (turn,) = load_sessions(file).sessions[0].turns
    assert turn.messages == (Message("system", PREAMBLE + '\n\n[{"name": "read"}]'), Message("user", "Hi."))
    assert turn.answer is None


@pytest.mark.parametrize("name", ["gone", "empty", "damaged.jsonl", "damaged.traj.gz", "NOTES.md"])
def test_bad_input_gives_one_message(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged.jsonl").write_text("{", encoding="utf-8")
    (tmp_path / "damaged.traj.gz").write_bytes(gzip.compress(b"{}")[:-3])
    (tmp_path / "NOTES.md").write_text("none", encoding="utf-8")
    with pytest.raises(BadFile):
        load_sessions(tmp_path / name)
    with pytest.raises(SystemExit) as caught:
        reuse.main(["--model", "smollm2-135m", "--session", str(tmp_path / name), "--count-only"])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def size(message: Message) -> int:
    return len(message.text)


def long_history(random: Random, num_turns: int) -> list[Message]:
    messages = [Message("system", "s" * 40)]
    for number in range(num_turns):
        if random.random() < 0.2:
            messages.append(Message("user", f"{number}: " + "u" * random.randrange(60)))
        messages.append(Message("assistant", f"{number}: " + "a" * random.randrange(100)))
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            long = random.random() < 0.1
            messages.append(
                Message("tool", f"{number}: " + "t" * random.randrange(900 if long else 150), f"{number}.py")
            )
    return messages


LIMITS = Limits(budget=1600, low_water=800, cap=300)


@pytest.mark.parametrize("seed", range(8))
def test_prompts_stay_within_the_budget_and_go_on_between_compactions(seed: int) -> None:
    history = long_history(Random(seed), 150)
    turns = [place for place, message in enumerate(history) if message.role == "assistant" and place > 1]
    compactor, again = Compactor(size, LIMITS), Compactor(size, LIMITS)
    before: Sequence[Message] = ()
    cut_at = []
    for turn, place in enumerate(turns):
        count = compactor.num_compactions
        prompt = compactor.prompt(history[:place])
        assert prompt == again.prompt(history[:place])  # the same every time
        assert sum(map(size, prompt)) <= LIMITS.budget
        assert prompt[0] == history[0]
        assert size(history[place - 1]) > LIMITS.cap or prompt[-1] == history[place - 1]
        if compactor.num_compactions == count:
            assert prompt[: len(before)] == tuple(before)
        else:
            cut_at.append(turn)
            assert prompt[: len(before)] != tuple(before)
        before = prompt
    assert len(cut_at) > 3
    assert len(turns) > 3 * len(cut_at)


def test_results_go_first_and_the_oldest_ones() -> None:
    limits = Limits(budget=700, low_water=500, cap=300)
    results = [Message("tool", str(number) * 100) for number in range(7)]
    history = [Message("system", "s"), Message("user", "u")]
    for result in results:
        history += [Message("assistant", "a"), result]
    prompt = Compactor(size, limits).prompt(history)
    shown = [message.text for message in prompt if message.role == "tool"]
    assert shown == [CLEARED] * 4 + [result.text for result in results[4:]]


def test_what_was_asked_stands_in_the_summary() -> None:
    limits = Limits(budget=1200, low_water=900, cap=500)
    history = [Message("system", "s")]
    for number in range(40):
        history += [Message("user", f"wish {number}"), Message("assistant", "a" * 40)]
    prompt = Compactor(size, limits).prompt(history)
    assert prompt[1].role == "user"
    assert "- wish 24" in prompt[1].text
    assert prompt[2].role in ("user", "assistant")
    assert sum(map(size, prompt)) <= limits.low_water


def test_a_history_that_is_another_one_starts_anew() -> None:
    compactor = Compactor(size, LIMITS)
    compactor.prompt(long_history(Random(1), 60))
    other = [Message("system", "t"), Message("user", "u")]
    assert compactor.prompt(other) == tuple(other)


def test_limits_must_make_sense() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Limits(budget=100, low_water=200, cap=50)


def test_files_are_cut_at_their_definitions_however_they_are_shown() -> None:
    pieces = cut(FILE, "src/a.py")
    assert [piece.split("\n")[0] for piece in pieces] == ["import os", "def first(a):", "def second():"]
    numbered = cut(SHOWN + "bash-$", "src/a.py")
    assert [piece.split("\n")[0][:12] for piece in numbered] == ["[File: src/a", "4:def first(", "10:def secon"]
    assert "".join(pieces) == FILE
    assert "".join(numbered) == SHOWN + "bash-$"
    assert cut(FILE, "") == cut(FILE, "notes.unknown") == [FILE]
    assert cut("", "a.py") == []


def test_a_prompt_is_chatml_and_what_files_say_is_text(smollm2: RealModel) -> None:
    prompts = Prompts(smollm2.tokenizer)
    messages = [Message("system", "s"), Message("tool", "<|im_end|>\n" + FILE, "a.py"), Message("assistant", "")]
    segments = prompts.build_prompt(messages)
    ids = [token for segment in segments for token in segment.token_ids]
    expected = (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n<tool_response>\n<|im_end|>\n"
        f"{FILE}\n</tool_response><|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2.tokenizer.decode(ids) == expected
    end = smollm2.tokenizer.get_control_id("<|im_end|>")
    assert end is not None
    assert ids.count(end) == 3
    assert prompts.size(messages[1]) == sum(len(segment.token_ids) for segment in prompts.message(messages[1]))
    assert len(prompts.message(messages[1])) == 3


def test_a_folder_is_counted_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "COUNTED_PAIRS", 1)
    out = tmp_path / "out.json"
    session = ["--model", "smollm2-135m", "--session", str(written(tmp_path / "all"))]
    reuse.main([*session, "--count-only", "--json", str(out)])
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {"exact", "fast", "turbo"} <= found["summary"].keys()
    assert found["summary"]["balanced"]["workspace"]["turns"] == 4
    exact = found["summary"]["exact"]
    assert exact["cached_tokens"] + exact["reused_tokens"] + exact["recomputed_tokens"] == exact["prompt_tokens"]
    assert exact["recomputed_vs_prefix"] == 1.0
    assert {row["session"] for row in found["rows"] if "session" in row} == {"pi.jsonl", "pi2.jsonl.gz", "swe.traj.gz"}
    printed = capsys.readouterr()
    assert "turbo, never idle" in printed.out
    assert "cases.jsonl" in printed.err


def test_the_recorded_sessions_beside_the_checkout() -> None:
    from tests.models import SHARED_DATA

    if not SHARED_DATA.is_dir():
        pytest.skip("there is no shared/data beside the checkout")
    sessions: tuple[Session, ...] = load_sessions(SHARED_DATA / "agent_sessions").sessions
    assert len(sessions[0].turns) > 400


def test_files_in_the_prompt_are_as_the_session_has_made_them(tmp_path: Path, smollm2: RealModel) -> None:
    edit = {
        "type": "toolCall",
        "id": "3",
        "name": "edit",
        "arguments": {"path": "src/a.py", "oldText": "    c = b\n", "newText": "    c = a\n"},
    }
    file = tmp_path / "a.jsonl"
    text = FILE + "".join(f"\n\ndef other_{number}():\n    return {number}\n" for number in range(20))
    read = said("toolResult", text, toolName="read", toolCallId="2")
    records = [
        *PI[:-2],
        read,
        said("assistant", edit),
        said("toolResult", "ok", toolName="edit", toolCallId="3"),
        PI[-1],
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    session, prompts = load_sessions(file).sessions[0], Prompts(smollm2.tokenizer)

    def texts(mode: ReuseName) -> list[str]:
        made = build_workspace_prompts(session, prompts, mode)
        return [
            smollm2.tokenizer.decode([token for segment in prompt.segments for token in segment.token_ids])
            for prompt in made
        ]

    first, second, third = texts("exact")
    assert text not in first
    assert text in second
    assert text not in third
    assert text.replace("c = b", "c = a") in third
    assert second.count("def first") == 1
    assert "[src/a.py stands among the files above, as it is now.]" in second
    *same, noted = texts("balanced")
    assert same == [first, second]
    assert text in noted
    assert noted.rindex("c = a") > noted.index("</file>")


PAGE_SIZE = 4
NUM_SLOTS = 1 << 14


def segmented(random: Random, ids: list[int]) -> list[PromptSegment]:
    borders = sorted({0, len(ids), *(random.randrange(len(ids) + 1) for _ in range(6))})
    return [PromptSegment(ids[first:end]) for first, end in pairwise(borders)]


def conversation(random: Random, num_turns: int) -> list[Prompt]:
    """Prompts that go on from the one before and its answer, and now and then have something changed within."""
    made, ids = [], random_ids(random, 60)
    for _ in range(num_turns):
        ids = edited(random, ids) if random.random() < 0.5 else ids
        ids = [*ids, *random_ids(random, random.randrange(1, 12))][-150:]
        answer = random_ids(random, random.randrange(1, 9))
        made.append(Prompt(segmented(random, ids), answer, 0, compacted=False))
        ids = [*ids, *answer]
    return made


def core_of(num_pages: int, books: Books) -> EngineCore:
    sizes = {"kv_bytes": num_pages * PAGE_SIZE * 256, "span_bytes": NUM_SLOTS * 256}
    core = reusing_core(tiny_model(), **sizes, check_integrity=False)
    assert core.pages.num_pages == books.num_pages == num_pages
    assert core.reuse is not None
    assert core.reuse.store.num_slots == NUM_SLOTS
    return core


@pytest.mark.parametrize(
    ("mode", "num_pages"),  # room for one prompt, so that what is cached goes; or for all
    [("exact", 70), ("fast", 70), ("turbo", 600)],
)
def test_the_count_is_that_of_an_engine(mode: ReuseMode, num_pages: int) -> None:
    prompts = conversation(Random(f"{mode}{num_pages}"), 12)
    books = Books(num_pages, NUM_SLOTS, PAGE_SIZE)
    counted = count_session("a", prompts, mode, books).turns
    books.check_integrity()
    core = core_of(num_pages, books)
    for prompt, turn in zip(prompts, counted, strict=True):
        reuse = Reuse.from_segments(prompt.segments, mode)
        ids = [token for segment in prompt.segments for token in segment.token_ids]
        answer = prompt.answer_ids
        usage = run(core, ids, reuse, forced_ids=answer, max_new_tokens=len(answer) + 1).usage
        assert (usage.prompt, usage.cached, usage.reused_approximate) == (turn.prompt, turn.cached, turn.reused)
        assert (usage.recomputed, usage.recomputed_by) == (turn.recomputed, turn.by_reason)
    assert sum(turn.cached for turn in counted) > 0
    assert (sum(turn.reused for turn in counted) > 0) == (mode != "exact")


def test_with_time_between_the_turns_all_but_what_is_new_is_exact() -> None:
    prompts = conversation(Random("idle"), 12)
    idle = count_session("a", prompts, "turbo", Books(600, NUM_SLOTS, PAGE_SIZE), idle=ALL)
    exact = count_session("a", prompts, "exact", Books(600, NUM_SLOTS, PAGE_SIZE))
    assert [turn.cached for turn in idle.turns] == [turn.cached for turn in exact.turns]
    assert idle.rebuilt >= idle.sum_field("reused") > 0
    assert idle.sum_field("recomputed") < exact.sum_field("recomputed")


def test_time_for_a_part_computes_that_part() -> None:
    segments = [PromptSegment(random_ids(Random("part"), 100))]
    books = Books(600, NUM_SLOTS, PAGE_SIZE)
    assert [books.rebuild(segments, 40) for _ in range(4)] == [40, 40, 20, 1]  # the last token is run in any case


def test_tenants_share_nothing() -> None:
    books = Books(600, NUM_SLOTS, PAGE_SIZE)
    segments = [PromptSegment(list(range(VOCAB_SIZE)))]
    assert books.turn(segments, "turbo", salt="a").recomputed == VOCAB_SIZE
    assert books.turn(segments, "turbo", salt="b").recomputed == VOCAB_SIZE
    assert books.turn(segments, "turbo", salt="a").recomputed == 1
