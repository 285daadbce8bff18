"""The draft of a merge: copies from the merge, and finds the place to continue after a rejection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.speculation.acceptance import DraftPrior
from engine.speculation.copy_plan import TAIL_LEN, TELLING, CopyCursor, CopyPlan, MatchQuality, Resync
from engine.speculation.sources import Sources
from engine.speculation.token_lines import Reindent
from engine.types import Draft, count_common_prefix

FEWEST_TRUSTED = 4
"""This many planned tokens must be written before their place is trusted as the output's place."""


class MergeDraft:
    """Drafts an edited file: all of the editor's best merge, and after a rejection the most likely continuation.

    merges: the editor's merges as token ids, best first, each with what ends the answer (line end and closing tag).
    original, update: the file before the edit, ended likewise, and the edit as it was sent. prediction: the answer as a
    caller predicts it, another whole file. token_bytes: the bytes of each id; with it, blocks with another indentation
    are found and drafted, and the update's "... existing code ..." is not drafted.

    The draft follows the best merge M. Where the model writes something else, the places are ranked that have the
    output's tail before them: the original O at the other side of a hunk of M, the update U, another merge, a place
    ahead or back, and what the model wrote before. From O, copying continues in M after the hunk; from U, at the end of
    a block, in M or O. If nothing is found, one token is assumed to be substituted. Example: a hunk of M is at the
    wrong place. The model writes O's lines there, and M is drafted again after the hunk; when it then writes U's first
    new line, U's block is drafted, and M after that.
    """

    def __init__(
        self,
        *,
        merges: Sequence[Sequence[int]],
        original: Sequence[int],
        update: Sequence[int] = (),
        prediction: Sequence[int] | None = None,
        token_bytes: Sequence[bytes] | None = None,
    ) -> None:
        self._sources = Sources(merges, prediction, original, update, token_bytes)
        self._resync = Resync(self._sources)
        self._prior = DraftPrior(self._sources)
        self._num_seen = 0
        first = self._sources.texts.starts[0]
        self._plan = CopyPlan(self._sources, self._resync, CopyCursor(0, first), [])
        self._plan.start_copy(first, MatchQuality.FIRST, Reindent(), None)
        self._plan_start = 0  # how long the output was when the plan began
        self._after_change: int | None = None

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the most likely next tokens, none where the sources end."""
        self._follow(output_ids)
        at = self._num_seen - self._plan_start
        self._plan.extend(at + max_tokens)
        token_ids = self._plan.token_ids[at : at + max_tokens]
        return Draft(token_ids, self._prior.label_runs(self._plan, at, at + len(token_ids)))

    def _follow(self, output_ids: Sequence[int]) -> None:
        """Compare what was written with the plan, and plan anew after each token that differs."""
        while self._num_seen < len(output_ids):
            at = self._num_seen - self._plan_start
            new = list(output_ids[self._num_seen :])
            self._plan.extend(at + len(new))
            num_right = count_common_prefix(self._plan.token_ids[at : at + len(new)], new)
            self._sources.texts.grow(new[: num_right + 1])
            self._num_seen += min(num_right + 1, len(new))
            if num_right < len(new):
                self._replan(at + num_right)

    def _replan(self, num_right: int) -> None:
        """Plan anew after the last token of the output: `num_right` tokens of the plan were written, and the next one
        differs.
        """
        left, tail = self._plan, self._sources.texts.output[-TAIL_LEN:]
        expected, cursor = left.find_expected(num_right), self._find_cursor(num_right)
        self._plan = CopyPlan(self._sources, self._resync, cursor, tail)
        self._plan_start = self._num_seen
        self._copy_after_rejection(expected, cursor, left.get_reindent(num_right))

    def _find_cursor(self, num_right: int) -> CopyCursor:
        """Return the cursor when `num_right` tokens of the plan are written and the next one is not."""
        expected, cursor = self._plan.find_expected(num_right), self._plan.get_cursor(num_right)
        if expected is not None and self._sources.texts.text_of(expected) <= self._sources.original:
            self._after_change = self._sources.find_line_boundary(expected)
            if num_right >= FEWEST_TRUSTED or not self._plan_start:
                cursor = replace(cursor, anchor=expected)
        return cursor

    def _copy_after_rejection(self, expected: int | None, cursor: CopyCursor, reindent: Reindent) -> None:
        """Continue the plan after its tail, whose last token differs from the expected one."""
        texts, tail = self._sources.texts, self._plan.tail
        match = self._resync.find_resync(tail, expected, cursor)
        if match is not None:
            seen = self._sources.compare_indents(match.place, tail)
            if expected is not None and texts.text_of(match.place) == texts.text_of(expected):
                seen = reindent.pairs | seen
            quality = MatchQuality.MATCHED if match.length >= TELLING else MatchQuality.WEAK
            self._plan.start_copy(match.place, quality, Reindent(seen), self._after_change)
        elif expected is not None and expected < texts.end_of(expected):
            self._plan.start_copy(expected + 1, MatchQuality.GUESSED, reindent, self._after_change)
