"""The accounting check: which results a legal reading of an edit leads to, and which lines are in none."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.attribution import attribute_changes, repair_result
from editor.formats import parse
from editor.grammars import find_language
from editor.types import UnaccountedLine

FILE = '''\
"""Limits of requests, by client."""

import time

LIMIT = 100
WINDOW_SECONDS = 60


class Limiter:
    """Counts the requests of each client in a window."""

    def __init__(self, limit=LIMIT):
        self.limit = limit
        self.seen = {}

    @property
    def size(self):
        return len(self.seen)

    def allow(self, client):
        now = time.monotonic()
        recent = [t for t in self.seen.get(client, []) if now - t < WINDOW_SECONDS]
        if len(recent) >= self.limit:
            return False
        recent.append(now)
        return True


class Gate:
    def open(self):
        log("open")
        return True
'''


def faults(
    snippet: str, result: str, *said: str, file: str = FILE, path: str = "x.py", form: str = "lazy"
) -> tuple[UnaccountedLine, ...]:
    return attribute_changes(file, result, parse(snippet, form), find_language(path), said).faults  # type: ignore[arg-type]


INSERTED = FILE.replace("        recent.append(now)\n", "        recent.append(now)\n        log(client)\n")
INSERT = "        recent.append(now)\n        log(client)\n        return True\n"
REWRITTEN = FILE.replace("        self.seen = {}\n", "        self.seen = defaultdict(list)\n")
REWRITE = (
    "class Limiter:\n    # ... existing code ...\n        self.limit = limit\n"
    "        self.seen = defaultdict(list)\n    # ...\n"
)
METHOD = "    def reset(self):\n        self.seen.clear()\n"

LEGAL = {
    "a new line between two shown lines": (INSERT, INSERTED),
    "a new line, with markers around": ("# ... existing code ...\n" + INSERT + "# ... existing code ...\n", INSERTED),
    "a replaced line beside a marker": (REWRITE, REWRITTEN),
    "a deletion between two shown lines": (
        (
            "        recent = [t for t in self.seen.get(client, []) if now - t < "
            "WINDOW_SECONDS]\n        recent.append(now)\n"
        ),
        FILE.replace("        if len(recent) >= self.limit:\n            return False\n", ""),
    ),
    "a new method between markers": (
        f"class Limiter:\n    # ... existing code ...\n\n{METHOD}\n    # ... existing code ...\n",
        FILE.replace("    def allow", f"{METHOD}\n    def allow"),
    ),
    "a method shown anew from head to end": (
        "    def open(self):\n        return False\n",
        FILE.replace('        log("open")\n        return True\n', "        return False\n"),
    ),
    "an import as it was sent": (
        "import time\nfrom collections import defaultdict\n",
        FILE.replace("import time\n", "import time\nfrom collections import defaultdict\n"),
    ),
    "an elided header": (
        "    def __init__(...):\n        self.limit = limit\n        self.names = {}\n        self.seen = {}\n",
        FILE.replace("        self.seen = {}\n", "        self.names = {}\n        self.seen = {}\n"),
    ),
    "lines wrapped in a block by their marker": (
        "    def open(self):\n        with lock:\n            # ... existing code ...\n",
        FILE.replace(
            '        log("open")\n        return True\n',
            '        with lock:\n            log("open")\n            return True\n',
        ),
    ),
    "a dedented snippet": (
        'log("open")\nlog("twice")\nreturn True\n',
        FILE.replace('        log("open")\n', '        log("open")\n        log("twice")\n'),
    ),
    "blank lines beside shown lines": (INSERT, INSERTED.replace("        log(client)\n", "\n        log(client)\n")),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_reading_is_accounted_for(name: str) -> None:
    snippet, result = LEGAL[name]
    assert result != FILE
    assert faults(snippet, result) == ()


ILLEGAL = {
    "a token altered far from the edit": (INSERT, INSERTED.replace("LIMIT = 100", "LIMIT = 10"), "LIMIT = 10"),
    "a line added in another method": (
        INSERT,
        INSERTED.replace("        self.seen = {}\n", "        self.seen = {}\n        evil()\n"),
        "        evil()",
    ),
    "a line dropped from what a marker stands for": (
        REWRITE,
        REWRITTEN.replace("        now = time.monotonic()\n", ""),
        "        now = time.monotonic()",
    ),
    "a docstring dropped": (
        INSERT,
        INSERTED.replace('    """Counts the requests of each client in a window."""\n', ""),
        '    """Counts the requests of each client in a window."""',
    ),
    "an indentation changed": (
        INSERT,
        INSERTED.replace("        self.seen = {}", "            self.seen = {}"),
        "            self.seen = {}",
    ),
    "spaces at the end of a line": (
        INSERT,
        INSERTED.replace("self.seen = {}\n", "self.seen = {}  \n"),
        "        self.seen = {}  ",
    ),
    "a shown line missing": (INSERT, FILE, "        log(client)"),
    "a decorator that the snippet does not show": (
        (
            "    # ... existing code ...\n    def size(self):\n"
            "        return len(self.seen) or 1\n    # ... existing code ...\n"
        ),
        FILE.replace("    @property\n", "").replace("len(self.seen)\n", "len(self.seen) or 1\n"),
        "    @property",
    ),
    "the new line in the sibling": (
        "class Gate:\n    # ... existing code ...\n        return True\n        log(2)\n",
        FILE.replace("        return True\n\n\nclass", "        return True\n        log(2)\n\n\nclass"),
        "        log(2)",
    ),
    "a replaced line kept beside the new one": (
        "LIMIT = 200\n# ... existing code ...\n",
        FILE.replace("LIMIT = 100\n", "LIMIT = 200\nLIMIT = 100\n"),
        "LIMIT = 200",
    ),
    "a whole definition gone without a word": (
        "        self.seen = {}\n\n    def allow(self, client):\n        now = time.monotonic()\n",
        FILE.replace("    @property\n    def size(self):\n        return len(self.seen)\n\n", ""),
        "    def size(self):",
    ),
    "an import gone for that of another module": (
        "import json\n# ... existing code ...\n",
        FILE.replace("import time\n", "import json\n"),
        "import time",
    ),
    "a method of the class below": (
        "class Limiter:\n    # ... existing code ...\n    def open(self):\n        audit()\n        return True\n",
        FILE.replace('        log("open")\n', "        audit()\n"),
        "    def open(self):",
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_no_reading_explains_is_named(name: str) -> None:
    snippet, result, line = ILLEGAL[name]
    found = faults(snippet, result)
    assert line in [fault.text for fault in found], found


def test_a_definition_that_the_words_name_may_go() -> None:
    snippet, result, _ = ILLEGAL["a whole definition gone without a word"]
    assert faults(snippet, result, "Remove the unused size property.") == ()
    assert faults(snippet, result, "The size is kept.")


def test_a_removal_comment_names_what_goes() -> None:
    snippet = "        self.seen = {}\n\n    # removed: size\n\n    def allow(self, client):\n"
    result = FILE.replace("    @property\n    def size(self):\n        return len(self.seen)\n\n", "")
    assert faults(snippet, result) == ()


def test_a_moved_line_is_no_loss() -> None:
    snippet = (
        "# ... existing code ...\nWINDOW_SECONDS = 60\nLIMIT = 100\n\n\nclass Limiter:\n    # ... existing code ...\n"
    )
    result = FILE.replace("LIMIT = 100\nWINDOW_SECONDS = 60\n", "WINDOW_SECONDS = 60\nLIMIT = 100\n")
    assert faults(snippet, result) == ()


def test_sections_without_indentation_hold_their_keys() -> None:
    file = '[server]\nhost = "h"\n\n[client]\ntimeout = 30\nretries = 3\n'
    snippet = "[server]\n# ... existing code ...\ntimeout = 30\nkeepalive = 10\nretries = 3\n"
    result = file.replace("timeout = 30\n", "timeout = 30\nkeepalive = 10\n")
    assert faults(snippet, result, file=file, path="a.toml")


SEARCH = "<<<<<<< SEARCH\n        self.limit = limit\n=======\n        self.limit = int(limit)\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("edit", "form"),
    [
        (SEARCH, "search_replace"),
        ('{"old_string": "self.limit = limit", "new_string": "self.limit = int(limit)"}', "replace"),
        (
            (
                "@@ -12,2 +12,2 @@\n     def __init__(self, limit=LIMIT):\n"
                "-        self.limit = limit\n+        self.limit = int(limit)\n"
            ),
            "udiff",
        ),
    ],
)
def test_an_explicit_edit_accounts_for_its_own_place_and_no_other(edit: str, form: str) -> None:
    right = FILE.replace("self.limit = limit", "self.limit = int(limit)")
    assert faults(edit, right, form=form) == ()
    wrong = {
        "another line too": right.replace(">= self.limit", "> self.limit"),
        "written twice": right.replace("int(limit)\n", "int(limit)\n        self.limit = int(limit)\n"),
        "old kept": right.replace("        self.limit = int", "        self.limit = limit\n        self.limit = int"),
        "a line lower": FILE.replace(
            "        self.limit = limit\n        self.seen = {}\n",
            "        self.seen = {}\n        self.limit = int(limit)\n",
        ),
        "another depth": right.replace("        self.limit = int", "            self.limit = int"),
        "spaces": right.replace("int(limit)", "int(limit)  "),
        "final newline": right.removesuffix("\n"),
        "nothing": FILE,
    }
    for name, text in wrong.items():
        assert faults(edit, text, form=form), name


def test_an_ambiguous_block_is_accounted_for_at_each_of_its_places_and_only_at_one() -> None:
    edit = "<<<<<<< SEARCH\n        return True\n=======\n        return None\n>>>>>>> REPLACE\n"
    one, two, rest = FILE.split("        return True\n")
    first = f"{one}        return None\n{two}        return True\n{rest}"
    both = FILE.replace("return True", "return None")
    assert faults(edit, first, form="search_replace") == ()
    assert faults(edit, both, form="search_replace")


@pytest.mark.parametrize("form", ["replace", "search_replace"])
def test_thousands_of_changes_are_accounted_for(form: str) -> None:
    """Each made in what the ones before it left."""
    lines = [f"value_{number} = 1" for number in range(1_200)]
    pairs = list(pairwise(lines))
    edit = "".join(f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n" for old, new in pairs)
    if form == "replace":
        edit = json.dumps([{"old_string": old, "new_string": new} for old, new in pairs])
    before, after = f"{lines[0]}\nb = 2\n", f"{lines[-1]}\nb = 2\n"
    assert faults(edit, after, file=before, form=form) == ()
    assert faults(edit, after.replace("b = 2", "b = 3"), file=before, form=form)


def test_a_block_that_stands_nowhere_is_accounted_for_where_a_model_put_it_if_that_is_like_it() -> None:
    edit = parse("<<<<<<< SEARCH\n        self.limits = limit\n=======\n        self.limit = 3\n>>>>>>> REPLACE\n")
    near = FILE.replace("self.limit = limit", "self.limit = 3")
    far = FILE.replace('        log("open")', "        self.limit = 3")
    assert attribute_changes(FILE, near, edit, "python").faults
    assert not attribute_changes(FILE, near, edit, "python", by_model=True).faults
    assert attribute_changes(FILE, far, edit, "python", by_model=True).faults
    assert attribute_changes(FILE, near.replace("import time\n", ""), edit, "python", by_model=True).faults


def test_repair_gives_back_the_file_s_own_lines_and_names_those_that_went() -> None:
    mended = repair_result(
        FILE, INSERTED.replace("LIMIT = 100", "LIMIT = 10").replace("import time\n\n", "\n"), parse(INSERT), "python"
    )
    assert mended is not None
    assert mended.text == INSERTED
    assert {line.text for line in mended.lines} >= {"LIMIT = 10", "import time"}


def test_repair_leaves_alone_what_is_wrong_at_the_edit_itself() -> None:
    assert repair_result(FILE, INSERTED, parse(INSERT), "python") is None
    assert repair_result(FILE, FILE, parse(INSERT), "python") is None
    assert (
        repair_result(
            FILE,
            INSERTED.replace("        log(client)\n", "        log(client)\n        evil()\n"),
            parse(INSERT),
            "python",
        )
        is None
    )


def test_repair_leaves_alone_a_lost_line_that_a_new_one_elsewhere_may_replace() -> None:
    file = "import a\nfrom b.old import name\n\nimport c\nimport d\n\nstart()\n"
    lower = "import a\n\nimport c\nfrom b.new import name\nimport d\n\nstart()\n"
    reading = attribute_changes(file, lower, parse("from b.new import name\n", "lazy"), "python")
    assert [(fault.kind, fault.text) for fault in reading.faults] == [("removed", "from b.old import name")]
    assert repair_result(file, lower, parse("from b.new import name\n", "lazy"), "python") is None


def test_a_definition_is_not_renamed_to_one_that_the_file_has() -> None:
    methods = [f"  {name}(a) {{\n    this.result {sign}= a;\n    return this;\n  }}\n" for name, sign in OPERATIONS]
    file = "class Calculator {\n" + "\n".join(methods) + "}\n"
    checked = methods[1].replace("{\n", "{\n    check(a);\n", 1)
    snippet = f"  // ... existing code ...\n{checked}  // ... existing code ...\n"
    right = file.replace(methods[1], checked)
    assert faults(snippet, right, file=file, path="x.js") == ()
    assert faults(snippet, right.replace("\n" + methods[2], ""), file=file, path="x.js")


OPERATIONS = (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))


def test_a_section_is_not_shown_below_the_heading_of_another() -> None:
    file = "# Guide\n\n## Build\n\nRun it.\n\n## Use\n\n### First\n\nStart it.\n\n### Second\n\nStop it.\n"
    result = file.replace("Start it.\n", "Start it.\nWait.\n")
    shown = "### First\n\nStart it.\nWait.\n<!-- ... existing code ... -->\n"
    above = "<!-- ... existing code ... -->\n"
    assert faults(f"## Use\n{above}\n{shown}", result, file=file, path="x.md") == ()
    assert faults(f"## Build\n{above}\n{shown}", result, file=file, path="x.md")


LINES = [f"line_{number} = {number}" for number in range(12)]


@st.composite
def readings(draw: st.DrawFn) -> tuple[str, str, str]:
    """A file, a snippet and its result, made together: shown runs with new lines inside, markers between."""
    kept = draw(st.lists(st.sampled_from(range(12)), min_size=2, max_size=6, unique=True).map(sorted))
    snippet: list[str] = []
    result: list[str] = []
    at = 0
    for number, line in enumerate(kept):
        if line > at:
            snippet.append("# ... existing code ...")
        result += LINES[at:line]
        snippet.append(LINES[line])
        result.append(LINES[line])
        at = line + 1
        if number + 1 < len(kept) and kept[number + 1] == at and draw(st.booleans()):
            new = f"call_{number}(self, {number})"
            snippet.append(new)
            result.append(new)
    snippet.append("# ... existing code ...")
    return "\n".join(LINES) + "\n", "\n".join(snippet) + "\n", "\n".join([*result, *LINES[at:]]) + "\n"


@given(readings())
def test_every_reading_that_is_made_by_the_grammar_is_found(made: tuple[str, str, str]) -> None:
    file, snippet, result = made
    assert faults(snippet, result, file=file) == ()


@given(readings(), st.data())
def test_one_line_altered_dropped_doubled_or_put_in_is_found(made: tuple[str, str, str], data: st.DataObject) -> None:
    file, snippet, result = made
    lines = result.removesuffix("\n").split("\n")
    at = data.draw(st.sampled_from(range(len(lines))))
    way = data.draw(st.sampled_from(["altered", "dropped", "doubled", "put in"]))
    wrong = {
        "altered": [*lines[:at], lines[at] + "0", *lines[at + 1 :]],
        "dropped": [*lines[:at], *lines[at + 1 :]],
        "doubled": [*lines[:at], lines[at], *lines[at:]],
        "put in": [*lines[:at], "other()", *lines[at:]],
    }[way]
    assert faults(snippet, "\n".join(wrong) + "\n", file=file)


CALLS = """class Pool:
    def open(
        self, size: int, options={}
    ) -> Handle:
        check(size)
        log(size)
        return self.make(
            size,
            options,
        )
"""


def test_a_signature_over_several_lines_gives_way_to_one_over_one_line() -> None:
    new = "    def open(self, size: int, options={}) -> Connection:\n"
    result = new.join(CALLS.partition("    def open(\n        self, size: int, options={}\n    ) -> Handle:\n")[::2])
    assert faults(f"class Pool:\n    # ...\n{new}        check(size)\n        # ...\n", result, file=CALLS) == ()


def test_lines_between_a_changed_head_and_a_shown_line_may_go() -> None:
    new = "    def open(self):\n"
    head = "    def open(\n        self, size: int, options={}\n    ) -> Handle:\n        check(size)\n"
    result = new.join(CALLS.partition(head)[::2])
    assert faults(f"# ...\n{new}        log(size)\n        # ...\n", result, file=CALLS) == ()


def test_a_call_over_several_lines_is_no_definition_that_could_be_lost() -> None:
    call = "        return self.make(\n            size,\n            options,\n        )\n"
    result = CALLS.replace(call, "        return self.make(size)\n")
    assert faults("        log(size)\n        return self.make(size)\n# ...\n", result, file=CALLS) == ()


def test_an_import_gives_way_to_the_same_one_by_a_longer_path() -> None:
    file = "use std::fmt;\n\nuse ast::Analysis;\nuse error::Error;\n\npub struct Config;\n"
    result = file.replace("use ast", "use crate::ast").replace("use error", "use crate::error")
    snippet = "// ...\n\nuse crate::ast::Analysis;\nuse crate::error::Error;\n\n// ...\n"
    assert faults(snippet, result, file=file, path="a.rs") == ()
    other = result.replace("crate::error::Error", "crate::exit::Code")
    assert faults(snippet.replace("crate::error::Error", "crate::exit::Code"), other, file=file, path="a.rs")


def test_several_names_are_gone_in_one_sentence() -> None:
    new = "from app.settings import load_settings"
    snippet = f"import time\n\n{new}\n\n# ...\n"
    result = FILE.replace("LIMIT = 100\nWINDOW_SECONDS = 60\n", f"{new}\n")
    assert faults(snippet, result, "(`LIMIT` and `WINDOW_SECONDS` are gone.)") == ()
    assert faults(snippet, result, "`LIMIT` stays and `WINDOW_SECONDS` is gone.")


def test_a_lone_definition_goes_where_the_words_say_and_nowhere_else() -> None:
    snippet = "    def close(self):\n        self.seen.clear()\n"
    result = FILE.replace("    def allow(", f"{snippet}\n    def allow(")
    assert faults(snippet, result, "Add close() above `allow`.") == ()
    assert faults(snippet, result, "Add close() after `allow`.")
    assert faults(snippet, result)
