"""Several clients of one service and one real model: batched, taken back, refused, too late. SmolLM2, float32."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
import torch
from httpx_sse import connect_sse
from torch import Tensor

from agent_runtime import wiring
from agent_runtime.errors import HunkError, ModelUnavailable
from agent_runtime.llm import opener
from agent_runtime.llm.interface import ModelTask
from agent_runtime.llm.merger import ModelMerger, warm_up
from agent_runtime.models.config import LoadOptions, MergeOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.progress import SilentProgress
from agent_runtime.models.store import ModelFiles
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt.builder import build_prompt
from agent_runtime.request_context import NO_PROGRESS, ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest
from editor.formats import parse
from editor.merge import merge
from engine import errors as engine_errors
from engine.decoder import Decoder
from engine.engine import Engine, EngineStats
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest, GenerationUsage
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, post, serving
from tests.models import RealModel

FILES = [
    "def area(r):\n    return 3.14 * r * r\n",
    "limit = 10\nretries = 3\n",
    "export const ZERO = 0;\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n",
]
EDIT = "# ... existing code ...\n\n\ndef more():\n    return 2\n"
LONG = {
    "original": "value = 1\n" * 40,
    "edit": EDIT,
    "mode": "model",
    "draft": "none",
    "decide": "generate",
    "max_tokens": 1000,
    "temperature": 10.0,
}
"""At this temperature the model finds no end."""


@pytest.fixture(scope="module")
def loaded(smollm2: RealModel, smollm2_decoder: Decoder) -> LoadedModel:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    engine = Engine(smollm2_decoder, tokenizer.token_bytes(), 32)  # the tests have their own over its weights
    return LoadedModel(smollm2.name, engine, metadata.to_bundle(tokenizer), 0.0, 0)


@dataclass
class Shared:
    """A running service and the engine behind it."""

    url: str
    engine: Engine

    def until(self, holds: Callable[[EngineStats], bool]) -> None:
        """Look every millisecond, and so between every two passes."""
        for _ in range(20_000):
            if holds(self.engine.stats()):
                return
            time.sleep(0.001)
        raise AssertionError(f"it never was so: {self.engine.stats()}")


@contextmanager
def shared(loaded: LoadedModel, deadline_s: float | None = None, **limits: int) -> Iterator[Shared]:
    """A service whose engine has these limits, over the same weights."""
    config = EngineConfig(2048, scheduler=SchedulerConfig(**limits), check_integrity=True)
    engine = Engine(loaded.engine.model, loaded.text.tokenizer.token_bytes(), config)
    with engine, serving(ModelMerger(replace(loaded, engine=engine), deadline_s)) as url:
        yield Shared(url, engine)


def test_edits_at_once_give_what_each_gives_alone_in_fewer_passes(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [{"original": text, "edit": EDIT, "mode": "model", "max_tokens": 32} for text in FILES]
    with shared(loaded) as service:
        alone = [post(service.url, body).json() for body in bodies]
        model, num_passes = service.engine.model, 0
        forward = model.forward_batch

        def counted(*arguments: Any) -> Tensor:
            nonlocal num_passes
            num_passes += 1
            return forward(*arguments)

        monkeypatch.setattr(model, "forward_batch", counted)
        with ThreadPoolExecutor(len(bodies)) as clients:
            together = list(clients.map(lambda body: post(service.url, body).json(), bodies))
        assert [answer["merged"] for answer in together] == [answer["merged"] for answer in alone]
        assert all(answer["method"] == "model" for answer in together)
        assert num_passes < sum(answer["usage"]["forwards"] for answer in together)
        assert service.engine.stats().kv.num_in_use == 0


def test_files_of_one_request_share_passes_and_come_to_what_each_comes_to_alone(loaded: LoadedModel) -> None:
    options = {"mode": "model", "max_tokens": 12, "policy": "lenient"}
    files = [{"original": text, "edit": EDIT, "path": f"{number}.txt"} for number, text in enumerate(FILES[:2])]
    with shared(loaded) as service:
        alone = [post(service.url, file | options).json() for file in files]
        before = service.engine.stats().num_passes
        together = post(service.url, {"files": files} | options).json()
        num_passes = service.engine.stats().num_passes - before
    assert [file["merged"] for file in together["files"]] == [answer["merged"] for answer in alone]
    assert together["usage"]["completion"] == sum(answer["usage"]["completion"] for answer in alone)
    assert num_passes < together["usage"]["forwards"]


def test_a_stream_tells_what_the_model_writes_and_ends_with_the_same_answer(loaded: LoadedModel) -> None:
    body = {"original": FILES[0], "edit": EDIT, "mode": "model", "max_tokens": 32, "policy": "lenient"}
    with shared(loaded) as service, httpx.Client(timeout=60) as client:
        plain = post(service.url, body).json()
        with connect_sse(client, "POST", f"{service.url}/apply", json=body | {"stream": True}) as source:
            events = list(source.iter_sse())
    phases = [event.json()["phase"] for event in events if event.event == "phase"]
    assert phases == ["parse", "merge", "scope", "prompt", "prefill", "decode", "verify"]
    written = "".join(piece["text"] for event in events if event.event == "tokens" for piece in event.json()["pieces"])
    assert events[-1].event == "result"
    assert events[-1].json()["merged"] == plain["merged"]
    assert written.rstrip("\n") == plain["merged"].rstrip("\n")


def test_a_client_that_leaves_frees_its_pages_at_once(loaded: LoadedModel) -> None:
    with shared(loaded) as service:
        with asking(service.url, LONG):
            service.until(lambda stats: stats.scheduler.num_running == 1 and stats.kv.num_in_use > 0)
        service.until(lambda stats: stats.scheduler.num_running == 0)
        assert service.engine.stats().kv.num_in_use == 0


def test_a_client_that_leaves_the_queue_is_out_of_it(loaded: LoadedModel) -> None:
    with shared(loaded, max_num_seqs=1) as service, asking(service.url, LONG):
        service.until(lambda stats: stats.scheduler.num_running == 1)
        with asking(service.url, LONG):
            service.until(lambda stats: stats.scheduler.num_waiting == 1)
        service.until(lambda stats: stats.scheduler.num_waiting == 0)
        assert service.engine.stats().scheduler.num_running == 1, "the other one stays"


def test_a_full_queue_answers_429_and_says_when_to_come_again(loaded: LoadedModel) -> None:
    with shared(loaded, max_num_seqs=1, max_waiting=1) as service, asking(service.url, LONG):
        service.until(lambda stats: stats.scheduler.num_running == 1)
        with asking(service.url, LONG):
            service.until(lambda stats: stats.scheduler.num_waiting == 1)
            unclear = "# circle.py\ndef area(r):\n    return 3 * r * r\n"
            refused = post(service.url, {"original": FILES[0], "edit": unclear})
            by_rule = post(service.url, {"original": "a = 1\n", "edit": '{"old_string": "1", "new_string": "2"}'})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    problem = refused.json()
    assert problem["type"] == "urn:hunk:problem:busy"
    assert "try again in a moment" in problem["detail"]
    assert problem["reasons"], "why no rule could do it is said too"
    assert by_rule.json()["status"] == "merged", "an edit that needs no model is not held up"


def test_an_edit_that_takes_too_long_answers_504(loaded: LoadedModel) -> None:
    with shared(loaded, deadline_s=0.001) as service:
        late = post(service.url, LONG)
        assert (late.status_code, late.json()["type"]) == (504, "urn:hunk:problem:deadline-passed")
        assert "--deadline" in late.json()["detail"]
        assert service.engine.stats().kv.num_in_use == 0


def test_an_edit_over_which_the_model_breaks_down_answers_500_and_the_next_is_merged(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"original": FILES[1], "edit": EDIT, "mode": "model", "max_tokens": 4}
    with shared(loaded) as service:
        with monkeypatch.context() as patch:
            patch.setattr(service.engine.model, "forward_batch", lambda *_: 1 / 0)
            broken = post(service.url, body)
        assert (broken.status_code, broken.json()["type"]) == (500, "urn:hunk:problem:model-failed")
        assert "ZeroDivisionError" in broken.json()["detail"]
        assert post(service.url, body).json()["method"] == "model"


def test_a_prompt_that_the_pool_cannot_hold_answers_413(loaded: LoadedModel) -> None:
    config = EngineConfig(2048, kv_bytes=40_000_000)
    engine = Engine(loaded.engine.model, loaded.text.tokenizer.token_bytes(), config)
    with engine, serving(ModelMerger(replace(loaded, engine=engine))) as url:
        refused = post(url, LONG)
    assert (refused.status_code, refused.json()["type"]) == (413, "urn:hunk:problem:too-large")
    assert "--kv-gib" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (engine_errors.EngineError, 500),
        (engine_errors.RequestError, 400),
        (engine_errors.DoesNotFit, 413),
        (engine_errors.QueueFull, 429),
        (engine_errors.GenerationFailed, 500),
        (engine_errors.Cancelled, 499),
        (engine_errors.DeadlineExceeded, 504),
        (engine_errors.NumericFault, 500),
        (engine_errors.EngineFault, 500),
        (engine_errors.EngineClosed, 503),
    ],
)
def test_every_error_of_the_engine_has_its_status_and_says_what_to_do(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, error: type[engine_errors.EngineError], status: int
) -> None:
    def failing(*_: Any) -> NoReturn:
        raise error("for a reason")

    monkeypatch.setattr(loaded.engine, "generate", failing)
    monkeypatch.setattr(loaded.engine, "max_seq_len", 2048)
    with pytest.raises(HunkError, match="for a reason; ") as caught:
        ModelMerger(loaded).merge(task_of("a = 1\n", ApplyRequest(b"a = 1\n", EDIT)), RequestContext(), NO_PROGRESS)
    assert caught.value.http_status == status
    assert isinstance(caught.value.__cause__, error)


def task_of(text: str, request: ApplyRequest) -> ModelTask:
    edit = parse(request.edit)
    return ModelTask(text, request, edit, merge(text, edit))


def test_the_services_end_ends_the_model_and_what_it_works_on(loaded: LoadedModel) -> None:
    with shared(loaded) as service:
        merger = ModelMerger(replace(loaded, engine=service.engine))
        request = ApplyRequest(b"a = 1\n", EDIT, draft="none", max_tokens=1000, temperature=10.0)
        began = threading.Event()
        faults: list[Exception] = []

        class Started(ProgressListener):
            def on_tokens(self, num_tokens: int) -> None:
                began.set()

        def run() -> None:
            with pytest.raises(ModelUnavailable, match="takes no more requests; the service is ending") as caught:
                merger.merge(task_of("a = 1\n" * 100, request), RequestContext(), Started())
            faults.append(caught.value)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert began.wait(60)
    thread.join(60)
    assert len(faults) == 1


def test_the_service_closes_its_model_when_it_ends() -> None:
    merger = ScriptedMerger()
    with serving(merger) as url:
        assert post(url, {"original": "a = 1\n", "edit": EDIT, "mode": "model"}).status_code == 200
        assert not merger.closed.is_set()
    assert merger.closed.is_set()


# The shared prefix of the prompts is computed once. SmolLM2, float32.


NUM_PAGES, PAGE_SIZE = 28, 32


@pytest.fixture(scope="module")
def text(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture
def warmed(smollm2: RealModel, smollm2_decoder: Decoder, text: TokenizerBundle) -> Iterator[LoadedModel]:
    """With memory for the shared part and a little more."""
    kv_bytes = NUM_PAGES * page_bytes(smollm2_decoder.config, PAGE_SIZE, torch.float32)
    config = EngineConfig(NUM_PAGES * PAGE_SIZE, kv_bytes, PAGE_SIZE, check_integrity=True)
    with Engine(smollm2_decoder, text.tokenizer.token_bytes(), config) as engine:
        yield LoadedModel(smollm2.name, engine, text, 0.0, 0)


def asked(warmed: LoadedModel, file_text: str, edit_text: str) -> tuple[GenerationUsage, int]:
    """What one token of an answer to this edit took, and how many tokens of its prompt are all edits'."""
    text = warmed.text
    prompt = build_prompt(
        text.template, text.tokenizer, file_text=file_text, edit_text=edit_text, instruction="", form=text.form
    )
    return warmed.engine.run(GenerationRequest(prompt=prompt.token_ids, max_new_tokens=1)).usage, prompt.num_shared


def test_the_first_edit_finds_all_of_the_shared_part(warmed: LoadedModel) -> None:
    assert warmed.engine.stats().kv.num_cached == 0
    num_tokens = warm_up(warmed)
    usage, num_shared = asked(warmed, "a = 1", "a = 2")
    assert num_tokens == num_shared > 100
    assert num_shared <= usage.cached < num_shared + 8, "the file differs from whatever was run before"


def test_the_second_edit_finds_it_where_nothing_was_done_before(warmed: LoadedModel) -> None:
    first, _ = asked(warmed, "a = 1", "a = 2")
    second, num_shared = asked(warmed, "import os\n\nprint(os.name)", "print(os.sep)")
    assert first.cached == 0
    assert second.cached >= num_shared


def test_it_outlives_what_fills_the_memory(warmed: LoadedModel) -> None:
    warm_up(warmed)
    for number in range(4):
        warmed.engine.run(GenerationRequest(prompt=range(100 * number, 100 * number + 100), max_new_tokens=1))
    assert warmed.engine.stats().kv.num_free == 0, "the memory is full, and the shared part was used the longest ago"
    usage, num_shared = asked(warmed, "a = 1", "a = 2")
    assert usage.cached >= num_shared


@pytest.mark.parametrize("config", [EngineConfig(32), EngineConfig(2048, 1 << 21)], ids=["context", "memory"])
def test_an_engine_that_it_does_not_fit_is_no_fault(warmed: LoadedModel, config: EngineConfig) -> None:
    with Engine(warmed.engine.model, warmed.text.tokenizer.token_bytes(), config) as small:
        assert warm_up(replace(warmed, engine=small)) == 0


def test_a_service_s_model_is_loaded_with_it(warmed: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "resolve", lambda *_: ModelFiles("gguf", Path("x"), "x"))
    monkeypatch.setattr(opener, "load_model", lambda *_, **__: warmed)
    slot = wiring.make_model_slot("x", ModelSettings(Path("x")), LoadOptions(), SilentProgress(), MergeOptions())
    assert warmed.engine.stats().kv.num_cached == 0, "looking for it runs nothing"
    slot.load()
    usage, num_shared = asked(warmed, "a = 1", "a = 2")
    assert usage.cached >= num_shared


def test_the_environment_s_form_wins_over_the_model_s(monkeypatch: pytest.MonkeyPatch, warmed: LoadedModel) -> None:
    forms: list[str] = []
    monkeypatch.setattr(wiring, "resolve", lambda *_: ModelFiles("gguf", Path("x"), "x", prompt_form="of the model"))
    monkeypatch.setattr(opener, "load_model", lambda files, *_, **__: forms.append(files.prompt_form) or warmed)
    for own in (None, "tags"):
        wiring.open_model("x", ModelSettings(Path("x"), prompt_form=own), LoadOptions())
    assert forms == ["of the model", "tags"]
