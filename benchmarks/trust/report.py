"""Count the planted corruptions by class, format and style, with 95 % intervals, and render the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from benchmarks.harness import group_by, render_rows, render_table
from benchmarks.scoring import Counts, compute_interval
from benchmarks.trust.corruptions import OUTSIDE, WITHIN
from benchmarks.trust.planted import REPAIRED, RIGHT, Row

_PLACES = {"outside": OUTSIDE, "within": WITHIN}
_GROUPS: dict[str, Callable[[Row], str]] = {
    "format": lambda row: row.format,
    "source": lambda row: row.source,
    "style": lambda row: f"{row.source}/{row.style}",
}


def count_rows(rows: Iterable[Row], accepted: Set[tuple[str, ...]]) -> Counts:
    """Return the counts of one block of rows.

    planted: texts with a corruption that is no legal reading; detected: those of them that came to no merge either way;
    planted_in_accepted, detected_in_accepted: the same of right results that pass (`accepted`, by `Row.key`), as a
    check that refuses the right result detects everything;
    legal_other: the others, legal_merged those of them that were merged; correct, correct_refused: right results, and
    those refused for more than blank lines; repaired_exact: planted answers that came back as the right file;
    repaired_wrong: planted or right answers that came back as a file that is neither.
    """
    found = list(rows)
    planted = [row for row in found if row.name != RIGHT and not row.legal]
    legal = [row for row in found if row.legal]
    right = [row for row in found if row.name == RIGHT]
    detected = sum(row.is_detected for row in planted)
    in_accepted = [row for row in planted if row.key in accepted]
    refused = sum(row.is_refused for row in right)
    return {
        "planted": len(planted),
        "detected": detected,
        "detected_share": _compute_share(detected, len(planted)),
        "detected_interval": compute_interval(detected, len(planted)),
        "planted_in_accepted": len(in_accepted),
        "detected_in_accepted": sum(row.is_detected for row in in_accepted),
        "passed_as_answer": sum(row.as_answer not in ("rejected", *REPAIRED) for row in planted),
        "passed_as_rule": sum(row.as_rule != "rejected" for row in planted),
        "legal_other": len(legal),
        "legal_merged": sum(not row.is_detected for row in legal),
        "certain": sum(row.certain for row in found),
        "correct": len(right),
        "correct_refused": refused,
        "refused_share": _compute_share(refused, len(right)),
        "refused_interval": compute_interval(refused, len(right)),
        "refused_blank_only": sum(row.blank_only for row in right),
        "repaired_exact": sum(row.as_answer == "repaired_exact" for row in planted),
        "repaired_blanks": sum(row.as_answer == "repaired_blanks" for row in planted),
        "repaired_wrong": sum(row.as_answer == "repaired_wrong" for row in found),
        "crashed": sum("crashed" in (row.as_answer, row.as_rule) for row in found),
    }


def make_blocks(rows: Sequence[Row]) -> list[Counts]:
    """Return the counts of all classes, formats, sources and styles, each with its `kind` and `name`."""
    accepted = {row.key for row in rows if row.name == RIGHT and row.is_accepted}
    groups = [("place", "all", list(rows))]
    groups += [("place", place, [row for row in rows if row.name in names]) for place, names in _PLACES.items()]
    groups += [("class", name, [row for row in rows if row.name == name]) for name in (*OUTSIDE, *WITHIN)]
    for kind, key in _GROUPS.items():
        groups += [(kind, name, some) for name, some in group_by(rows, key).items()]
    return [{"kind": kind, "name": name, **count_rows(some, accepted)} for kind, name, some in groups]


def render_planted(found: Sequence[Counts]) -> str:
    """Render which corruptions were detected, a class a line."""
    rows = [
        block
        | {
            "of_accepted": _compute_share(block["detected_in_accepted"], block["planted_in_accepted"]),
            "interval": _format_interval(block["detected_interval"]),
            "repaired": block["repaired_exact"] + block["repaired_blanks"],
        }
        for block in found
        if block["planted"] or block["legal_other"]
    ]
    return render_rows(
        rows,
        {
            "": "{kind} {name}",
            "planted": "{planted}",
            "detected": "{detected}",
            "share": "{detected_share:.1%}",
            "95 %": "{interval}",
            "of accepted": "{of_accepted:.1%}",
            "answer passed": "{passed_as_answer}",
            "rule passed": "{passed_as_rule}",
            "legal": "{legal_other}",
            "repaired": "{repaired}",
            "wrongly": "{repaired_wrong}",
        },
    )


def render_right(found: Sequence[Counts]) -> str:
    """Render which right results were refused, a format or style a line."""
    return render_rows(
        [block | {"interval": _format_interval(block["refused_interval"])} for block in found if block["correct"]],
        {
            "": "{kind} {name}",
            "right": "{correct}",
            "refused": "{correct_refused}",
            "share": "{refused_share:.1%}",
            "95 %": "{interval}",
            "blanks only": "{refused_blank_only}",
        },
    )


def render_counted(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Render rows of counts by their `name`; a count that a row does not have is 0."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in ("kind", "name")))
    return render_table([title, *columns], [[row["name"], *(str(row.get(key, 0)) for key in columns)] for row in rows])


def _compute_share(found: int, total: int) -> float | None:
    return round(found / total, 4) if total else None


def _format_interval(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.1%} to {found[1]:.1%}"
