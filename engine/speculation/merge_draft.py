"""The draft of a merge: copies from the merge, and resynchronises where the model departs from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.speculation.copy_plan import TAIL_LEN, TELLING, Course, Partings, Plan, Ranking, Trust
from engine.speculation.expectation import Expectation
from engine.speculation.sources import Sources
from engine.speculation.token_lines import Reindent
from engine.types import Draft

FEWEST_AGREEING = 8
"""So many rows behind a departure must be as drafted before one that is not is believed: the rows directly behind it
follow a token that was not written, and mostly show that."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The model is going to write `token_id` where `drafted` was drafted."""

    drafted: int
    token_id: int


class Foresight:
    """Foreseen departures by place in the sources: what is found behind this departure stands at the same places.

    Of each pass the first row counts that differs behind the departure; those behind it follow two wrong tokens.
    """

    def __init__(self) -> None:
        self._by_place: dict[int, Foreseen] = {}

    def observe(self, places: Sequence[int], draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        """A pass over drafted tokens, copied from these places; `likeliest_ids[i]` is what the model wanted for i.

        What it now wants as drafted, or has written, is foreseen no longer.
        """
        num_shown = min(len(draft_ids), len(likeliest_ids))
        differing = [at for at in range(num_shown) if draft_ids[at] != likeliest_ids[at]]
        num_written = differing[0] + 1 if differing else num_shown
        if self._by_place:
            for at, place in enumerate(places[:num_shown]):
                known = self._by_place.get(place)
                if known is not None and (at < num_written or likeliest_ids[at] != known.token_id):
                    del self._by_place[place]
        if len(differing) > 1 and differing[1] - num_written >= FEWEST_AGREEING:
            at = differing[1]
            self._by_place[places[at]] = Foreseen(draft_ids[at], likeliest_ids[at])

    def first(self, plan: Plan, start: int, end: int) -> int | None:
        """Which of the planned tokens [start, end) is the first that the model is foreseen not to write."""
        if not self._by_place:
            return None
        planned = zip(plan.places[start:end], plan.token_ids[start:end], strict=True)
        for at, (place, token_id) in enumerate(planned, start):
            known = self._by_place.get(place)
            if known is not None and known.drafted == token_id and place not in plan.turned:
                return at
        return None

    def token_at(self, place: int) -> int:
        """What the model is going to write at a place at which it departs."""
        return self._by_place[place].token_id


FEWEST_TRUSTED = 4
"""So many planned tokens must be written before the place that they lead to is taken for where the output is."""


class MergeDraft:
    """Drafts an edited file: all of the editor's best merge, and behind a departure what is likeliest to follow.

    merges: the editor's merges as token ids, best first, each with what ends the answer (line end and closing tag).
    original, update: the file as it was, ended likewise, and the edit as it was sent. prediction: the answer as a
    caller foresees it, another whole file. token_bytes: what each id stands for; with it, blocks are found again and
    drafted that stand at another indentation, and the update's "... existing code ..." is not drafted.

    The draft follows the best merge M. Where the model writes something else, the places are ranked that have the
    output's tail before them: the original O at the other side of a hunk of M, the update U, another merge, a place
    ahead or behind, what the model wrote before. From O copying goes on in M behind the hunk, from U, where a block of
    it ends, in M or O. Nothing found: one token is taken to be substituted. Example, a hunk of M at the wrong place:
    the model writes O's lines there, and M is drafted again behind the hunk; where it then writes U's first new line,
    U's block is drafted, and M behind that (section 6 of the design notes).
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
        self._ranking = Ranking(self._sources)
        self._expectation = Expectation(self._sources)
        self._partings = Partings(self._sources)
        self._foresight = Foresight()
        self._num_seen = 0
        first = self._sources.texts.starts[0]
        self._plan = Plan(self._sources, self._ranking, Course(0, first), [])
        self._plan.begin(first, Trust.FIRST, Reindent(), None)
        self._plan_start = 0  # how long the output was when the plan began
        self._behind_change: int | None = None

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """The likeliest next tokens, none where the sources end; and another merge from where it parts from them."""
        self._follow(output_ids)
        at = self._num_seen - self._plan_start
        self._plan.extend(at + max_tokens)
        self._turn(at, at + max_tokens)
        token_ids = self._plan.token_ids[at : at + max_tokens]
        end = at + len(token_ids)
        return Draft(token_ids, self._expectation.runs(self._plan, at, end), self._partings.branch(self._plan, at, end))

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        """None that cost anything: the rest of a block of rows shows nearly all that can be foreseen."""
        return 0

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        """Foresee where the model will leave this draft again behind the departure."""
        at = self._num_seen - self._plan_start
        planned = slice(at, at + len(draft_ids))
        if num_output == self._num_seen and self._plan.token_ids[planned] == list(draft_ids):
            self._foresight.observe(self._plan.places[planned], draft_ids, likeliest_ids)

    def _follow(self, output_ids: Sequence[int]) -> None:
        """Compare what was written with what was planned, and make a new plan behind each token that differs."""
        while self._num_seen < len(output_ids):
            at = self._num_seen - self._plan_start
            new = list(output_ids[self._num_seen :])
            self._plan.extend(at + len(new))
            num_right = _common_len(self._plan.token_ids[at : at + len(new)], new)
            self._sources.texts.grow(new[: num_right + 1])
            self._num_seen += min(num_right + 1, len(new))
            if num_right < len(new):
                self._depart(at + num_right)

    def _depart(self, num_right: int) -> None:
        """Plan anew behind the last token of the output: `num_right` of the plan were written, and not the next one."""
        left, tail = self._plan, self._sources.texts.output[-TAIL_LEN:]
        expected, course = left.expected(num_right), self._course_behind(num_right)
        self._plan = Plan(self._sources, self._ranking, course, tail)
        self._plan_start = self._num_seen
        self._lead(expected, course, left.reindent_at(num_right))

    def _turn(self, start: int, end: int) -> None:
        """Where the model is foreseen to leave the plan [start, end), plan what it will write, and what follows."""
        plan = self._plan
        while (at := self._foresight.first(plan, start, end)) is not None:
            expected, course, reindent = plan.places[at], self._course_behind(at), plan.reindent_at(at)
            plan.turn(at, self._foresight.token_at(expected), course)
            self._lead(expected, course, reindent)
            plan.extend(end)
            start = at + 1

    def _course_behind(self, num_right: int) -> Course:
        """Where copying has come to when `num_right` tokens of the plan are written, and not the next one."""
        expected, course = self._plan.expected(num_right), self._plan.course_at(num_right)
        if expected is not None and self._sources.texts.text_of(expected) <= self._sources.original:
            self._behind_change = self._sources.line_boundary(expected)
            if num_right >= FEWEST_TRUSTED or not self._plan_start:
                course = replace(course, anchor=expected)
        return course

    def _lead(self, expected: int | None, course: Course, reindent: Reindent) -> None:
        """Lead the plan on behind its tail, whose last token was not the one that was expected."""
        texts, tail = self._sources.texts, self._plan.tail
        match = self._ranking.after_departure(tail, expected, course)
        if match is not None:
            seen = self._sources.indents_before(match.place, tail)
            if expected is not None and texts.text_of(match.place) == texts.text_of(expected):
                seen = reindent.pairs | seen
            trust = Trust.MATCHED if match.length >= TELLING else Trust.WEAK
            self._plan.begin(match.place, trust, Reindent(seen), self._behind_change)
        elif expected is not None and expected < texts.end_of(expected):
            self._plan.begin(expected + 1, Trust.GUESSED, reindent, self._behind_change)


def _common_len(planned: Sequence[int], written: Sequence[int]) -> int:
    if planned == written:
        return len(written)
    pairs = zip(planned, written, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(planned), len(written)))
