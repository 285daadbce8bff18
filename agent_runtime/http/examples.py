"""An example of what each route answers, for the OpenAPI document: `examples.json`, and merges, which are made."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from agent_runtime.apply.applier import Applier
from agent_runtime.errors import ModelUnavailable
from agent_runtime.http.schema import EXAMPLES as SENT
from agent_runtime.shapes import result_to_json
from agent_runtime.types import ApplyRequest


@cache
def examples() -> dict[str, Any]:
    """By method and path."""
    merged = _merged()
    others = json.loads(files("agent_runtime.http").joinpath("examples.json").read_text(encoding="utf-8"))
    return {"POST /apply": merged, "POST /sessions/{session_id}/apply": merged, **others}


def _merged() -> dict[str, Any]:
    """The answer to the first example of a request, as the service gives it."""

    def no_model() -> NoReturn:
        raise ModelUnavailable("no rule merges the example")

    sent = SENT[0]
    result = Applier(no_model).apply(ApplyRequest(sent["original"].encode(), sent["edit"], sent["path"]))
    answer: dict[str, Any] = json.loads(json.dumps(result_to_json(result)))
    return answer
