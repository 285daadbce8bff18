"""What a body below /v1 asks for, as the call that does it: a chat with the model, or an edit of one file."""

from __future__ import annotations

import re
import secrets
from typing import Any

from agent_runtime.chat import ChatRequest
from agent_runtime.errors import BadRequest, EditRefused, UnknownModel, Unsupported
from agent_runtime.files.limits import MAX_EDIT_BYTES, MAX_FILE_BYTES, check_size
from agent_runtime.http.openai.apply_message import ApplyMessage, read_apply_message
from agent_runtime.http.openai.bodies import OWN_MODEL, ApplyOptions, ChatBody, CodeApplyBody
from agent_runtime.http.openai.naming import name_of
from agent_runtime.http.schema import text_of
from agent_runtime.types import ApplyRequest, ApplyResult
from editor.memory import memory_of

APPLY_MODELS = ("morph-v3-fast", "morph-v3-large", "auto")
"""What clients of hosted apply services call the model of an edit; further names begin as in `APPLY_PREFIXES`."""

APPLY_PREFIXES = ("morph-", "relace-")

GREEDY = 0.0
"""The temperature where none is given: an answer is as right as the model can make it, and the same every time."""


def check_model(asked: str, own: str, *, for_edit: bool) -> None:
    """Raise UnknownModel where the service does not run this model; BadRequest where it is one for edits only."""
    if asked in (own, OWN_MODEL):
        return
    if asked in APPLY_MODELS or asked.startswith(APPLY_PREFIXES):
        if for_edit:
            return
        raise BadRequest(
            f"the model {asked!r} merges edits: send one user message "
            f"<instruction>...</instruction><code>...</code><update>...</update>, or ask {OWN_MODEL!r}",
            field="model",
        )
    raise UnknownModel(
        f"there is no model {asked!r} here; this service runs {own!r}, which is also called {OWN_MODEL!r}"
    )


def edit_in(body: ChatBody) -> ApplyMessage | None:
    """The edit that the only user message holds; None where the body is a chat.

    System messages beside it are passed over: what to do with the edit is known.
    """
    messages = [message.chat_message() for message in body.messages]
    others = [message for message in messages if message.role != "system"]
    if len(others) != 1 or others[0].role != "user":
        return None
    return read_apply_message(others[0].text)


def chat_request(body: ChatBody, salt: str) -> ChatRequest:
    """The chat that a body asks for; raises BadRequest."""
    if body.hunk is not None:
        raise BadRequest("'hunk' is of an edit, and the messages hold none", field="hunk")
    return ChatRequest(
        prompt=tuple(message.chat_message() for message in body.messages),
        max_tokens=body.most_tokens,
        temperature=GREEDY if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_bias(body.logit_bias or {}),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        stop=_stop(body.stop),
        prediction=text_of(body.prediction),
        salt=salt,
    )


def apply_request(body: ChatBody, edit: ApplyMessage, salt: str) -> ApplyRequest:
    """The edit that a body asks for; raises Unsupported where it says how to write what is no chat."""
    for name in ("stop", "logprobs", "logit_bias"):
        if getattr(body, name):
            raise Unsupported(f"{name!r} is of chats, and the message holds an edit", field=name)
    return _request(
        edit,
        body.hunk,
        salt,
        max_tokens=body.most_tokens,
        temperature=GREEDY if body.temperature is None else body.temperature,
        seed=body.seed or 0,
        prediction=text_of(body.prediction),
    )


def code_apply_request(body: CodeApplyBody, salt: str) -> ApplyRequest:
    """The edit that a body of `/v1/code/apply` holds."""
    return _request(ApplyMessage(body.initial_code, body.edit_snippet, body.instructions), body.hunk, salt)


def check_merged(result: ApplyResult) -> None:
    """Raise EditRefused where a check rejects the merge: the answer is a file that can be written, or none."""
    if result.status == "rejected":
        failed = "; ".join(f"{check.name}: {check.detail}" for check in result.file.checks if not check.ok)
        raise EditRefused(f"the merge was made, but is rejected by a check ({failed}); POST /apply shows it")


def _request(edit: ApplyMessage, options: ApplyOptions | None, salt: str, **more: Any) -> ApplyRequest:
    original = edit.code.encode()
    check_size(len(original), "the file", MAX_FILE_BYTES)
    check_size(len(edit.update), "the edit", MAX_EDIT_BYTES)
    given = {"path": ""} if options is None else options.model_dump()
    with memory_of(salt):
        given["path"] = given["path"] or name_of(edit.code)
    return ApplyRequest(original, edit.update, instruction=edit.instruction, salt=salt, **given, **more)


def _bias(by_name: dict[str, float]) -> dict[int, float]:
    if not all(re.fullmatch("[0-9]{1,9}", name) for name in by_name):
        raise BadRequest("'logit_bias' maps ids of the model's tokens to numbers", field="logit_bias")
    return {int(name): bias for name, bias in by_name.items()}


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
