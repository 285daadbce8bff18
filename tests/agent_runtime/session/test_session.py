"""A session answers as a model that is shown all at once; what changes is shown, and what fails changes nothing."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Cancelled,
    EditRefused,
    FileMissing,
    ModelUnavailable,
    OutsideRoot,
    SessionBusy,
    SessionMissing,
    Stale,
    TooLarge,
)
from agent_runtime.llm.interface import ChatAnswer, ChatRequest, EncodedPrompt, Merger
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.request_context import NO_PROGRESS, ProgressListener, RequestContext
from agent_runtime.session import PREAMBLE, HistoryMessage, SeenFile, ServerSession
from agent_runtime.session import files as session_files
from agent_runtime.types import ReuseName, Usage, sum_usage
from agent_runtime.workspace.workspace import Workspace
from repo_cache.cache import RepoCache
from tests.agent_runtime.session.conftest import A, B, Begin, Noting

EDIT = "<<<<<<< SEARCH\nLIMIT = 30\n=======\nLIMIT = 99\n>>>>>>> REPLACE\n"
B2 = B.replace("30", "99")
INTRO = "Files of the project. Notes further on may supersede lines of them; the latest note holds.\n"


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def no_model() -> Noting:
    raise ModelUnavailable("it is still being loaded")


def test_an_exact_session_answers_as_a_model_that_sees_all_for_the_first_time(
    begin: Begin, model: Noting, root: Path
) -> None:
    session = begin()
    session.read(["b.py"])
    first = session.ask("What is it?", max_tokens=6, clock="It is noon.\n")
    (root / "b.py").write_text(B2)
    second = session.ask("And the limit?", max_tokens=6)
    assert model.prompts[1] == (
        f"<|im_start|>system\n{PREAMBLE}<|im_end|>\n"
        f'<|im_start|>user\n{INTRO}<file path="b.py">\n{B2}</file>\nIt is noon.\nWhat is it?<|im_end|>\n'
        f"<|im_start|>assistant\n{first.text}<|im_end|>\n"
        "<|im_start|>user\nAnd the limit?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert first.usage.cached == 0 < second.usage.cached < second.usage.prompt
    assert second.usage.reused_approximate == 0
    for request, answer in zip(model.requests, (first, second), strict=True):
        again = model.model.answer(replace(request, salt=f"cold {request.prompt}"), RequestContext(), NO_PROGRESS)
        assert again.usage.cached == 0
        assert (again.text, again.finish_reason) == (answer.text, answer.finish_reason)
    assert session.state().messages == (
        HistoryMessage("user", "What is it?"),
        HistoryMessage("assistant", first.text),
        HistoryMessage("user", "And the limit?"),
        HistoryMessage("assistant", second.text),
    )
    assert {"read_ms", "layout_ms", "prefill_ms", "decode_ms", "total_ms"} <= second.timings.keys()


def test_a_balanced_session_tells_what_changed_behind_what_it_has_computed(
    begin: Begin, model: Noting, root: Path
) -> None:
    session = begin(reuse="balanced")
    session.read(["a.py"])
    first = session.ask("What is it?", max_tokens=4)
    assert (first.files, first.noted) == ((SeenFile("a.py", "new", hash_of(A)),), ())
    changed = A.replace("x + 5", "x + 555")
    (root / "a.py").write_text(changed)
    second = session.ask("And now?", max_tokens=4)
    assert (second.files, second.noted) == ((SeenFile("a.py", "changed", hash_of(changed)),), ("a.py",))
    assert A in model.prompts[1], "the file stands as it was"
    assert "a.py was edited after it was shown." in model.prompts[1]
    assert "return x + 555" in model.prompts[1]
    assert second.usage.cached >= first.usage.prompt - 1, "and nothing before the answer is computed again"


def test_a_fast_session_runs_what_changed(begin: Begin, model: Noting, root: Path) -> None:
    session = begin(reuse="fast")
    session.read(["a.py"])
    session.ask("What is it?", max_tokens=4)
    (root / "a.py").write_text(A.replace("x + 5", "x + 555"))
    answer = session.ask("And now?", max_tokens=4)
    assert "return x + 555" in model.prompts[1]
    assert answer.usage.reused_approximate > 100
    assert answer.usage.recomputed < answer.usage.prompt / 2


def test_reading_says_what_a_file_is_and_whether_it_changed(begin: Begin, root: Path) -> None:
    session = begin()
    (root / "c.txt").write_bytes("\ufeffä\r\n".encode("utf-16"))
    bom, (first,) = "\ufeff", session.read(["./b.py"])
    assert (first.path, first.state, first.sha256, first.size, first.text) == ("b.py", "new", hash_of(B), len(B), None)
    (root / "b.py").write_text(B2)
    again, other = session.read(["b.py", "c.txt"], with_text=True)
    assert (again.state, again.sha256, again.text) == ("changed", hash_of(B2), B2)
    assert other.text is not None
    assert other.text.startswith(bom)
    assert other.text.encode(other.encoding) == (root / "c.txt").read_bytes()
    assert [file.state for file in session.read(["b.py"])] == ["same"]
    assert [file.path for file in session.state().files] == ["b.py", "c.txt"]
    session.read(forget=["./b.py", "none"])
    assert [file.path for file in session.state().files] == ["c.txt"]


def test_the_model_sees_lines_and_an_edit_keeps_bytes(begin: Begin, model: Noting, root: Path) -> None:
    data = "\ufeffLIMIT = 30\r\n# ä\r\n".encode("utf-16-le")
    (root / "w.py").write_bytes(data)
    session = begin()
    session.read(["w.py"])
    session.ask("?", max_tokens=1)
    assert '<file path="w.py">\nLIMIT = 30\n# ä\n</file>' in model.prompts[0]
    assert session.apply(EDIT, path="w.py", write=True).written
    assert (root / "w.py").read_bytes() == data.replace("30".encode("utf-16-le"), "99".encode("utf-16-le"))
    session.ask("?", max_tokens=1)
    assert '<file path="w.py">\nLIMIT = 99\n# ä\n</file>' in model.prompts[1]


@pytest.mark.parametrize(
    ("path", "fault"),
    [("none.py", FileMissing), ("../x", OutsideRoot), ("/etc/hostname", OutsideRoot), (".", BadFile), ("bin", BadFile)],
)
def test_files_are_read_all_or_none(begin: Begin, root: Path, path: str, fault: type[Exception]) -> None:
    (root / "bin").write_bytes(b"\0\1\2")
    session = begin()
    session.read(["a.py"])
    with pytest.raises(fault):
        session.read(["b.py", path], texts={"t": "x"}, forget=["a.py"])
    assert [file.path for file in session.state().files] == ["a.py"]


def test_texts_stand_for_files(begin: Begin, model: Noting, root: Path) -> None:
    session = begin(alone=True)
    with pytest.raises(OutsideRoot, match="no workspace"):
        session.read(["b.py"])
    (read,) = session.read(texts={"b.py": B})
    assert (read.state, read.sha256) == ("new", hash_of(B))
    result = session.apply(EDIT, path="b.py")
    assert (result.status, result.written, result.file.merged) == ("merged", False, B2)
    assert session.read(texts={"b.py": B})[0].state == "same"
    assert session.apply(EDIT, path="b.py", write=True).written
    assert (root / "b.py").read_text() == B, "there is no workspace to write to"
    session.ask("?", max_tokens=1)
    assert B2 in model.prompts[0]
    session.apply("*** Begin Patch\n*** Delete File: b.py\n*** Add File: n.py\n+x = 1\n*** End Patch\n", write=True)
    assert [file.path for file in session.state().files] == ["n.py"]
    assert session.ask("?", max_tokens=1).files == (SeenFile("n.py", "new", hash_of("x = 1\n")),)
    with pytest.raises(BadRequest, match="lone surrogate"):
        session.read(texts={"s": "\ud800"})
    for path in ("", "x" * 5000):
        with pytest.raises(BadRequest, match="a path of"):
            session.read(texts={path: "x"})


def test_a_text_hides_the_workspace_s_file_until_that_is_read(begin: Begin, root: Path) -> None:
    session = begin()
    session.read(["b.py"], texts={"b.py": "x = 1\n"})
    assert session.apply("x = 2\n", path="b.py", format="whole", write=True).written
    assert (root / "b.py").read_text() == B
    assert session.read(["b.py"])[0].sha256 == hash_of(B)
    assert session.apply(EDIT, path="b.py", write=True).written
    assert (root / "b.py").read_text() == B2


def test_what_is_applied_and_written_is_shown_with_the_next_question(begin: Begin, model: Noting, root: Path) -> None:
    session = begin()
    session.read(["b.py"])
    session.ask("What is it?", max_tokens=1)
    dry = session.apply(EDIT, path="b.py")
    assert (dry.status, dry.written, (root / "b.py").read_text()) == ("merged", False, B)
    assert session.ask("?", max_tokens=1).files == ()
    result = session.apply(EDIT, path="b.py", write=True, expected_sha256=hash_of(B))
    assert (result.status, result.written, (root / "b.py").read_text()) == ("merged", True, B2)
    assert session.ask("And now?", max_tokens=1).files == (SeenFile("b.py", "changed", hash_of(B2)),)
    assert B2 in model.prompts[-1]
    assert B not in model.prompts[-1]
    with pytest.raises(Stale) as stale:
        session.apply(EDIT, path="b.py", write=True, expected_sha256=hash_of(B))
    assert stale.value.current_sha256 == hash_of(B2)
    with pytest.raises(EditRefused):
        session.apply(EDIT.replace("LIMIT = 99", "LIMIT = 7"), path="b.py", write=True, mode="deterministic")
    assert (root / "b.py").read_text() == B2


def test_an_edit_of_several_files_is_applied_to_those_that_it_names(begin: Begin, root: Path) -> None:
    session = begin()
    session.read(["a.py"], texts={"notes.txt": "one\n"})
    patch = (
        "*** Begin Patch\n*** Update File: b.py\n-LIMIT = 30\n+LIMIT = 99\n"
        "*** Update File: notes.txt\n-one\n+two\n*** End Patch\n"
    )
    result = session.apply(patch, write=True)
    assert {file.path: file.status for file in result.files} == {"b.py": "merged", "notes.txt": "merged"}
    assert result.written
    assert (root / "b.py").read_text() == B2
    assert not (root / "notes.txt").exists()
    assert session.read(texts={"notes.txt": "two\n"})[0].state != "gone"
    with pytest.raises(BadRequest, match="of one file"):
        session.apply(patch, expected_sha256=hash_of(B))


def test_a_file_that_is_gone_is_not_shown_until_it_is_back(begin: Begin, model: Noting, root: Path) -> None:
    session = begin()
    session.read(["b.py"], texts={"own": "x\n"})
    session.ask("?", max_tokens=1)
    (root / "b.py").unlink()
    assert session.ask("?", max_tokens=1).files == (SeenFile("b.py", "gone", ""),)
    assert "b.py" not in model.prompts[-1]
    assert session.ask("?", max_tokens=1).files == ()
    assert [(file.path, file.state) for file in session.state().files] == [("own", "same"), ("b.py", "gone")]
    (root / "b.py").write_text(B2)
    assert session.ask("?", max_tokens=1).files == (SeenFile("b.py", "new", hash_of(B2)),)
    assert B2 in model.prompts[-1]


def test_usage_is_told_for_each_question_and_in_all(begin: Begin) -> None:
    session = begin()
    session.read(["b.py"])
    first = session.ask("What is it?", max_tokens=3)
    applied = session.apply("def more():\n    return 2\n", path="b.py", mode="model", max_tokens=4, draft="none")
    second = session.ask("And?", max_tokens=3)
    assert (first.usage.completion, second.usage.completion) == (3, 3)
    assert applied.usage.completion > 0
    assert session.state().usage == sum_usage([first.usage, applied.usage, second.usage])
    assert session.state().usage.prompt == session.state().usage.cached + session.state().usage.recomputed
    assert 0.0 < session.state().usage.prefix_hit_rate < 1.0
    assert session.state().turns == (first.usage, second.usage)
    assert session.state().prompt_tokens == second.usage.prompt


def test_what_does_not_fit_is_refused_and_can_be_forgotten(begin: Begin, root: Path) -> None:
    session = begin()
    session.read(["b.py"])
    first = session.ask("?", max_tokens=2)
    (root / "long.py").write_text("value = 1\n" * 700)
    session.read(["long.py"])
    with pytest.raises(TooLarge, match=r"of files.*forget files"):
        session.ask("And now?")
    assert session.state().messages == (HistoryMessage("user", "?"), HistoryMessage("assistant", first.text))
    (root / "long.py").write_text("value = 1\n" * 12_000)
    with pytest.raises(TooLarge, match=r"0\.1 MB.*forget files"):
        session.ask("And now?")
    session.read(forget=["long.py"])
    assert session.ask("And now?", max_tokens=2).usage.cached > 0


def test_a_context_has_only_so_many_files_and_bytes(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    session = begin()
    monkeypatch.setattr(session_files, "MAX_SESSION_FILES", 2)
    session.read(["a.py"], texts={"1": "x"})
    with pytest.raises(TooLarge, match="2 that a session holds"):
        session.read(["b.py"])
    session.read(["b.py"], forget=["1"])
    monkeypatch.setattr(session_files, "MAX_BYTES", 1000)
    with pytest.raises(TooLarge, match="forget some"):
        session.read(texts={"b.py": "x" * 1000})
    assert [file.sha256 for file in session.state().files] == [hash_of(A), hash_of(B)]
    looked_at: list[str] = []
    monkeypatch.setattr(Workspace, "read", lambda self, path: looked_at.append(path) or b"x" * 600)
    with pytest.raises(TooLarge):
        begin().read([str(number) for number in range(9)])
    assert looked_at == ["0", "1"], "what will be refused is not read first"


class Stopping(ProgressListener):
    """Calls the first thing to do once the model has begun; cancels the request then."""

    def __init__(self, context: RequestContext, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.context = context
        self.meanwhile = meanwhile

    def on_start(self) -> None:
        self.meanwhile()
        self.context.cancel.cancel()


def test_a_question_that_fails_leaves_the_conversation_as_it_was(begin: Begin, model: Noting, root: Path) -> None:
    session = begin(reuse="balanced")
    session.read(["a.py"])
    session.ask("What is it?", max_tokens=2)
    before = session.state()
    (root / "a.py").write_text(A.replace("x + 5", "x + 555"))
    context = RequestContext()
    with pytest.raises(Cancelled):
        session.ask("And now?", max_tokens=500, temperature=10.0, context=context, progress=Stopping(context))
    after = session.state()
    assert (after.messages, after.usage) == (before.messages, before.usage)
    answer = session.ask("Is it?", max_tokens=2)
    assert [file.state for file in answer.files] == ["changed"], "it has not been told yet"
    assert "return x + 555" in model.prompts[-1]
    assert "And now?" not in model.prompts[-1]


def test_one_call_works_at_a_time(begin: Begin) -> None:
    session = begin()
    faults: list[str] = []

    def meanwhile() -> None:
        assert session.is_busy
        calls: list[Callable[[], object]] = [
            lambda: session.ask("?"),
            lambda: session.read(["a.py"]),
            lambda: session.apply("x", path="a.py"),
        ]
        for call in calls:
            with pytest.raises(SessionBusy):
                call()
            faults.append("busy")
        assert session.state().files == ()

    def ask() -> None:
        context = RequestContext()
        progress = Stopping(context, meanwhile)
        with pytest.raises(Cancelled):
            session.ask("?", max_tokens=500, temperature=10.0, context=context, progress=progress)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert faults == ["busy"] * 3
    assert not session.is_busy
    assert session.ask("?", max_tokens=1).usage.completion == 1


def test_reading_and_edits_by_rule_need_no_model(root: Path) -> None:
    session = ServerSession(Applier(no_model), no_model, workspace=Workspace(root))  # type: ignore[arg-type]
    session.read(["b.py"])
    assert session.apply(EDIT, path="b.py", write=True).written
    with pytest.raises(ModelUnavailable):
        session.ask("What is it?")
    assert session.state().messages == ()


def test_bad_questions_are_refused_before_the_model_is_asked(begin: Begin, model: Noting) -> None:
    session = begin()
    for question in ("", " \n"):
        with pytest.raises(BadRequest, match="empty"):
            session.ask(question)
    with pytest.raises(BadRequest, match="cannot read this question"):
        session.ask("\x04")
    with pytest.raises(BadRequest):
        session.ask("?", temperature=-1.0)
    assert session.state().messages == ()
    assert session.ask("?", max_tokens=1).usage.completion == 1


def test_tokens_at_hand_are_taken(begin: Begin, root: Path, smollm2: object, model: Noting) -> None:
    asked: list[tuple[str, str, str]] = []
    tokenizer = model.text.tokenizer
    with RepoCache.open(root, tokenizer, watch=False) as cache:

        class Known:
            def find_tokens(self, path: str, text: str, folder: str = "") -> object:
                asked.append((path, text, folder))
                return cache.tokens(path)

            def close(self) -> None: ...

        session = begin(index=Known())
        session.read(["b.py"], texts={"own": "x = 1\n"})
        session.ask("?", max_tokens=1)
    assert asked == [("b.py", B, str(root))], "a text that was put in is no file of the workspace"
    plain = begin()
    plain.read(["b.py"], texts={"own": "x = 1\n"})
    plain.ask("?", max_tokens=1)
    assert model.requests[0].prompt == model.requests[1].prompt


def test_a_session_that_has_ended_takes_no_more_calls(begin: Begin) -> None:
    session = begin()
    session.close()
    with pytest.raises(SessionMissing):
        session.read(["a.py"])


# Random sequences of calls: a question shows the current files and the whole conversation.


NAMES = ("a.py", "b.txt", "c.py")

names = st.sampled_from(NAMES)
lines = st.lists(st.sampled_from(["x = 1\n", "def f():\n", "    return 2\n", "\n", "<|im_end|>\n"]), max_size=12)
texts = lines.map("".join)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), names, texts),
        st.tuples(st.just("remove"), names, st.just("")),
        st.tuples(st.just("read"), names, st.just("")),
        st.tuples(st.just("put"), names, texts),
        st.tuples(st.just("forget"), names, st.just("")),
        st.tuples(st.just("apply"), names, texts),
        st.tuples(st.just("ask"), st.just(""), st.sampled_from(["Why?", "<|im_end|>"])),
    ),
    min_size=4,
    max_size=14,
)


class Writing:
    """A model that answers with how often it was asked, and keeps its last prompt."""

    name, max_seq_len = "writing", 1 << 16

    def __init__(self, text: TokenizerBundle) -> None:
        self.text = text
        self.num_asked = 0
        self.shown = ""

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        assert isinstance(request.prompt, EncodedPrompt)
        self.num_asked += 1
        self.shown = self.text.tokenizer.decode(request.prompt.token_ids)
        return ChatAnswer(f"Answer {self.num_asked}.", "stop", Usage(prompt=len(request.prompt.token_ids)), {})


class Expected:
    """The same by the obvious way: two dictionaries."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read: set[str] = set()
        self.own: dict[str, str] = {}

    def files(self) -> dict[str, str]:
        on_disk = {name: (self.root / name).read_text() for name in self.read if (self.root / name).exists()}
        return on_disk | self.own


def no_merger() -> Merger:
    raise ModelUnavailable("rules only")


def step(session: ServerSession, expected: Expected, what: str, name: str, text: str) -> None:
    file = expected.root / name
    if what == "write":
        file.write_text(text)
    elif what == "remove":
        file.unlink(missing_ok=True)
    elif what == "put":
        session.read(texts={name: text})
        expected.own[name] = text
        expected.read.discard(name)
    elif what == "forget":
        session.read(forget=[name])
        expected.own.pop(name, None)
        expected.read.discard(name)
    elif what == "read":
        try:
            session.read([name])
        except FileMissing:
            return
        expected.own.pop(name, None)
        expected.read.add(name)
    elif what == "apply" and (name in expected.own or file.exists()):
        try:
            result = session.apply(text, path=name, format="whole", write=True, policy="lenient", mode="deterministic")
        except EditRefused:
            return
        if result.written and name in expected.own:
            expected.own[name] = result.file.merged
        assert not result.written or expected.files().get(name, result.file.merged) == result.file.merged


@settings(max_examples=40)
@given(steps, st.sampled_from(["exact", "fast", "turbo"]))
def test_a_question_shows_what_there_is(
    text_side: TokenizerBundle, steps: list[tuple[str, str, str]], reuse: ReuseName
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model, expected = Writing(text_side), Expected(Path(folder))
        for name in NAMES:
            (expected.root / name).write_text(f"# {name}\n")
        session = ServerSession(Applier(no_merger), lambda: model, workspace=Workspace(expected.root), reuse=reuse)
        said: list[tuple[str, str]] = []
        for what, name, text in [*steps, ("ask", "", "At last?")]:
            if what != "ask":
                step(session, expected, what, name, text)
                continue
            answer = session.ask(text)
            files = expected.files()
            parts = {name: _shown(name, content) for name, content in files.items()}
            assert session._context is not None
            order = list(session._context._shown)
            assert sorted(order) == sorted(files)
            before = "".join(parts[name] for name in order)
            talk = _talk(before, said, text)
            assert model.shown == f"<|im_start|>system\n{PREAMBLE}<|im_end|>\n{talk}<|im_start|>assistant\n"
            said.append((text, answer.text))


def _shown(name: str, content: str) -> str:
    ended = content if content.endswith("\n") or not content else content + "\n"
    return f'<file path="{name}">\n{ended}</file>\n'


def _talk(files: str, said: list[tuple[str, str]], question: str) -> str:
    opening, talk = f"{INTRO}{files}", ""
    for asked, answered in said:
        talk += f"<|im_start|>user\n{opening}{asked}<|im_end|>\n<|im_start|>assistant\n{answered}<|im_end|>\n"
        opening = ""
    return f"{talk}<|im_start|>user\n{opening}{question}<|im_end|>\n"


def test_an_edit_of_what_the_session_has_shown_is_merged_with_what_has_changed_since(begin: Begin, root: Path) -> None:
    session = begin()
    (root / "b.py").write_text(B + "\n\ndef late():\n    return 1\n")
    (shown,) = session.read(["b.py"])
    now = B + "\n\ndef late():\n    return 2\n"
    (root / "b.py").write_text(now)
    result = session.apply(EDIT, path="b.py", write=True, base_sha256=shown.sha256)
    assert (root / "b.py").read_text() == result.merged != now
    assert result.merged.endswith("    return 2\n")
    with pytest.raises(Stale):
        session.apply(EDIT, path="b.py", base_sha256="0" * 64)
    session.read([], texts={"own.py": B})
    with pytest.raises(Stale):
        session.apply(EDIT, path="own.py", base_sha256="0" * 64)
    assert session.apply(EDIT, path="own.py", base_sha256=hash_of(B)).merged == B2
