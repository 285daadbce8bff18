"""Writes the report of a class, a line a pupil."""

from marks import average, best, has_passed


def line(name, marks):
    """One pupil: mean, best mark, and whether it is enough."""
    verdict = "passed" if has_passed(marks) else "not passed"
    return f"{name}: {average(marks):.1f} (best {best(marks)}), {verdict}"


def report(pupils):
    """All pupils by name."""
    return "\n".join(line(name, pupils[name]) for name in sorted(pupils))
