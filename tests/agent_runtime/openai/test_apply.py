"""Edits as clients of hosted apply services send them: the file comes back whole and as it was kept, or an error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import Piece, ProgressListener, RequestContext
from agent_runtime.server.service import Service
from agent_runtime.telemetry.metrics import Observer, RequestOutcome
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving
from tests.models import SHARED_DATA

FILE = "limit = 10\nretries = 3\n\n\ndef area(r):\n    return 3 * r * r\n"
SNIPPET = "limit = 10\nseconds = 5\nretries = 3\n\n# ... existing code ...\n"
MERGED = FILE.replace("retries", "seconds = 5\nretries")

UNKNOWN_PLACE = "<<<<<<< SEARCH\nnowhere to be found\n=======\nsomething\n>>>>>>> REPLACE\n"
NEEDS_MODEL = "def perimeter(r):\n    return 2 * 3.14 * r\n"


def message(code: str, update: str, instruction: str = "") -> str:
    first = f"<instruction>{instruction}</instruction>\n" if instruction else ""
    return f"{first}<code>{code}</code>\n<update>{update}</update>"


def body(code: str, update: str, **more: Any) -> dict[str, Any]:
    return {"model": "morph-v3-fast", "messages": [{"role": "user", "content": message(code, update)}], **more}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service whose model is asked for nothing."""
    with serving(ChattingMerger(text="the model was asked\n")) as served:
        yield served


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
        yield made


def merged(client: OpenAI, code: str, update: str, **more: Any) -> str:
    content = client.chat.completions.create(**body(code, update, **more)).choices[0].message.content
    assert content is not None
    return content


@pytest.mark.parametrize("model", ["morph-v3-fast", "morph-v3-large", "auto", "relace-apply-3", "hunk", "scripted"])
def test_the_answer_is_the_whole_file(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(**body(FILE, SNIPPET) | {"model": model})
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (MERGED, "stop")
    assert answer.model == "scripted"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0, "a rule merged it"
    assert answer.model_extra is not None
    told = answer.model_extra["hunk"]
    assert (told["status"], told["method"], told["certainty"], told["candidates"]) == (
        "merged",
        "deterministic",
        "certain",
        1,
    )
    assert told["rung"]
    assert told["path"] == "file.py"
    assert all(check["ok"] for check in told["checks"])
    assert told["diff"].startswith("---")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (FILE.replace("\n", "\r\n"), MERGED.replace("\n", "\r\n")),
        (FILE.removesuffix("\n"), MERGED.removesuffix("\n")),
        (FILE.replace("\n", "\r\n").removesuffix("\r\n"), MERGED.replace("\n", "\r\n").removesuffix("\r\n")),
        ("\ufeff" + FILE, "\ufeff" + MERGED),
        ("\n" + FILE, "\n" + MERGED),
        (FILE + "\n\n", MERGED + "\n\n"),
        (FILE.replace("    ", "\t"), MERGED.replace("    ", "\t")),
    ],
    ids=["crlf", "no final newline", "crlf without a final one", "bom", "blank first", "blank last", "tabs"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_file_keeps_its_line_ends_and_all_that_the_edit_does_not_touch(
    client: OpenAI, code: str, expected: str, stream: bool
) -> None:
    if not stream:
        assert merged(client, code, SNIPPET) == expected
        return
    chunks = client.chat.completions.create(**body(code, SNIPPET), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_texts_that_are_set_apart_by_line_ends_come_back_without_these(client: OpenAI) -> None:
    assert merged(client, f"\n{FILE}\n", f"\n{SNIPPET}\n") == MERGED
    cut = FILE.removesuffix("\n")
    assert merged(client, f"\n{cut}\n", f"\n{SNIPPET}\n") == MERGED.removesuffix("\n")


def test_a_new_file_is_its_update(client: OpenAI) -> None:
    assert merged(client, "", FILE) == FILE


def test_an_edit_that_is_there_already_gives_the_file_as_it_is(client: OpenAI) -> None:
    answer = client.chat.completions.create(**body(MERGED, SNIPPET))
    assert answer.choices[0].message.content == MERGED
    assert answer.model_extra is not None
    assert answer.model_extra["hunk"]["status"] == "noop"


RECORDED = SHARED_DATA / "morph_live_outputs" / "cases.jsonl"


@pytest.mark.skipif(not RECORDED.is_file(), reason="../shared/data is not beside this checkout")
def test_what_a_rule_merges_is_what_a_hosted_service_answered(client: OpenAI) -> None:
    num_merged = 0
    for line in RECORDED.read_text().splitlines():
        case = json.loads(line)
        content = message(case["original"], case["update"], case["instruction"])
        try:
            answer = client.chat.completions.create(
                model="morph-v3-fast",
                messages=[{"role": "user", "content": content}],
                extra_body={"hunk": {"mode": "deterministic"}},
            )
        except openai.UnprocessableEntityError:
            continue  # these are the model's
        assert answer.choices[0].message.content == case["vendor_output"], case["id"]
        num_merged += 1
    assert num_merged >= 6, "of ten"


def test_other_forms_of_edits_are_read_too(client: OpenAI) -> None:
    block = "<<<<<<< SEARCH\nlimit = 10\n=======\nlimit = 20\n>>>>>>> REPLACE\n"
    assert merged(client, FILE, block) == FILE.replace("limit = 10", "limit = 20")


def test_a_system_message_beside_the_edit_changes_nothing(client: OpenAI) -> None:
    system = {"role": "system", "content": "You merge code. Answer with the whole file."}
    messages = [system, *body(FILE, SNIPPET)["messages"]]
    assert merged(client, FILE, SNIPPET, messages=messages) == MERGED


def test_a_long_file_is_streamed_in_pieces(client: OpenAI) -> None:
    code = "".join(f"value_{number} = {number}\n" for number in range(2000))
    update = '{"old_string": "value_7 = 7", "new_string": "value_7 = 8"}'
    *chunks, last = client.chat.completions.create(
        **body(code, update), stream=True, stream_options={"include_usage": True}
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == code.replace("value_7 = 7\n", "value_7 = 8\n")
    assert len(pieces) > 5
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["hunk"]["status"] == "merged"
    assert last.usage is not None


@pytest.mark.parametrize("stream", [False, True])
def test_an_edit_that_does_not_apply_is_an_error_with_reasons(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(
            **body(FILE, UNKNOWN_PLACE), stream=stream, extra_body={"hunk": {"mode": "deterministic"}}
        )
    assert caught.value.code == "edit_refused"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["hunk"]["reasons"][0]["code"]


class Writing(ScriptedMerger):
    """Writes before anybody has checked it."""

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        if progress.wants_text:
            progress.on_pieces(0, [Piece(self.text, "generated")])
            threading.Event().wait(0.2)
        return super().merge(task, context, progress)


@pytest.mark.parametrize("stream", [False, True])
def test_a_merge_that_a_check_rejects_is_an_error_and_no_file(stream: bool) -> None:
    with (
        serving(Writing(text="# ... existing code ...\n")) as url,
        OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.UnprocessableEntityError, match="marker_leak") as caught,
    ):
        client.chat.completions.create(**body(FILE, NEEDS_MODEL), stream=stream, extra_body={"hunk": {"mode": "model"}})
    assert caught.value.code == "edit_refused"


def test_the_model_merges_what_no_rule_does() -> None:
    merger = ScriptedMerger(text=FILE + "\n\n" + NEEDS_MODEL)
    edit = "# ... existing code ...\n\n\n" + NEEDS_MODEL
    with serving(merger) as url:
        sent = body(FILE, edit, hunk={"mode": "model", "path": "shapes.py"}, max_tokens=500, seed=3)
        sent["messages"][0]["content"] = message(FILE, edit, "add the perimeter")
        sent["prediction"] = {"type": "content", "content": FILE}
        answer = httpx.post(f"{url}/v1/chat/completions", json=sent, timeout=30).json()
    assert answer["choices"][0]["message"]["content"] == merger.text
    assert (answer["hunk"]["method"], answer["hunk"]["certainty"]) == ("model", "model")
    assert answer["usage"]["prompt_tokens"] == 10
    (seen,) = merger.seen
    assert (seen.instruction, seen.path, seen.prediction) == ("add the perimeter", "shapes.py", FILE)
    assert (seen.max_tokens, seen.temperature, seen.seed) == (500, 0.0, 3)


LOSES_AREA = "limit = 10\nseconds = 5\nretries = 3\n"


def test_what_a_model_loses_of_a_file_without_a_name_is_missed() -> None:
    sent = body(FILE, "limit = 10\nseconds = 5\nretries = 3\n# ... existing code ...\n", hunk={"mode": "model"})
    with serving(ScriptedMerger(text=LOSES_AREA)) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=sent, timeout=30)
    assert answer.status_code == 422
    assert "symbols_kept" in answer.json()["error"]["message"]


def test_before_the_model_is_there_rules_merge_and_the_rest_is_told_to_wait() -> None:
    with serving(None) as url, OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        assert merged(client, FILE, SNIPPET) == MERGED
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**body(FILE, NEEDS_MODEL))
    assert caught.value.status_code == 503
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["hunk"]["reasons"], "why no rule could do it is said too"


def test_a_message_that_can_be_read_in_two_ways_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/code/apply"):
        merged(client, "a = '</code><update>'\n", SNIPPET)


@pytest.mark.parametrize("more", [{"stop": ["a"]}, {"logprobs": True}, {"logit_bias": {"1": 1}}])
def test_what_only_a_chat_can_have_is_refused(client: OpenAI, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="is of chats") as caught:
        merged(client, FILE, SNIPPET, **more)
    assert caught.value.param == next(iter(more))


def test_the_name_of_a_hosted_model_is_for_edits_only(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="merges edits") as caught:
        client.chat.completions.create(model="morph-v3-fast", messages=[{"role": "user", "content": "Say hello."}])
    assert caught.value.param == "model"


def test_a_conversation_about_an_edit_is_a_chat(client: OpenAI) -> None:
    messages: Any = [
        {"role": "user", "content": message(FILE, SNIPPET)},
        {"role": "assistant", "content": MERGED},
        {"role": "user", "content": message(FILE, SNIPPET)},
    ]
    answer = client.chat.completions.create(model="hunk", messages=messages)
    assert answer.choices[0].message.content == "Hello, world"


def test_code_apply(url: str) -> None:
    sent = {"initial_code": FILE, "edit_snippet": SNIPPET, "instructions": "be precise", "model": "morph-v3-fast"}
    answer = httpx.post(f"{url}/v1/code/apply", json=sent)
    assert answer.json()["mergedCode"] == MERGED
    assert answer.json()["hunk"]["certainty"] == "certain"
    assert answer.json()["usage"]["total_tokens"] == 0, "a rule merged it"
    camel = {"initialCode": FILE, "editSnippet": SNIPPET}
    assert httpx.post(f"{url}/v1/code/apply", json=camel).json()["mergedCode"] == MERGED


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"edit_snippet": UNKNOWN_PLACE, "hunk": {"mode": "deterministic"}}, 422, "edit_refused"),
        ({"model": "gpt-9"}, 404, "model_not_found"),
        ({"initial_code": None}, 400, "malformed"),
        ({"initial_code": "\x00\x01\x02"}, 422, "bad_file"),
        ({"colour": "red"}, 400, "unsupported_parameter"),
        ({"stream": 0}, 400, "malformed"),
        ({"initial_code": "x" * (9 << 20)}, 400, "context_length_exceeded"),
    ],
)
def test_code_apply_says_what_is_wrong(url: str, change: dict[str, Any], status: int, code: str) -> None:
    answer = httpx.post(
        f"{url}/v1/code/apply", json={"initial_code": FILE, "edit_snippet": SNIPPET} | change, timeout=60
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_the_observer_is_told_of_every_answer_and_every_fault() -> None:
    told: list[RequestOutcome] = []

    class Telling(Observer):
        def on_outcome(self, outcome: RequestOutcome) -> None:
            told.append(outcome)

    def listened(service: Service) -> Service:
        service.metering.subscribe(Telling())
        return service

    with serving(ChattingMerger(), change=listened) as url:
        chat = {"messages": [{"role": "user", "content": "Say hello."}]}
        for path, sent in [
            ("chat/completions", body(FILE, SNIPPET)),
            ("chat/completions", body(FILE, UNKNOWN_PLACE, hunk={"mode": "deterministic"})),
            ("chat/completions", chat),
            ("chat/completions", chat | {"stream": True}),
            ("code/apply", {"initial_code": FILE, "edit_snippet": SNIPPET}),
        ]:
            httpx.post(f"{url}/v1/{path}", json=sent, timeout=30)
    completions = "/v1/chat/completions"
    assert [(each.route, each.outcome) for each in told] == [
        (completions, "merged"),
        (completions, "edit-refused"),
        (completions, "answered"),
        (completions, "answered"),
        ("/v1/code/apply", "merged"),
    ]
    assert told[0].edits == (("deterministic", "certain"),)
    assert (told[2].usage.completion, told[2].first_token_ms) == (7, 3.0)
