"""Whatever is read, changed, put in and forgotten: a question shows the files as they are, and all that was said."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import EditRefused, FileMissing, ModelUnavailable
from agent_runtime.llm.interface import ChatAnswer, ChatRequest, EncodedPrompt, Merger
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.session import PREAMBLE, ServerSession
from agent_runtime.types import ReuseName, Usage
from agent_runtime.workspace.workspace import Workspace

NAMES = ("a.py", "b.txt", "c.py")
INTRO = "Files of the project. Notes further on may supersede lines of them; the latest note holds.\n"

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


def no_model() -> Merger:
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
        session = ServerSession(Applier(no_model), lambda: model, workspace=Workspace(expected.root), reuse=reuse)
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
