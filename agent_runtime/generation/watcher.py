"""Who follows the model's work: told of phases, passes, texts and answers while they come about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agent_runtime.errors import Cancelled, HunkError
from agent_runtime.types import AnswerTrace


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one token, or of several where one alone is not text, and how the model came by it."""

    text: str
    origin: Literal["copied", "generated"]


class Watcher:
    """Follows the model's work on one apply, which may ask it several times; this one cares for nothing."""

    wants_text = False
    """Whether `wrote_pieces` and `answered` are called: it takes a little time to make text of tokens."""

    @property
    def is_left(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return False

    @property
    def ends_with(self) -> HunkError:
        """What the work for it ends with once `is_left`."""
        return Cancelled("whoever asked has left")

    def began(self, stop: Callable[[], None]) -> None:
        """The model was asked; calling `stop`, from any thread, ends the apply with Cancelled."""

    def entered(self, phase: str, path: str = "") -> None:
        """Another phase begins, named as in `timings` without its `_ms`: parse, merge, prefill, decode, verify, ...

        `path` is the file's where several are worked on at once.
        """

    def wrote(self, num_tokens: int) -> None:
        """Another forward pass is over; so many tokens are written so far."""

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """A pass wrote these tokens of the answer for one region (from 0) of the file; `path` as above.

        Together they are the answer, without its closing tag. Behind the phase `prompt` an answer begins anew.
        """

    def answered(self, trace: AnswerTrace) -> None:
        """The model has answered one question."""
