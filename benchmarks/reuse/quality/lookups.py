"""Probes whose answer stands in the edited lines: a constant's new value, a function's new name."""

from __future__ import annotations

import ast
from random import Random

from benchmarks.reuse.quality.names import fresh_name, is_alone
from benchmarks.reuse.quality.probe import Probe
from benchmarks.reuse.quality.sources import Stretch


def constant(stretch: Stretch, random: Random) -> Probe | None:
    """A constant is given another value, and asked for."""
    bodies = [stretch.tree.body, *(each.body for each in stretch.classes())]
    found = [
        (node.targets[0].id, node.value)
        for body in bodies
        for node in body
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ]
    found = [
        (name, value) for name, value in found if _other_literal(stretch, value, random) and len(name) > 2
        and stretch.is_middle(stretch.start(value))
    ]  # fmt: skip
    if not found:
        return None
    name, value = random.choice(found)
    start, end = stretch.start(value), stretch.end(value)
    old, new = stretch.text[start:end], _other_literal(stretch, value, random)
    assert new is not None
    return Probe(
        "constant",
        "look-up",
        stretch.file_name,
        stretch.text,
        stretch.replaced(start, end, new),
        f"Which value does the file assign to `{name}`?",
        f"```python\n{name} = ",
        new.strip("'\""),
        old.strip("'\""),
        (name,),
    )


def default(stretch: Stretch, random: Random) -> Probe | None:
    """A parameter's default is given another value, and asked for."""
    found = [
        (function, argument, value)
        for function in stretch.methods()
        for argument, value in defaults(function)
        if _other_literal(stretch, value, random) and stretch.is_middle(stretch.start(value))
    ]
    if not found:
        return None
    function, argument, value = random.choice(found)
    start, end = stretch.start(value), stretch.end(value)
    old, new = stretch.text[start:end], _other_literal(stretch, value, random)
    assert new is not None
    return Probe(
        "default",
        "look-up",
        stretch.file_name,
        stretch.text,
        stretch.replaced(start, end, new),
        f"Which default value does the parameter `{argument}` of `{function.name}` have in the file?",
        f"```python\n{argument}=",
        new.strip("'\""),
        old.strip("'\""),
        (argument, function.name),
    )


def renamed(stretch: Stretch, random: Random) -> Probe | None:
    """A function gets another name, and is asked for by its docstring."""
    found = [node for node in stretch.methods() if describable(stretch, node)]
    if not found:
        return None
    function = random.choice(found)
    new = fresh_name(stretch.text, function.name, random)
    return Probe(
        "renamed",
        "look-up",
        stretch.file_name,
        stretch.text,
        with_name(stretch, function, new),
        f'Which function of the file has the docstring "{first_doc_line(function)}"?',
        "```python\ndef ",
        new,
        function.name,
        (function.name, new),
    )


def defaults(function: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    """Parameters with their defaults."""
    plain = function.args.posonlyargs + function.args.args
    behind = plain[len(plain) - len(function.args.defaults) :]
    pairs = [(each.arg, value) for each, value in zip(behind, function.args.defaults, strict=True)]
    keyword = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return pairs + [(each.arg, value) for each, value in keyword if value is not None]


def describable(stretch: Stretch, function: ast.FunctionDef) -> bool:
    """Whether a function in the middle has a docstring that tells it, and a name that stands nowhere else."""
    doc = first_doc_line(function)
    return (
        stretch.is_middle(stretch.start(function))
        and len(doc) >= 24
        and '"' not in doc
        and stretch.text.count(doc) == 1
        and is_alone(stretch.text, function.name)
        and not function.name.startswith("__")
    )


def first_doc_line(function: ast.FunctionDef) -> str:
    """The first line of the docstring, or nothing."""
    return (ast.get_docstring(function) or "").split("\n")[0].strip()


def with_name(stretch: Stretch, node: ast.FunctionDef | ast.ClassDef, new: str) -> str:
    """The text with a definition renamed where it stands."""
    start = stretch.text.index(node.name, stretch.start(node) + len("def"))
    return stretch.replaced(start, start + len(node.name), new)


def _other_literal(stretch: Stretch, value: ast.expr, random: Random) -> str | None:
    """Another literal of the kind of this one, or None where it is not a number or a short word that is rare here."""
    if not isinstance(value, ast.Constant):
        return None
    old = stretch.text[stretch.start(value) : stretch.end(value)]
    if type(value.value) is int and old.isdigit() and value.value > 1:
        return str(random.choice((value.value * 2, value.value + 7, 3 * value.value + 1)))
    if isinstance(value.value, str) and value.value.isidentifier() and 3 <= len(value.value) <= 20:
        quote = old[0]
        if old == f"{quote}{value.value}{quote}":
            return f"{quote}{fresh_name(stretch.text, value.value, random)}{quote}"
    return None
