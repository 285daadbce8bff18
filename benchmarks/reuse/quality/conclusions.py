"""Probes whose answer follows from the edited lines and others: derived values, callers, types, what is left."""

from __future__ import annotations

import ast
from random import Random

from benchmarks.reuse.quality.lookups import defaults, describable, first_doc_line, with_name
from benchmarks.reuse.quality.names import fresh_name, fresh_noun, is_alone
from benchmarks.reuse.quality.probe import Probe, holds
from benchmarks.reuse.quality.sources import Stretch

EMPTY = {"list": "[]", "dict": "{}", "set": "set()", "str": '""', "tuple": "()"}

FAR = 800
"""Characters, some 200 tokens, that lie between an edit and what depends on it."""


def derived(stretch: Stretch, random: Random) -> Probe | None:
    """A constant's value changes that is a parameter's default far behind it; the default is asked for."""
    return _through_constant(stretch, random, "derived", 1)


def computed(stretch: Stretch, random: Random) -> Probe | None:
    """As `derived`, but the default is twice the constant, so that the answer stands nowhere in the file."""
    return _through_constant(stretch, random, "computed", 2)


def _through_constant(stretch: Stretch, random: Random, kind: str, factor: int) -> Probe | None:
    places = [stretch.whole(node)[0] for node in stretch.tree.body[1:]]
    places = [place for place in places if stretch.is_middle(place) and stretch.text[place:].strip()]
    if not places:
        return None
    place = random.choice(places)
    found = [
        (function, argument, value)
        for function in stretch.methods()
        for argument, value in defaults(function)
        if isinstance(value, ast.Constant)
        and isinstance(value.value, int | type(None))
        and stretch.start(value) > place + FAR
    ]
    if not found:
        return None
    function, argument, value = random.choice(found)
    name = f"{fresh_name(stretch.text, argument, random)}".upper()
    expression = name if factor == 1 else f"{name} * {factor}"
    old, new = random.sample(range(11, 50), 2)
    text = stretch.replaced(stretch.start(value), stretch.end(value), expression)
    if any(holds(text, str(factor * each)) for each in (old, new)):
        return None
    before, after = (f"{text[:place]}{name} = {each}\n\n\n{text[place:]}" for each in (old, new))
    return Probe(
        kind,
        "conclusion",
        stretch.file_name,
        before,
        after,
        f"Which number is `{argument}` when `{function.name}` is called without it?",
        f"The number is {argument} = ",
        str(factor * new),
        str(factor * old),
        (name,),
    )


def caller(stretch: Stretch, random: Random) -> Probe | None:
    """A function gets another first parameter, and a call of it is to be written."""
    found = [
        node
        for node in stretch.functions()
        if node.args.args and not node.args.posonlyargs and stretch.is_middle(stretch.start(node))
    ]
    found = [node for node in found if is_alone(stretch.text, f"{node.name}(") and len(node.args.args[0].arg) > 2]
    if not found:
        return None
    function = random.choice(found)
    first = function.args.args[0]
    new = fresh_noun(stretch.text, random)
    if holds(function.name, first.arg):
        return None
    return Probe(
        "caller",
        "conclusion",
        stretch.file_name,
        stretch.text,
        stretch.replaced(stretch.start(first), stretch.start(first), f"{new}, "),
        f"Write a call of `{function.name}` with all its arguments in a dict, in the order of its signature.",
        f'```python\n{function.name}(**{{"',
        new,
        first.arg,
        (function.name, new),
    )


def kind_of(stretch: Stretch, random: Random) -> Probe | None:
    """A variable begins as an empty collection of another type; the type is asked for."""
    found = []
    for function in stretch.methods():
        assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and len(node.targets) == 1]
        for node in assigned:
            name = ast.unparse(node.targets[0])
            type_ = {text: kind for kind, text in EMPTY.items()}.get(ast.unparse(node.value))
            once = sum(ast.unparse(each.targets[0]) == name for each in assigned) == 1
            if type_ and once and len(name) > 2 and stretch.is_middle(stretch.start(node.value)):
                found.append((function, name, type_, node.value))
    if not found:
        return None
    function, name, old, value = random.choice(found)
    new = random.choice([each for each in EMPTY if each != old])
    return Probe(
        "type",
        "conclusion",
        stretch.file_name,
        stretch.text,
        stretch.replaced(stretch.start(value), stretch.end(value), EMPTY[new]),
        f"Which type does `{name}` have where `{function.name}` first assigns to it: {', '.join(EMPTY)}?",
        f"```python\nassert isinstance({name}, ",
        new,
        old,
        (name,),
    )


def deleted(stretch: Stretch, random: Random) -> Probe | None:
    """A definition is deleted; what the file defines is to be listed."""
    nodes = [node for node in stretch.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found = [
        place
        for place in range(2, len(nodes) - 1)
        if stretch.is_middle(stretch.start(nodes[place])) and is_alone(stretch.text, nodes[place].name)
    ]
    if not found:
        return None
    place = random.choice(found)
    names = [node.name for node in nodes]
    start, end = stretch.whole(nodes[place])
    behind = len(stretch.text) - len(stretch.text[end:].lstrip("\n"))
    listed = "".join(f"- {name}\n" for name in names[:place])
    return Probe(
        "deleted",
        "conclusion",
        stretch.file_name,
        stretch.text,
        stretch.replaced(start, behind, ""),
        "List the functions and classes that the file defines at its top level, in their order.",
        f"{listed}- ",
        names[place + 1],
        names[place],
        (names[place],),
    )


def defined(stretch: Stretch, random: Random) -> Probe | None:
    """A definition is deleted, and it is asked whether the file has it."""
    made = deleted(stretch, random)
    if made is None:
        return None
    question = f"Does the file define `{made.stale}`? Answer yes or no."
    return Probe(
        "defined", "conclusion", made.file_name, made.before, made.after, question, "Answer: ", "no", "yes",
        made.symbols,
    )  # fmt: skip


def used(stretch: Stretch, random: Random) -> Probe | None:
    """A function gets another name, and code is to be written that calls it, told by its docstring."""
    found = [node for node in stretch.functions() if describable(stretch, node)]
    if not found:
        return None
    function = random.choice(found)
    new = fresh_name(stretch.text, function.name, random)
    doc = first_doc_line(function)
    return Probe(
        "used",
        "conclusion",
        stretch.file_name,
        stretch.text,
        with_name(stretch, function, new),
        f'Write a function `main` that calls the function of the file whose docstring is "{doc}".',
        f"```python\ndef main():\n    # {doc}\n    result = ",
        new,
        function.name,
        (function.name, new),
    )


def owner(stretch: Stretch, random: Random) -> Probe | None:
    """A class gets another name; that of a method far behind is asked for."""
    found = [
        (each, method)
        for each in stretch.classes()
        if stretch.is_middle(stretch.start(each)) and is_alone(stretch.text, each.name)
        for method in each.body
        if isinstance(method, ast.FunctionDef)
        and stretch.start(method) > stretch.start(each) + FAR
        and is_alone(stretch.text, f"def {method.name}(")
        and not method.name.startswith("__")
    ]
    if not found:
        return None
    class_, method = random.choice(found)
    new = fresh_name(stretch.text, class_.name, random)
    return Probe(
        "owner",
        "conclusion",
        stretch.file_name,
        stretch.text,
        with_name(stretch, class_, new),
        f"Which class of the file defines the method `{method.name}`?",
        "```python\nclass ",
        new,
        class_.name,
        (class_.name, new),
    )
