"""A frontier model for real clients, on loopback: it makes the calls of a script, one a turn, then says a text.

It speaks OpenAI's chat completions (`/v1/chat/completions`) and responses (`/v1/responses`) and Anthropic's messages
(`/v1/messages`), complete and streamed. How far a conversation has come is told by the answers of tools in the request.
A request that does not offer the tool of the next call, such as a client's request for a title, gets a word.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

MODEL = "scripted"
ASIDE = "Prices"
"""The answer to a request that is not of the conversation."""

Body = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """The call of a tool whose name ends with `tool`."""

    tool: str
    arguments: Mapping[str, Any]
    text: str = "I change the file."


@dataclass
class ScriptedChat:
    """Makes `calls`, one a turn, then says `text`; keeps what it was sent."""

    calls: Sequence[Call] = ()
    text: str = ASIDE
    url: str = ""
    seen: list[tuple[str, Body]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    """What the tools have answered, as the client has sent it to the model."""

    def reply(self, tools: Sequence[str], answers: Sequence[str]) -> tuple[Call | None, str]:
        """Return the next call, with the whole name of its tool, if there is one, and the text to be said."""
        if len(answers) > len(self.answers):
            self.answers = list(answers)
        if len(answers) >= len(self.calls):
            return None, self.text
        call = self.calls[len(answers)]
        names = [name for name in tools if name.endswith(call.tool)]
        return (replace(call, tool=names[0]), call.text) if names else (None, ASIDE)


@contextmanager
def serving_chat(chat: ScriptedChat) -> Iterator[ScriptedChat]:
    """Serve the model on a free port of loopback; `chat.url` is its address, without `/v1`."""

    async def answer(request: Request) -> Response:
        body: Body = json.loads(await request.body() or b"{}")
        path = request.url.path
        chat.seen.append((f"{request.method} {path}", body))
        wire = WIRES.get(path)
        if request.method == "POST" and wire is not None:
            return wire(chat, body)
        if path.endswith("/count_tokens"):
            return JSONResponse({"input_tokens": 100})
        if path.endswith("/models"):
            return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "tests"}]})
        return JSONResponse({"error": {"message": f"no {path} here", "type": "invalid_request_error"}}, 404)

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "HEAD", "POST"])])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        chat.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        while not server.started:
            time.sleep(0.01)
        try:
            yield chat
        finally:
            server.should_exit = True
            thread.join(10)


def _completions(chat: ScriptedChat, body: Body) -> Response:
    tools = [tool["function"]["name"] for tool in body.get("tools") or []]
    answers = [_text(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    call, text = chat.reply(tools, answers)
    whole = {"id": "chatcmpl-1", "created": int(time.time()), "model": body["model"]}
    message: Body = {"role": "assistant", "content": text}
    if call:
        message["tool_calls"] = [
            {
                "id": f"call_{len(answers)}",
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
                "index": 0,
            }
        ]
    reason = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return JSONResponse(whole | {"object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = whole | {"object": "chat.completion.chunk"}
    return _stream(
        chunk | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        chunk | {"choices": [], "usage": usage},
        "[DONE]",
    )


def _responses(chat: ScriptedChat, body: Body) -> Response:
    spaces = {"": list(body.get("tools") or [])}
    spaces |= {tool["name"]: tool["tools"] for tool in spaces[""] if tool["type"] == "namespace"}
    owners = {tool["name"]: space for space, tools in spaces.items() for tool in tools if "parameters" in tool}
    items = body["input"] if isinstance(body["input"], list) else []
    answers = [_text(item["output"]) for item in items if item.get("type") == "function_call_output"]
    call, text = chat.reply(list(owners), answers)
    output: list[Body] = [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    ]
    if call:
        output.append(
            {
                "id": "fc_1",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_{len(answers)}",
                "name": call.tool,
                "namespace": owners[call.tool] or None,
                "arguments": json.dumps(call.arguments),
            }
        )
    whole: Body = {"id": "resp_1", "object": "response", "created_at": int(time.time()), "model": body["model"]}
    begun = whole | {"status": "in_progress", "output": []}
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 120,
    }
    done = whole | {"status": "completed", "output": output, "usage": usage}
    if not body.get("stream"):
        return JSONResponse(done)
    events: list[Body] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(output):
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": item},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    return _stream(*events, {"type": "response.completed", "response": done})


def _messages(chat: ScriptedChat, body: Body) -> Response:
    tools = [tool["name"] for tool in body.get("tools") or []]
    blocks = [block for each in body["messages"] if isinstance(each["content"], list) for block in each["content"]]
    answers = [_text(block["content"]) for block in blocks if block["type"] == "tool_result"]
    call, text = chat.reply(tools, answers)
    content: list[Body] = [{"type": "text", "text": text}]
    if call:
        content.append(
            {"type": "tool_use", "id": f"toolu_{len(answers)}", "name": call.tool, "input": dict(call.arguments)}
        )
    reason = "tool_use" if call else "end_turn"
    usage = {"input_tokens": 100, "output_tokens": 20}
    whole: Body = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
    if not body.get("stream"):
        return JSONResponse(whole | {"content": content, "stop_reason": reason, "stop_sequence": None})
    begun = whole | {"content": [], "stop_reason": None, "stop_sequence": None}
    events: list[Body] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(content):
        if block["type"] == "text":
            empty, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return _stream(*events, end, {"type": "message_stop"})


WIRES = {"/v1/chat/completions": _completions, "/v1/responses": _responses, "/v1/messages": _messages}


def _text(content: Any) -> str:
    """The text of a content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content or [])


def _stream(*events: Body | str) -> Response:
    lines = []
    for event in events:
        if isinstance(event, dict) and "type" in event:
            lines.append(f"event: {event['type']}")
        lines += [f"data: {event if isinstance(event, str) else json.dumps(event)}", ""]
    return Response("\n".join([*lines, ""]), media_type="text/event-stream")
