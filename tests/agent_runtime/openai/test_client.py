"""The official `openai` package against the service on a real socket: it must not tell us from OpenAI."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from agent_runtime.errors import Busy, DeadlinePassed, HunkError, ModelFailed, ModelUnavailable, TooLarge
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.server.app import MAX_BODY_BYTES
from agent_runtime.server.openai import routes
from tests.agent_runtime.openai.scripted_chat import USAGE, ChattingMerger, ScriptedChat
from tests.agent_runtime.serving import serving

CODE = "def area(radius):\n    return 3 * radius * radius\n"
ASK: dict[str, Any] = {
    "model": "hunk",
    "messages": [
        {"role": "developer", "content": "You repeat code."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Repeat this code exactly:\n"}, {"type": "text", "text": CODE}],
        },
    ],
    "max_completion_tokens": 20,
}


def client_of(url: str, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60, **options)


@pytest.fixture(scope="module")
def url(loaded: LoadedModel) -> Iterator[str]:
    """A service with a model."""
    with serving(ModelMerger(loaded)) as served:
        yield served


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with client_of(url) as made:
        yield made


@pytest.fixture(scope="module")
def whole(client: OpenAI) -> ChatCompletion:
    """The answer that other ways of asking are compared with."""
    return client.chat.completions.create(**ASK)


@dataclass
class Scripted:
    """A service that answers what its `chatting` says."""

    url: str
    merger: ChattingMerger

    def says(self, chatting: ScriptedChat) -> ScriptedChat:
        self.merger.chatting = chatting
        return chatting


@pytest.fixture(scope="module")
def running() -> Iterator[Scripted]:
    merger = ChattingMerger()
    with serving(merger) as served:
        yield Scripted(served, merger)


@pytest.fixture
def service(running: Scripted) -> Scripted:
    """With nothing left of the last test's script."""
    running.says(ScriptedChat())
    return running


@pytest.fixture
def scripted(service: Scripted) -> str:
    return service.url


def test_an_answer_in_one_piece(client: OpenAI, whole: ChatCompletion) -> None:
    answer = whole
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == "scripted", "the name of the service's slot"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert "def area(radius):" in str(choice.message.content)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20
    again = client.chat.completions.create(**ASK)
    assert again.choices[0].message == choice.message
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    assert again.id != answer.id


def test_a_stream_is_the_answer_in_pieces(client: OpenAI, whole: ChatCompletion) -> None:
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    *with_choice, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in with_choice) == whole.choices[0].message.content
    assert with_choice[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in with_choice] == [None] * (len(with_choice) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(with_choice) > 3, "it comes as it is written"
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_usage_is_streamed_only_where_it_is_asked_for(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ASK | {"max_completion_tokens": 2}, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_stream_of_the_package_puts_the_answer_together(scripted: str) -> None:
    with client_of(scripted) as client, client.chat.completions.stream(**ASK) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hello, world"


def test_a_prediction_is_counted_and_changes_nothing(client: OpenAI, whole: ChatCompletion) -> None:
    expected = str(whole.choices[0].message.content)
    prediction: Any = {"type": "content", "content": expected}
    predicted = client.chat.completions.create(**ASK, prediction=prediction)
    assert predicted.choices == whole.choices
    assert predicted.usage is not None
    details = predicted.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > predicted.usage.completion_tokens / 2
    wrong: Any = {
        "type": "content",
        "content": [{"type": "text", "text": "Nothing "}, {"type": "text", "text": "of use."}],
    }
    mispredicted = client.chat.completions.create(**ASK, prediction=wrong)
    assert mispredicted.choices == whole.choices
    assert mispredicted.usage is not None
    details = mispredicted.usage.completion_tokens_details
    assert details is not None
    assert (details.rejected_prediction_tokens or 0) > 0


def test_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(**ASK | {"max_completion_tokens": 4}, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(each.token for each in logprobs.content) == answer.choices[0].message.content
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in logprobs.content)
    stream = list(client.chat.completions.create(**ASK | {"max_completion_tokens": 4}, logprobs=True, stream=True))
    streamed = stream[-1].choices[0].logprobs
    assert streamed is not None
    assert streamed.content is not None
    assert [each.token for each in streamed.content] == [each.token for each in logprobs.content]


def test_sampling_differs_unless_it_has_a_seed(client: OpenAI) -> None:
    def text(**more: Any) -> str | None:
        answer = client.chat.completions.create(**ASK | {"max_completion_tokens": 6}, temperature=2.0, **more)
        return answer.choices[0].message.content

    assert text(seed=7) == text(seed=7)
    assert len({text() for _ in range(3)}) > 1


def test_stop(client: OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, stop=["(radius)"])
    assert answer.choices[0].finish_reason == "stop"
    assert str(answer.choices[0].message.content).endswith("def area")


def test_models(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["scripted", "hunk"]
    assert client.models.retrieve("hunk").owned_by == "hunk"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_the_asynchronous_client_gets_the_same(url: str, whole: ChatCompletion) -> None:
    async def ask() -> tuple[ChatCompletion, list[str]]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            answer, stream = await asyncio.gather(
                client.chat.completions.create(**ASK), client.chat.completions.create(**ASK, stream=True)
            )
            return answer, [chunk.choices[0].delta.content or "" async for chunk in stream]

    answer, pieces = asyncio.run(ask())
    assert answer.choices == whole.choices
    assert "".join(pieces) == whole.choices[0].message.content


def test_usage_is_what_the_model_counted(scripted: str) -> None:
    with client_of(scripted) as client:
        usage = client.chat.completions.create(**ASK).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 7, 27)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == USAGE.cached
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (4, 2)


@pytest.mark.parametrize(
    ("fault", "error", "code", "after"),
    [
        (Busy("as many wait as may"), openai.RateLimitError, "rate_limit_exceeded", "1"),
        (TooLarge("the prompt is too long"), openai.BadRequestError, "context_length_exceeded", None),
        (DeadlinePassed("too late"), openai.InternalServerError, "deadline_passed", None),
        (ModelFailed("it broke down"), openai.InternalServerError, "model_failed", None),
        (ModelUnavailable("it is closed"), openai.InternalServerError, "model_unavailable", "5"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_faults_are_the_exceptions_of_the_package(
    service: Scripted,
    fault: HunkError,
    error: type[openai.APIStatusError],
    code: str,
    after: str | None,
    stream: bool,
) -> None:
    service.says(ScriptedChat(pieces=(), fault=fault))
    with client_of(service.url) as client, pytest.raises(error) as caught:
        client.chat.completions.create(**ASK, stream=stream)
    assert caught.value.code == code
    assert str(fault) in str(caught.value)
    assert caught.value.response.headers.get("retry-after") == after


def test_a_client_retries_what_says_when_to_come_again(service: Scripted) -> None:
    class OnceBusy(ScriptedChat):
        def answer(self, *arguments: Any) -> Any:
            self.fault = Busy("as many wait as may") if not self.seen else None
            return super().answer(*arguments)

    chatting = service.says(OnceBusy())
    with client_of(service.url).with_options(max_retries=1) as client:
        assert client.chat.completions.create(**ASK).choices[0].message.content == "Hello, world"
    assert len(chatting.seen) == 2


def test_a_fault_behind_the_first_text_is_told_in_the_stream(service: Scripted) -> None:
    hold = threading.Event()
    service.says(ScriptedChat(fault=ModelFailed("it broke down"), hold=hold))
    with client_of(service.url) as client:
        stream = client.chat.completions.create(**ASK, stream=True)
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "Hel"]
        hold.set()
        with pytest.raises(openai.APIError, match="it broke down") as caught:
            list(stream)
    assert caught.value.code == "model_failed"


def test_the_model_that_is_loading_is_a_503_with_the_time_to_wait() -> None:
    with serving(None) as url, client_of(url) as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**ASK)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "5"
    assert "still being loaded" in str(caught.value)


def test_a_stream_says_now_and_then_that_the_work_goes_on(service: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "HEARTBEAT_SECONDS", 0.05)
    hold = threading.Event()
    service.says(ScriptedChat(hold=hold))
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=ASK | {"stream": True}) as answer:
        lines = answer.iter_lines()
        seen = [line for line in (next(lines) for _ in range(12)) if line]
        hold.set()
        rest = [line for line in lines if line]
    assert "Hel" in seen[1]
    assert set(seen[2:]) == {": the work goes on"}
    assert rest[-1] == "data: [DONE]"
    assert sum(line.startswith(":") for line in rest) <= 1


def test_a_client_that_leaves_a_stream_ends_the_answer(service: Scripted) -> None:
    chatting = service.says(ScriptedChat(hold=threading.Event()))
    with client_of(service.url) as client:
        with client.chat.completions.create(**ASK, stream=True) as stream:
            next(stream)
        assert chatting.cancelled.wait(30)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_gives_up_before_the_first_text_ends_the_answer(
    service: Scripted, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "HEARTBEAT_SECONDS", 600.0)
    chatting = service.says(ScriptedChat(pieces=(), hold=threading.Event()))
    with client_of(service.url).with_options(timeout=0.2) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**ASK, stream=stream)
        assert chatting.cancelled.wait(30)


@pytest.mark.parametrize(
    ("more", "param", "what"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "tools"),
        ({"functions": [{"name": "f"}]}, "functions", "functions"),
        ({"tool_choice": "required"}, "tool_choice", "'none', 'auto'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "response_format"),
        ({"n": 2}, "n", "1"),
        ({"modalities": ["text", "audio"]}, "modalities", "modalities"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "frequency_penalty"),
        ({"temperature": 3}, "temperature", "2"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"nonsense": 1}, "nonsense", "no field 'nonsense'"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "ids"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "ids"),
        ({"hunk": {"mode": "model"}}, "hunk", "edit"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user", "content": ""}] * 10_001}, "messages", "at most 10000"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages", "'tool'"),
        ({"messages": [{"role": "user", "content": None}]}, "messages", "no content"),
        ({"messages": [{"role": "user", "content": "a", "colour": "red"}]}, "messages", "colour"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
            "messages",
            "'image_url'",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "user", "content": "a"}]},
            "messages",
            "tool_calls",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(scripted: str, more: dict[str, Any], param: str, what: str) -> None:
    with client_of(scripted) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="hunk", messages=ASK["messages"], extra_body=more)
    assert caught.value.param == param
    assert what in str(caught.value)
    assert caught.value.type == "invalid_request_error"


def test_what_changes_nothing_is_taken(service: Scripted) -> None:
    neutral = {
        "tools": [],
        "tool_choice": "auto",
        "n": 1,
        "response_format": {"type": "text"},
        "presence_penalty": 0,
        "user": "somebody",
        "metadata": {"a": "b"},
        "store": False,
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "stop": None,
        "seed": None,
        "top_p": 1,
        "top_k": 20,
    }
    messages = [
        {"role": "system", "content": "s", "name": "somebody"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
    ]
    sent = {"messages": messages, **neutral}
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=sent, timeout=30)
    assert answer.status_code == 200
    (seen,) = service.merger.chatting.seen
    assert isinstance(seen.prompt, tuple)
    assert [(each.role, each.text) for each in seen.prompt] == [
        ("system", "s"),
        ("user", "u"),
        ("assistant", ""),
        ("tool", "t"),
    ]
    assert (seen.temperature, seen.top_k, seen.stop) == (0.0, 20, ())


def test_an_unknown_model_is_not_found(scripted: str) -> None:
    with client_of(scripted) as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ASK | {"model": "gpt-9"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "'scripted'" in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda client: client.responses.create(model="hunk", input="Say hello."), "OpenAI's responses"),
        (lambda client: client.responses.retrieve("resp_1"), "OpenAI's responses"),
        (lambda client: client.completions.create(model="hunk", prompt="def"), "OpenAI's completions of a prompt"),
        (lambda client: client.embeddings.create(model="hunk", input="def"), "embeddings"),
        (lambda client: client.post("/messages", body=ASK, cast_to=object), "Anthropic's messages"),
    ],
    ids=["responses", "one response", "completions", "embeddings", "messages"],
)
def test_what_is_not_served_is_refused_by_name(scripted: str, ask: Callable[[OpenAI], Any], what: str) -> None:
    with client_of(scripted) as client, pytest.raises(openai.NotFoundError) as caught:
        ask(client)
    assert caught.value.code == "unknown_url"
    assert what in caught.value.message
    assert "/v1/chat/completions" in caught.value.message


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/chat/completions", 400)],
)
def test_what_the_framework_refuses_has_the_shape_too(scripted: str, method: str, path: str, status: int) -> None:
    content = b"{" if method == "POST" else b""
    answer = httpx.request(method, f"{scripted}{path}", content=content, headers={"content-type": "application/json"})
    elsewhere = httpx.get(f"{scripted}/nothing")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert elsewhere.json()["type"] == "urn:hunk:problem:no-such-route", "elsewhere a problem stays one"


def test_what_other_middleware_refuses_has_the_shape_too(scripted: str) -> None:
    foreign = httpx.get(f"{scripted}/v1/models", headers={"host": "evil.example"})
    assert (foreign.status_code, foreign.json()["error"]["type"]) == (403, "permission_error")
    assert foreign.headers["x-request-id"]
    large = httpx.post(f"{scripted}/v1/chat/completions", content=b" " * (MAX_BODY_BYTES + 1), timeout=60)
    assert (large.status_code, large.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_fault_of_ours_has_the_shape_too(service: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.merger.chatting, "answer", lambda *_: 1 / 0)
    broken = httpx.post(f"{service.url}/v1/chat/completions", json=ASK)
    streamed = httpx.post(f"{service.url}/v1/chat/completions", json=ASK | {"stream": True})
    for answer in (broken, streamed):
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "ZeroDivisionError" in answer.json()["error"]["message"]
