"""tree-sitter's door: definitions and syntax errors of every language that has a grammar here."""

from __future__ import annotations

import pytest

from editor import syntax
from editor.languages import language_of
from editor.syntax import num_errors, survey, symbols

SOURCES = {
    "a.py": ("class A:\n  @x\n  async def f(self):\n    def g(): ...\ndef h(): ...", "A A.f A.f.g h"),
    "a.js": ("class A { x = () => 1; m() {} }\nconst f = () => 1;\nfunction* g() {}", "A A.x A.m f g"),
    "a.ts": ("interface I { a(): void }\ntype T = 1;\nabstract class B { abstract m(): void }", "I I.a T B B.m"),
    "a.tsx": ("export function App() { return <div/>; }\nenum E { A }", "App E"),
    "a.go": ("package a\ntype T struct{}\nfunc (t *T) M() {}\nfunc F() {}", "T T.M F"),
    "a.rs": ("impl T for S { fn a(&self) {} }\nmod m { fn z() {} }\nstruct S;", "S S.a m m.z S"),
    "a.java": ("class A { A() {} void m() {} interface I {} }", "A A.A A.m A.I"),
    "a.c": ("char *g(void) { return 0; }\nstruct S { int a; };\nint f(int x) { return x; }", "g S f"),
    "a.hpp": ("namespace n { class A { void m() {} }; }\nvoid A::q() {}\nA& r() {}", "n n.A n.A.m A::q r"),
    "a.json": ('{"a": {"b": 1}}', "a a.b"),
}


@pytest.mark.parametrize(("path", "source"), SOURCES.items())
def test_definitions_are_named_with_their_scopes(path: str, source: tuple[str, str]) -> None:
    text, names = source
    language = language_of(path)
    assert symbols(text, language) == tuple(names.split())
    assert num_errors(text, language) == 0


def test_errors_have_lines() -> None:
    seen = survey("x = 1\ny = = 2\n", "python")
    assert seen is not None
    assert seen.error_lines == (1,)


def test_unknown_languages_and_huge_texts_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert language_of("Makefile") is None
    assert language_of("C:\\x\\A.PY") == "python"
    assert symbols("a", None) is None
    assert num_errors("a", "cobol") is None
    monkeypatch.setattr(syntax, "MAX_BYTES", 10)
    assert survey("x = 1\n" * 10, "python") is None
