"""Files of a session: where they come from, and what has changed since they were last read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Literal

from agent_runtime.apply.result import decode
from agent_runtime.errors import BadFile, BadRequest, OutsideRoot, Stale, TooLarge
from agent_runtime.files import MAX_FILE_BYTES, check_size
from agent_runtime.workspace.index import TokenIndex
from agent_runtime.workspace.workspace import Workspace
from repo_cache.types import FileTokens

MAX_SESSION_FILES = 512
MAX_PATH = 4096
MAX_BYTES = 2 << 20
"""Limit of all files of a session together: about 600,000 tokens, more than any context here holds."""


FileState = Literal["new", "changed", "same", "gone"]
"""A file compared with its last version in the session. `gone`: it can no longer be read, and is not shown."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was put into the session.

    `sha256` and `size` are those of its bytes. `text` is the whole text in `encoding`, with its BOM and line endings;
    None unless it was asked for.
    """

    path: str
    state: FileState
    sha256: str
    size: int
    encoding: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file of the session compared with what the last question showed; `sha256` is "" if it is gone."""

    path: str
    state: FileState
    sha256: str


@dataclass(frozen=True, slots=True)
class _Version:
    """The hash and the size of a file's bytes."""

    sha256: str
    size: int

    @classmethod
    def from_bytes(cls, data: bytes) -> _Version:
        return cls(sha256(data).hexdigest(), len(data))


class SessionFiles:
    """The files that the model is shown: workspace files in their current version, and texts that a client put in."""

    def __init__(self, workspace: Workspace | None, index: TokenIndex | None) -> None:
        """`index` may hold the tokens of the workspace's files."""
        self._workspace, self._index = workspace, index
        self._own: dict[str, bytes] = {}
        """Texts that a client put in, by path."""
        self._last: dict[str, _Version] = {}
        """All files of the session, as they were last read or shown."""
        self._shown: dict[str, str] = {}
        """By path, the hash of what the model was shown last; "" for a file that was gone."""

    def read(
        self, paths: Iterable[str], texts: Mapping[str, str], *, forget: Iterable[str] = (), with_text: bool = False
    ) -> list[ReadFile]:
        """Remove the files to `forget`, and add workspace files and texts: all or none.

        A file to forget that is not in the session is ignored. Raises what `Workspace.read` raises, BadFile if a file
        is not text, TooLarge if they exceed the limits.
        """
        given = {_normalize_path(path): _encode_text(text, path) for path, text in texts.items()}
        out = set(map(_normalize_path, forget))
        files = {path: version for path, version in self._last.items() if path not in out}
        answer: dict[str, ReadFile] = {}
        for path in (*given, *map(_normalize_path, paths)):
            if path in answer:
                continue
            data = given[path] if path in given else self._read_workspace(path)
            files[path] = _Version.from_bytes(data)
            _check_size(files)  # after each file, so that no request reads far more than is kept
            answer[path] = self._describe(path, data, with_text=with_text)
        self._last = files
        self._own = {path: own for path, own in self._own.items() if path not in out | answer.keys()} | given
        return list(answer.values())

    def read_data(self, path: str) -> bytes:
        """Return a file's current bytes, in the session or not; raises what `Workspace.read` raises."""
        own = self._own.get(_normalize_path(path))
        return own if own is not None else self._read_workspace(path)

    def read_data_if_there(self, path: str) -> bytes | None:
        """Return a file's current bytes, None if there is no such file; raises what `Workspace.read` raises."""
        own = self._own.get(_normalize_path(path))
        if own is not None or self._workspace is None:
            return own
        return self._workspace.read_if_there(path)

    def find_base(self, path: str, digest: str | None, current: bytes) -> bytes | None:
        """Return the version that an edit was made for, as `FileVersions.find_base`; no other one of an own text."""
        now = sha256(current).hexdigest()
        if digest in (None, now):
            return None
        if self._workspace is None or self.is_own(path):
            raise Stale(f"{path} is not what the edit was made for; put its text in again", current_sha256=now)
        return self._workspace.versions.find_base(_normalize_path(path), digest, current)

    def is_own(self, path: str) -> bool:
        """Whether the path is that of a text that a client put in, or would be."""
        return self._workspace is None or _normalize_path(path) in self._own

    def put(self, path: str, data: bytes | None) -> None:
        """Replace a text that a client put in; None removes it."""
        path = _normalize_path(path)
        if data is None:
            self._own.pop(path, None)
            self._last.pop(path, None)
        else:
            self._own[path] = data
            self._last.setdefault(path, _Version("", len(data)))

    def refresh(self) -> tuple[dict[str, FileTokens | str], tuple[SeenFile, ...]]:
        """Read all files again; return what the next turn shows, and which files are new, changed or gone.

        A file is returned as tokens if the index has them, else as text. A file that cannot be read is left out.
        """
        now: dict[str, FileTokens | str] = {}
        seen: list[SeenFile] = []
        for path in self._last:
            before = self._shown.get(path)
            try:
                data = self.read_data(path)
                text = decode(data, path).text
            except BadFile:
                self._last[path] = _Version("", 0)
                if before != "":
                    seen.append(SeenFile(path, "gone", ""))
                continue
            self._last[path] = version = _Version.from_bytes(data)
            _check_size(self._last)
            now[path] = self._find_tokens(path, text) or text
            if before != version.sha256:
                seen.append(SeenFile(path, _compare_hashes(version.sha256, before or ""), version.sha256))
        return now, tuple(seen)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files as they were last read."""
        return sum(version.size for version in self._last.values())

    def mark_shown(self) -> None:
        """Record that the model was shown what `refresh` returned."""
        self._shown = {path: version.sha256 for path, version in self._last.items()}

    def list_states(self) -> tuple[SeenFile, ...]:
        """Return each file's state: as it was last read, compared with what the model was shown last."""
        shown = self._shown
        return tuple(
            SeenFile(path, _compare_hashes(version.sha256, shown.get(path, "")), version.sha256)
            for path, version in dict(self._last).items()
        )

    def _describe(self, path: str, data: bytes, *, with_text: bool) -> ReadFile:
        encoding, now, last = decode(data, path).encoding, _Version.from_bytes(data), self._last.get(path)
        state = _compare_hashes(now.sha256, last.sha256 if last is not None else "")
        return ReadFile(path, state, now.sha256, now.size, encoding, data.decode(encoding) if with_text else None)

    def _find_tokens(self, path: str, text: str) -> FileTokens | None:
        if self._index is None or self._workspace is None or path in self._own:
            return None
        return self._index.find_tokens(path, text, str(self._workspace.root))

    def _read_workspace(self, path: str) -> bytes:
        if self._workspace is None:
            raise OutsideRoot(
                f"{path} cannot be read: the session has no workspace; give the file's text, or begin one with a "
                "workspace"
            )
        return self._workspace.read_and_keep(path)


def _check_size(files: Mapping[str, _Version]) -> None:
    if len(files) > MAX_SESSION_FILES:
        raise TooLarge(f"{len(files)} files are over the {MAX_SESSION_FILES} that a session holds; have it forget some")
    num_bytes = sum(version.size for version in files.values())
    if num_bytes > MAX_BYTES:
        raise TooLarge(
            f"the session's {len(files)} files have {num_bytes / 1e6:.1f} MB; the limit is {MAX_BYTES / 1e6:.1f} MB: "
            "have it forget some"
        )


def _compare_hashes(now: str, before: str) -> FileState:
    """Compare two hashes; "" stands for a file that is not there."""
    if not now:
        return "gone"
    return "new" if not before else "same" if now == before else "changed"


def _normalize_path(path: str) -> str:
    """Turn `./a.py` into `a.py`."""
    return str(PurePosixPath(path)) if path else path


def _encode_text(text: str, path: str) -> bytes:
    if not 0 < len(path) <= MAX_PATH:
        raise BadRequest(f"a text needs a path of 1 to {MAX_PATH} characters that it stands for", field="texts")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{path} holds a lone surrogate at character {error.start}", field="texts") from None
    check_size(len(data), path, MAX_FILE_BYTES)
    return data
