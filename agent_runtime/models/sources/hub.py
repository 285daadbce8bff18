"""The Hugging Face hub, over one HTTP stream that goes on where the partial file ends.

`huggingface_hub.hf_hub_download` keeps its own unfinished file, in its own cache layout and, over Xet, in chunks that
are no prefix of the file: neither the registry nor a later pull of ours could go on from it. So the library says where
the file is (`HF_ENDPOINT`), who we are (`HF_TOKEN`, a login) and whether it may be asked (`HF_HUB_OFFLINE`), and httpx
brings the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from agent_runtime.models.catalogue import CatalogueEntry
from agent_runtime.models.partial import Partial
from agent_runtime.models.sources.base import SourceError

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""Seconds. Short to connect: a machine that cannot reach the hub should go on to the next source."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """The hub at `endpoint`, or at huggingface_hub's own."""

    endpoint: str | None = None
    name: str = "hub"

    def fetch(self, entry: CatalogueEntry, partial: Partial) -> None:
        """As `Source.fetch` says."""
        if entry.hub_repo is None:
            raise SourceError(f"does not carry {entry.name}")
        url, headers = self._locate(entry.hub_repo, entry.file_name)
        # `identity`: a compressed answer could not be continued at a byte of the file.
        headers |= {"Range": f"bytes={partial.size}-", "Accept-Encoding": "identity"}
        with _translated(), httpx.stream("GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True) as answer:
            num_skip = _check(answer, partial)
            with partial.progress.task(f"{entry.name} (hub)", partial.total_bytes):
                partial.progress.at(partial.size)
                for chunk in answer.iter_raw():
                    partial.write(chunk[num_skip:])
                    num_skip = max(0, num_skip - len(chunk))
        if partial.missing_bytes:
            raise SourceError(f"the connection ended {partial.missing_bytes:,} bytes too early")

    def _locate(self, repo: str, file_name: str) -> tuple[str, dict[str, str]]:
        # Imported late: a fifth of a second that only a pull from the hub should pay, not every `hunk` command.
        from huggingface_hub import constants, get_token, hf_hub_url

        if constants.HF_HUB_OFFLINE:
            raise SourceError("HF_HUB_OFFLINE is set")
        token = get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return hf_hub_url(repo, file_name, endpoint=self.endpoint), headers


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise SourceError(f"cannot connect to {error.request.url.host} ({_reason(error)})") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceError(f"the connection broke ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check(answer: httpx.Response, partial: Partial) -> int:
    """How many bytes of the answer's body are here already; raises SourceError if it is not the file we want."""
    status = answer.status_code
    if status not in (200, 206):
        raise SourceError(f"answered {status} {answer.reason_phrase} for {answer.request.url.path}")
    length = int(answer.headers.get("Content-Length", -1))
    start = partial.size if status == 206 else 0
    # A login page or a moved file must not reach the partial file: it would only show when everything is hashed.
    if length != partial.total_bytes - start:
        raise SourceError(f"has another file: {length + start:,} bytes, not {partial.total_bytes:,}")
    return partial.size - start
