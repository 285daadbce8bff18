"""An example of what each route answers in JSON, for the OpenAPI document."""

from __future__ import annotations

import json
from functools import cache
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
    return {"POST /apply": merged, "POST /sessions/{session_id}/apply": merged, **_OTHERS}


def _merged() -> dict[str, Any]:
    """The answer to the first example of a request, as the service gives it."""

    def no_model() -> NoReturn:
        raise ModelUnavailable("no rule merges the example")

    sent = SENT[0]
    result = Applier(no_model).apply(ApplyRequest(sent["original"].encode(), sent["edit"], sent["path"]))
    answer: dict[str, Any] = json.loads(json.dumps(result_to_json(result)))
    return answer


_OTHERS: dict[str, Any] = {
    "GET /healthz": {"status": "ok"},
    "GET /readyz": {"status": "ready", "model": "qwen2.5-coder-1.5b"},
    "GET /stats": {
        "model": {"name": "qwen2.5-coder-1.5b", "ready": True},
        "uptime_s": 0.901,
        "queue": {"running": 0, "waiting": 0},
        "cache": None,
        "window": {
            "seconds": 300.0,
            "requests": 0,
            "outcomes": {},
            "prompt": 0,
            "cached": 0,
            "reused_approximate": 0,
            "recomputed": 0,
            "completion": 0,
            "forwards": 0,
            "prefix_hit_rate": None,
            "approximate_share": None,
            "tokens_per_forward": None,
            "total_ms": None,
            "first_token_ms": None,
        },
    },
    "GET /workspaces": {
        "workspaces": [
            {
                "name": "default",
                "root": "/srv/project",
                "state": "idle",
                "detail": "",
                "files": None,
                "tokens": None,
                "skipped": None,
                "version": None,
                "indexed": None,
            }
        ]
    },
    "POST /workspaces": {
        "name": "shop",
        "root": "/srv/shop",
        "state": "idle",
        "detail": "",
        "files": None,
        "tokens": None,
        "skipped": None,
        "version": None,
        "indexed": None,
    },
    "GET /workspaces/{name}": {
        "name": "default",
        "root": "/srv/project",
        "state": "idle",
        "detail": "",
        "files": None,
        "tokens": None,
        "skipped": None,
        "version": None,
        "indexed": None,
    },
    "GET /workspaces/{name}/files": {
        "files": [{"path": "a.py", "size": 780}, {"path": "b.py", "size": 43}],
        "next": None,
    },
    "GET /workspaces/{name}/files/{path}": {
        "path": "b.py",
        "text": "LIMIT = 30\n\n\ndef limit():\n    return LIMIT\n",
        "encoding": "utf-8",
        "sha256": "1cfa775d946c1e9b82458cb5dd8c64ff69bb69c9f0f5b1acc4adc6619bac0330",
        "size": 43,
    },
    "GET /workspaces/{name}/snapshot": {
        "version": "02081570-1",
        "num_files": 2,
        "num_tokens": 334,
        "files": [
            {
                "path": "a.py",
                "sha256": "5b7e7e0e372734c7d216e33820dfebff7a90165e3ba749a66f986122bad5cd51",
                "tokens": 319,
                "spans": None,
            },
            {
                "path": "b.py",
                "sha256": "1cfa775d946c1e9b82458cb5dd8c64ff69bb69c9f0f5b1acc4adc6619bac0330",
                "tokens": 15,
                "spans": None,
            },
        ],
        "next": None,
    },
    "GET /workspaces/{name}/changes": {"since": "02081570-1", "version": "02081570-1", "changes": []},
    "POST /sessions": {
        "id": "fx3VAuHZQlwAdwpPO15AWw",
        "workspace": "default",
        "reuse": "exact",
        "files": [],
        "messages": [],
        "usage": {
            "prompt": 0,
            "cached": 0,
            "reused_approximate": 0,
            "recomputed": 0,
            "completion": 0,
            "drafted": 0,
            "accepted": 0,
            "rejected": 0,
            "forwards": 0,
            "prefill_forwards": 0,
            "near_ties": 0,
            "prefix_hit_rate": 0.0,
            "by_source": {},
            "recomputed_by": {},
        },
        "turns": [],
        "prompt_tokens": 0,
    },
    "POST /sessions/{session_id}/read": {
        "files": [
            {
                "path": "b.py",
                "state": "new",
                "sha256": "1cfa775d946c1e9b82458cb5dd8c64ff69bb69c9f0f5b1acc4adc6619bac0330",
                "size": 43,
                "encoding": "utf-8",
                "text": None,
            }
        ]
    },
    "POST /sessions/{session_id}/ask": {
        "text": "A limit of 30",
        "finish_reason": "stop",
        "usage": {
            "prompt": 87,
            "cached": 0,
            "reused_approximate": 0,
            "recomputed": 87,
            "completion": 4,
            "drafted": 0,
            "accepted": 0,
            "rejected": 0,
            "forwards": 4,
            "prefill_forwards": 1,
            "near_ties": 0,
            "prefix_hit_rate": 0.0,
            "by_source": {},
            "recomputed_by": {"changed": 87},
        },
        "timings": {
            "read_ms": 0.203,
            "layout_ms": 1.371,
            "prompt_ms": 10.65,
            "prefill_ms": 249.567,
            "decode_ms": 75.649,
            "total_ms": 337.651,
        },
        "files": [
            {
                "path": "b.py",
                "state": "new",
                "sha256": "1cfa775d946c1e9b82458cb5dd8c64ff69bb69c9f0f5b1acc4adc6619bac0330",
            }
        ],
        "noted": [],
    },
    "GET /sessions/{session_id}": {
        "id": "fx3VAuHZQlwAdwpPO15AWw",
        "workspace": "default",
        "reuse": "exact",
        "files": [
            {
                "path": "b.py",
                "state": "same",
                "sha256": "1cfa775d946c1e9b82458cb5dd8c64ff69bb69c9f0f5b1acc4adc6619bac0330",
            }
        ],
        "messages": [{"role": "user", "text": "What is it?"}, {"role": "assistant", "text": "A limit of 30"}],
        "usage": {
            "prompt": 87,
            "cached": 0,
            "reused_approximate": 0,
            "recomputed": 87,
            "completion": 4,
            "drafted": 0,
            "accepted": 0,
            "rejected": 0,
            "forwards": 4,
            "prefill_forwards": 1,
            "near_ties": 0,
            "prefix_hit_rate": 0.0,
            "by_source": {},
            "recomputed_by": {"changed": 87},
        },
        "turns": [
            {
                "prompt": 87,
                "cached": 0,
                "reused_approximate": 0,
                "recomputed": 87,
                "completion": 4,
                "drafted": 0,
                "accepted": 0,
                "rejected": 0,
                "forwards": 4,
                "prefill_forwards": 1,
                "near_ties": 0,
                "prefix_hit_rate": 0.0,
                "by_source": {},
                "recomputed_by": {"changed": 87},
            }
        ],
        "prompt_tokens": 87,
    },
    "GET /v1/models": {
        "object": "list",
        "data": [
            {"id": "qwen2.5-coder-1.5b", "object": "model", "created": 1795337317, "owned_by": "hunk"},
            {"id": "hunk", "object": "model", "created": 1795337317, "owned_by": "hunk"},
        ],
    },
    "GET /v1/models/{name}": {"id": "hunk", "object": "model", "created": 1795337317, "owned_by": "hunk"},
    "POST /v1/chat/completions": {
        "id": "chatcmpl-68a36e5d496747878c4247d4009ba9c1",
        "object": "chat.completion",
        "created": 1795337318,
        "model": "qwen2.5-coder-1.5b",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello! How can", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 31,
            "completion_tokens": 4,
            "total_tokens": 35,
            "prompt_tokens_details": {"cached_tokens": 6},
            "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        },
        "hunk": {
            "usage": {
                "prompt": 31,
                "cached": 6,
                "reused_approximate": 0,
                "recomputed": 25,
                "completion": 4,
                "drafted": 2,
                "accepted": 0,
                "rejected": 2,
                "forwards": 4,
                "prefill_forwards": 1,
                "near_ties": 0,
                "prefix_hit_rate": 0.1935483870967742,
                "by_source": {"update": {"drafted": 2, "accepted": 0, "rejected": 2}},
                "recomputed_by": {"changed": 25},
            },
            "timings": {"prompt_ms": 0.884, "prefill_ms": 69.593, "decode_ms": 103.885, "total_ms": 174.419},
        },
    },
    "POST /v1/code/apply": {
        "mergedCode": "a = 1\nb = 2\n",
        "hunk": {
            "status": "merged",
            "path": "",
            "method": "model",
            "rung": "model",
            "candidates": 2,
            "certainty": "scored",
            "checks": [{"name": "marker_leak", "ok": True, "detail": "no placeholder"}],
            "sha256_before": "cb78bd8a17f7b751fe0d4663366dcbc257204033ef7ddd64b1f2969573b5b2e2",
            "sha256_after": "fe9c2dadb34bee2ae03fc8fe25e26c64ce2f572a53a127db5d6e73899b64fc11",
            "diff": "--- a/file\n+++ b/file\n@@ -1,1 +1,2 @@\n a = 1\n+b = 2\n",
            "usage": {
                "prompt": 62,
                "cached": 4,
                "reused_approximate": 0,
                "recomputed": 58,
                "completion": 10,
                "drafted": 0,
                "accepted": 0,
                "rejected": 0,
                "forwards": 1,
                "prefill_forwards": 1,
                "near_ties": 0,
                "prefix_hit_rate": 0.06451612903225806,
                "by_source": {},
                "recomputed_by": {"changed": 58},
            },
            "timings": {
                "parse_ms": 0.15,
                "merge_ms": 0.596,
                "scope_ms": 0.048,
                "prompt_ms": 0.915,
                "score_ms": 142.017,
                "verify_ms": 0.348,
                "total_ms": 146.816,
            },
        },
    },
}
