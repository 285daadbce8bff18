"""Lazy snippets are parsed: placeholders passed over, methods without their class, brackets left open."""

from __future__ import annotations

import pytest

from editor.snippets import survey_snippet

SNIPPETS = {
    "python": (
        "# ... existing code ...\ndef f():\n    # ... existing code ...\n\ndef g():\n    return 1\n",
        "function f 1-3, function g 4-6",
    ),
    "python class": (
        "    @property\n    def f(self):\n        # ... rest of the method ...\n\n    def g(self): ...\n# ...\n",
        "method f 0-3, method g 4-5",
    ),
    "python dict": ("CONFIG = {\n    # ... existing code ...\n    'a': 1,\n}\ndef f():\n    pass\n", "function f 4-6"),
    "javascript": (
        "  // ... existing code ...\n  async foo(a) {\n    await a;\n  }\n\n  ...\n  bar() {}\n",
        "method foo 1-4, method bar 6-7",
    ),
    "javascript opened": (
        "class A {\n  // ...\n  foo() {\n    if (x) {\n      // ...\n",
        "class A 0-5, method A.foo 2-5",
    ),
    "javascript closed": ("    return 1;\n  }\n\n  foo() {\n    x('}');\n  }\n}\n", "method foo 3-6"),
    "typescript": ("private foo(a: string): void {\n  // ...\n}\n", "method foo 0-3"),
    "tsx": ("  render() {\n    return <div>{/* ... */}</div>;\n  }\n", "method render 0-3"),
    "java": ("  @Override\n  public int foo(int a) {\n    // ...\n  }\n", "method foo 0-4"),
    "csharp": ("public int P { get; }\n\npublic override int F()\n{\n", "property P 0-1, method F 2-4"),
    "cpp": ("public:\n  // ...\n  void f() {}\n", "method f 2-3"),
    "rust": ("pub fn a(&self) {\n    // ...\n}\n", "function a 0-3"),
    "go": ("// ... existing code ...\nfunc (t *T) F() {\n\t// ...\n}\n", "method T.F 1-4"),
    "php": ("public function f()\n{\n    // ...\n}\n", "method f 0-4"),
    "php whole": ("<?php\n// ...\nfunction f() {}\n", "function f 2-3"),
    "ruby": ("  # ...\n  def f\n    # ...\n  end\n", "function f 1-4"),
    "json": ('  // ...\n  "a": {\n    "b": 1\n  },\n  "c": 2\n', "key a 1-4, key a.b 2-3, key c 4-5"),
    "yaml": ("a:\n  # ...\n  b: 1\n", "key a 0-3, key a.b 2-3"),
    "css": ("/* ... */\n.a {\n  /* ... */\n  b: c;\n}\n", "rule .a 1-5"),
    "sql": ("-- ...\nCREATE TABLE t (\n  -- ...\n  a INT\n);\n", "table t 1-5, column t.a 3-4"),
}


@pytest.mark.parametrize(("name", "case"), SNIPPETS.items())
def test_definitions_of_snippets_have_the_lines_of_the_snippet(name: str, case: tuple[str, str]) -> None:
    text, expected = case
    seen = survey_snippet(text.rstrip("\n").split("\n"), name.split()[0])
    assert seen is not None
    found = [f"{symbol.kind} {symbol.name} {symbol.first_line}-{symbol.end_line}" for symbol in seen.symbols]
    assert ", ".join(found) == expected
    assert not seen.error_lines


def test_parents_and_bodies_count_from_the_snippet() -> None:
    seen = survey_snippet(["  foo() {", "    const bar = () => {", "    };", "  }"], "javascript")
    assert seen is not None
    foo, bar = seen.symbols
    assert (foo.parent, foo.depth, foo.name_line, foo.body_line) == (-1, 0, 0, 1)
    assert (bar.parent, bar.depth, bar.name_line, bar.body_line, bar.name) == (0, 1, 1, 2, "foo.bar")


def test_what_cannot_be_parsed_is_read_as_far_as_it_goes() -> None:
    seen = survey_snippet(["class A {", "  foo() { = = }", "}"], "javascript")
    assert seen is not None
    assert seen.error_lines == (1,)
    assert [symbol.name for symbol in seen.symbols] == ["A", "A.foo"]
    assert survey_snippet([], "javascript") is not None
    assert survey_snippet(["x"], None) is None
