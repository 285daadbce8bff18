"""What is fuzzed: each target takes bytes and raises if the editor crashes or is wrong about them.

parsing      garbage in every format: read, or an `EditSyntaxError`
merging      a garbage edit on a garbage file: an outcome, checks that can be made, candidates in order
round_trips  two texts built from the bytes, their difference in every format: back to the second, or refused
codec        bytes to text and back are the same bytes
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import get_args

from editor import codec
from editor.errors import CodecError, EditSyntaxError
from editor.formats import parse, parse_files
from editor.merge import merge
from editor.types import FormatName, Merged, Unresolved
from editor.verify import verify
from tests.fuzz.round_trips import WAYS, Failure, make_pair, run_round_trip

FORMATS: tuple[FormatName, ...] = get_args(FormatName)
LANGUAGES = (None, "python", "typescript", "markdown", "json", "css")


class ByteRandom(Random):
    """Random choices that are read off given bytes, and all zero behind their end: a fuzzer can steer them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._at = 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / (1 << 16)


def parsing(data: bytes) -> None:
    """Read the bytes as an edit in the format that the first byte chooses, or that is told from the text."""
    text = data[1:].decode("utf-8", "replace")
    chosen = data[0] % (len(FORMATS) + 1) if data else 0
    try:
        files = parse_files(text, FORMATS[chosen - 1] if chosen else "auto")
    except EditSyntaxError:
        return
    assert files


def merging(data: bytes) -> None:
    """Merge and verify; the first bytes choose format, language, and where the file ends and the edit begins."""
    if len(data) < 4:
        return
    name, language = FORMATS[data[0] % len(FORMATS)], LANGUAGES[data[1] % len(LANGUAGES)]
    cut = 4 + int.from_bytes(data[2:4], "little") % (len(data) - 3)
    original, text = data[4:cut].decode("utf-8", "replace"), data[cut:].decode("utf-8", "replace")
    original = original.replace("\r\n", "\n")
    try:
        edit = parse(text, name)
    except EditSyntaxError:
        return
    outcome = merge(original, edit, language)
    if isinstance(outcome, Merged):
        assert verify(original, outcome.text, edit, language)
    elif isinstance(outcome, Unresolved):
        assert outcome.reason
        scores = [candidate.score for candidate in outcome.candidates]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score <= 1 for score in scores)


def round_trips(data: bytes) -> None:
    """Build two texts from the bytes and send their difference through every format."""
    before, after = make_pair(ByteRandom(data), ())
    for name in WAYS:
        result = run_round_trip(name, before, after)
        assert not isinstance(result, Failure), result


def codec_identity(data: bytes) -> None:
    """Decode and encode without an edit."""
    try:
        source = codec.decode(data)
    except CodecError:
        return
    assert codec.encode(source.text, source, by_model=False) == data


TARGETS: dict[str, Callable[[bytes], None]] = {
    "parsing": parsing,
    "merging": merging,
    "round_trips": round_trips,
    "codec": codec_identity,
}
