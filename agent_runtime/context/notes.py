"""The notes of a session: which edits were said before which message, and which files have too many of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from agent_runtime.context.overlay import LineEdit, after, line_edits, lines_of, note, unsaid
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

REBASE_SHARE = 0.25
"""Of a file's tokens: where its notes take more, the file is written anew (measured: docs/reuse.md, Overlay)."""


@dataclass(frozen=True, slots=True)
class _Note:
    """One edit of a file, said before a message."""

    path: str
    message: int
    edit: LineEdit
    text: str
    num_tokens: int


class Notes:
    """What was said of files behind them. The versions that line numbers refer to are the caller's."""

    def __init__(self, tokenizer: BPETokenizer, rebase_share: float | None = None) -> None:
        self._tokenizer = tokenizer
        self._rebase_share = REBASE_SHARE if rebase_share is None else rebase_share
        self._notes: list[_Note] = []

    @property
    def paths(self) -> frozenset[str]:
        """Files that have notes."""
        return frozenset(each.path for each in self._notes)

    def before(self, message: int) -> tuple[str, ...]:
        """The notes that stand before a message's text."""
        return tuple(each.text for each in self._notes if each.message == message)

    def forget_from(self, message: int) -> None:
        """Those before this message and later ones are not in the prompt any more."""
        self._notes = [each for each in self._notes if each.message < message]

    def drop(self, paths: Collection[str]) -> None:
        """These files are written anew, or are gone."""
        self._notes = [each for each in self._notes if each.path not in paths]

    def over_share(self, shown: Mapping[str, FileTokens], now: Mapping[str, FileTokens]) -> frozenset[str]:
        """Files whose notes, with those that are to come, would take more than the share of their tokens."""
        over = set()
        for path, first in shown.items():
            if path in now and now[path].content_hash != first.content_hash:
                new = sum(each.num_tokens for each in self._new(0, path, first, now[path]))
                said = sum(each.num_tokens for each in self._notes if each.path == path)
                if said + new > self._rebase_share * len(first):
                    over.add(path)
        return frozenset(over)

    def say(self, message: int, shown: Mapping[str, FileTokens], now: Mapping[str, FileTokens]) -> tuple[str, ...]:
        """Put what is not said yet before a message; return the files that stand with notes."""
        for path, first in shown.items():
            if now[path].content_hash != first.content_hash or path in self.paths:
                self._notes += self._new(message, path, first, now[path])
        return tuple(path for path in shown if path in self.paths)

    def _new(self, message: int, path: str, first: FileTokens, now: FileTokens) -> Iterator[_Note]:
        old = lines_of(self._tokenizer.decode(first.token_ids.tolist()))
        wanted = line_edits(old, lines_of(self._tokenizer.decode(now.token_ids.tolist())))
        said: tuple[LineEdit, ...] = ()
        for each in self._notes:
            if each.path == path:
                said = after(said, [each.edit])
        for edit in unsaid(old, said, wanted):
            text = note(path, edit)
            yield _Note(path, message, edit, text, len(self._tokenizer.encode(text)))
