"""Counts the structure of the source, and holds it: `python .ci/structure.py [--lists] [--check]`.

`--check` fails on each module in -ing, class name that is defined twice in a package, function that begins with a
participle or a preposition, long module, small module with one importer and import circle that EXCEPTIONS does not
name, and on each exception that is not needed any more. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agent_runtime", "editor", "engine", "hunk", "kernels", "repo_cache")
MOST_LINES, FEWEST_LINES, MOST_EXCEPTIONS = 450, 60, 25
# Words that begin no function's name: prepositions and pronouns, and irregular participles.
WORDS = """above after among as at before behind below beside between beyond by each every for from given how in into of
off on onto out over per since than that those through to under until what when where whether which who whom whose with
within without begun beaten bound built caught chosen cut done drawn driven drunk fallen fed found gone grown had heard
held hidden kept known laid led left lent lost made meant met put read said seen sent set shown shut spent split spoken
spread stood sung swept taken taught thought told torn understood undone unspoken went were won worn written"""
VERBS = {"cut", "put", "read", "set", "shut", "split", "spread", "bound", "found", "left", "need", "feed", "embed",
         "proceed", "exceed", "succeed", "seed", "speed", "shed", "bed", "indeed", "red"}  # fmt: skip
MEANT = {"on", "from", "to"}  # `on_*` are callbacks, `from_*` and `to_*` convert

# What the check lets pass, and why: doors to foreign libraries, types that many share, walls, words of the field.
EXCEPTIONS = {
    "agent_runtime.testing": "the public name of the module with FakeService",
    "agent_runtime.testing.merged_result": "a public name of the SDK's fake",
    "agent_runtime.types.merged": "the field of this name in every answer's JSON",
    "agent_runtime.wiring": "the composition root; its name is in the import contract and in docs/",
    "engine.sampling": "the field's word",
    "hunk.testing": "the public name of the module with FakeService",
}


def is_badly_named(name: str) -> bool:
    """Whether a function's name begins with a participle or a preposition."""
    first = name.strip("_").split("_")[0].lower()
    if first in VERBS or not first or (first in MEANT and "_" in name.strip("_")):
        return False
    return first in set(WORDS.split()) or re.search(r"[a-z]{2}ed$|[a-z]{3}ing$", first) is not None


def count_lines(text: str, tree: ast.Module) -> Counter[str]:
    """Lines by kind: code, blank, comment, docstring. A line of code with a comment is code."""
    kinds = ["code"] * len(text.splitlines())
    for at, line in enumerate(text.splitlines()):
        if not line.strip():
            kinds[at] = "blank"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds[node.lineno - 1 : node.end_lineno] = ["docstring"] * ((node.end_lineno or 0) - node.lineno + 1)
    return Counter(kinds)


def imported_by(name: str, tree: ast.Module, trees: dict[str, ast.Module]) -> set[str]:
    """Modules of ours that a module imports, in functions and TYPE_CHECKING blocks too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            defined = names_of(node.module, trees.get(node.module))
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in trees and alias.name not in defined else node.module)
    return {each for each in found if each in trees and each != name}


def names_of(name: str, tree: ast.Module | None) -> set[str]:
    """Functions and classes of a package's front, and what it imports from its modules: these hide modules."""
    found = set()
    for node in tree.body if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module != name:
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = [start]
        while todo:
            more = graph.get(todo.pop(), set()) - seen
            seen |= more
            todo += more
        reach[start] = seen
    groups = {tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in graph if a in reach[a]}
    return sorted(map(list, groups))


def siblings(graph: dict[str, set[str]]) -> list[list[str]]:
    """Circles among the modules and packages that lie in one package."""
    levels: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for source, targets in graph.items():
        for target in targets:
            a, b = source.split("."), target.split(".")
            same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            if same:  # otherwise one of the two is the package that holds the other
                levels[".".join(a[:same])][".".join(a[: same + 1])].add(".".join(b[: same + 1]))
    return [group for level in levels.values() for group in circles(level)]


def find_faults(texts: dict[str, str], trees: dict[str, ast.Module], fronts: set[str]) -> dict[str, dict[str, str]]:
    """What the check counts, by title: the name that an exception gives, and what is printed beside it."""
    sizes = {name: len(text.splitlines()) for name, text in texts.items()}
    graph = {name: imported_by(name, tree, trees) for name, tree in trees.items()}
    users = Counter(target for name, targets in graph.items() if name not in fronts for target in targets)
    nodes = [(name, node) for name, tree in trees.items() for node in ast.walk(tree)]
    classes: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes:
        if isinstance(node, ast.ClassDef):
            classes[f"{name.split('.')[0]}:{node.name}"].append(name)
    functions = [
        f"{name}.{node.name}"
        for name, node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_badly_named(node.name)
    ]
    lone = {name for name in texts if sizes[name] < FEWEST_LINES and users[name] == 1 and name not in fronts}
    return {
        f"modules over {MOST_LINES} lines": {n: f"{size} lines" for n, size in sizes.items() if size > MOST_LINES},
        "modules in -ing": {name: "" for name in texts if name.endswith("ing")},
        f"modules below {FEWEST_LINES} lines with one importer": {
            name: f"{sizes[name]} lines" for name in sorted(lone)
        },
        "class names defined twice in a package": {n: " ".join(at) for n, at in classes.items() if len(at) > 1},
        "functions that begin with a participle or preposition": dict.fromkeys(functions, ""),
        "import circles of modules": {" ".join(group): "" for group in circles(graph)},
        "import circles of packages": {" ".join(group): "" for group in siblings(graph)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", action="store_true", help="also name what is counted")
    parser.add_argument("--check", action="store_true", help="print only what EXCEPTIONS does not name; fail if any")
    args = parser.parse_args()
    texts, trees, fronts, table = {}, {}, set(), []
    for root in (*PACKAGES, "benchmarks", "tests"):
        total: Counter[str] = Counter()
        for file in sorted((ROOT / root).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            tree = ast.parse(text)
            total += count_lines(text, tree) + Counter(files=1, lines=len(text.splitlines()))
            if root in PACKAGES:
                name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                texts[name], trees[name] = text, tree
                fronts |= {name} if file.stem == "__init__" else set()
        table.append((root, *(total[key] for key in ("files", "lines", "code", "blank", "comment", "docstring"))))
    found = find_faults(texts, trees, fronts)
    if args.check:
        faults = {
            f"{name}: one of the {title} {more}"
            for title, each in found.items()
            for name, more in each.items()
            if name not in EXCEPTIONS
        }
        faults |= {
            f"{name}: an exception that is not needed"
            for name in EXCEPTIONS
            if not any(name in each for each in found.values())
        }
        if len(EXCEPTIONS) > MOST_EXCEPTIONS:
            faults.add(f"{len(EXCEPTIONS)} exceptions, at most {MOST_EXCEPTIONS}")
        sys.exit("\n".join(sorted(faults)) or None)
    print(f"{'':15}{'files':>7}{'lines':>8}{'code':>8}{'blank':>8}{'comment':>9}{'docstring':>11}")
    for row in table:
        print("{:15}{:7}{:8}{:8}{:8}{:9}{:11}".format(*row))
    print(f"{len(texts):6} source modules")
    for title, each in found.items():
        print(f"{len(each):6} {title}")
        if args.lists:
            print("".join(f"         {name} {more}\n" for name, more in each.items()), end="")


if __name__ == "__main__":
    main()
