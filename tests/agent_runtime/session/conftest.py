"""A small model as sessions use it, with a workspace of two files. SmolLM2, float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.interface import ChatAnswer, ChatModel, ChatRequest, EncodedPrompt
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt.forms import PromptForm
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.session import ServerSession
from agent_runtime.workspace.workspace import Workspace
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from tests.models import RealModel

A = "".join(f"def function_{number}(x):\n    return x + {number}\n\n\n" for number in range(20))
B = "LIMIT = 30\n\n\ndef limit():\n    return LIMIT\n"

Begin = Callable[..., ServerSession]


@dataclass
class Noting:
    """A model that notes what it is sent."""

    model: ChatModel
    requests: list[ChatRequest] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def text(self) -> TokenizerBundle:
        return self.model.text

    @property
    def max_seq_len(self) -> int:
        return self.model.max_seq_len

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        self.requests.append(request)
        return self.model.answer(request, context, progress)

    @property
    def prompts(self) -> list[str]:
        """The prompts as text."""
        return [self.text.tokenizer.decode(_ids(request)) for request in self.requests]


def _ids(request: ChatRequest) -> tuple[int, ...]:
    assert isinstance(request.prompt, EncodedPrompt)
    return request.prompt.token_ids


@pytest.fixture(scope="session")
def text_side(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    plain = PromptForm("plain", "You merge edits into code.", ())  # without an example, which takes a prefill
    return replace(metadata.to_bundle(tokenizer), form=plain)


@pytest.fixture(scope="session")
def merger(smollm2_decoder: Decoder, text_side: TokenizerBundle) -> Iterator[ModelMerger]:
    """One for all tests: each has a salt of its own, for which nothing was computed yet."""
    config = EngineConfig(1536, span_bytes=50_000_000, check_integrity=True)
    with Engine(smollm2_decoder, text_side.tokenizer.token_bytes(), config) as engine:
        yield ModelMerger(LoadedModel("smollm2-135m", engine, text_side, 0.0, 0))


class Served(ModelMerger):
    """A model that a service does not take with it when it ends."""

    def close(self) -> None:
        """The next test uses it, too."""


@pytest.fixture
def served(merger: ModelMerger) -> Served:
    """For a service, whose requests have no salt: nothing was computed for them yet."""
    merger._loaded.engine.forget_cached()
    return Served(merger._loaded)


@pytest.fixture
def model(merger: ModelMerger) -> Noting:
    return Noting(merger.chat())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text(A)
    (root / "b.py").write_text(B)
    return root


@pytest.fixture
def begin(merger: ModelMerger, model: Noting, root: Path, request: pytest.FixtureRequest) -> Begin:
    """Begins a session about the workspace."""

    def begin(**options: Any) -> ServerSession:
        workspace = None if options.pop("alone", False) else Workspace(root)
        return ServerSession(
            Applier(lambda: merger), lambda: model, workspace=workspace, salt=request.node.nodeid, **options
        )

    return begin
