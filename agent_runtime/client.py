"""Sends edits to a running service."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx

from agent_runtime.errors import HunkError, NoConnection
from agent_runtime.outcome import decode
from agent_runtime.patching import edits_of, files_named
from agent_runtime.shapes import fault_of, result_from_json
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader

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
        body = {"edit": request.edit, "path": request.path, **_text(request.original, request.path)}
        body |= {"prediction": request.prediction} if request.prediction is not None else {}
        return result_from_json(self._post("/apply", body | request.sent_options() | {"model": model}))

    def apply_patch(self, request: PatchRequest, read: Reader, *, model: str | None = None) -> ApplyResult:
        """Apply an edit to the files that it names, all or none; their texts travel with it. Raises as `apply` does."""
        texts = [{"path": path, **_text(data, path)} for path, data in files_named(edits_of(request), read).items()]
        body: dict[str, Any] = {"edit": request.edit, "files": texts}
        return result_from_json(self._post("/apply", body | request.sent_options() | {"model": model}))

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


def _text(data: bytes, path: str) -> dict[str, str]:
    """A file as JSON can hold it: the whole text, BOM and line endings included, and its encoding."""
    encoding = decode(data, path).encoding
    return {"original": data.decode(encoding), "encoding": encoding}
