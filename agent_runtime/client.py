"""Sends edits to a running service."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx

from agent_runtime.errors import HunkError, NoConnection
from agent_runtime.shapes import fault_of, result_from_json
from agent_runtime.types import ApplyRequest, ApplyResult

TIMEOUT = httpx.Timeout(connect=5.0, read=None, write=30.0, pool=5.0)
"""Seconds. Reading has no limit: a model may take minutes over a long file, and Ctrl-C ends the wait."""


class Client:
    """One service at `base_url`, such as http://127.0.0.1:8000."""

    def __init__(self, base_url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._base_url = base_url
        self._http = httpx.Client(base_url=base_url, timeout=TIMEOUT, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def apply(self, request: ApplyRequest, *, model: str | None = None) -> ApplyResult:
        """Apply one edit; the file's text travels with it. Raises NoConnection, or what the service refused with."""
        body: dict[str, Any] = {
            "original": request.original.decode("utf-8"),
            "edit": request.edit,
            "path": request.path,
            "format": request.format,
            "instruction": request.instruction,
            "mode": request.mode,
            "temperature": request.temperature,
            "seed": request.seed,
            "max_tokens": request.max_tokens,
            "draft": request.draft,
            "model": model,
        }
        return result_from_json(self._post("/apply", body))

    def is_ready(self) -> bool:
        """Whether the service has loaded its model; raises NoConnection where nothing answers."""
        return self._request("GET", "/readyz").status_code == 200

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._request("POST", path, json=body)
        try:
            answer = response.json()
        except ValueError as error:
            raise HunkError(f"{self._base_url} answered {response.status_code} without JSON; is it Hunk?") from error
        if response.is_success:
            return answer
        raise fault_of(answer if isinstance(answer, dict) else {})

    def _request(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **more)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise NoConnection(f"no answer from {self._base_url} ({error}); is `hunk serve` running there?") from error
