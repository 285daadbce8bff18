"""tree-sitter's door: definitions and syntax errors of every language that has a grammar here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tree_sitter import Language, Parser, Tree

from editor import syntax
from editor.definitions import Symbol
from editor.execution import clear_caches
from editor.grammars import GRAMMARS, find_language
from editor.syntax import MAX_BYTES, count_errors, list_nodes, survey
from tests.memory import bytes_kept
from tests.repo_cache.sources import SUFFIXES, edited, source

SOURCES = {
    "a.py": ("class A:\n  @x\n  async def f(self):\n    def g(): ...\ndef h(): ...", "A A.f A.f.g h"),
    "a.js": ("class A { x = () => 1; m() {} }\nconst f = () => 1;\nfunction* g() {}", "A A.x A.m f g"),
    "b.js": ("exports.f = function () {};\nx.a = 1;\nconst o = { g: () => 1, h() {} };", "exports.f g h"),
    "a.ts": ("interface I { a(): void }\ntype T = 1;\nabstract class B { abstract m(): void }", "I I.a T B B.m"),
    "a.tsx": ("export function App() { return <div/>; }\nenum E { A }", "App E"),
    "a.go": ("package a\ntype T struct{}\nfunc (t *T) M() {}\nfunc F() {}", "T T.M F"),
    "a.rs": ("impl T for S { fn a(&self) {} }\nmod m { fn z() {} }\nstruct S;", "S S.a m m.z S"),
    "a.java": ("class A { A() {} void m() {} interface I {} }", "A A.A A.m A.I"),
    "a.c": ("char *g(void) { return 0; }\nstruct S { int a; };\nint f(int x) { return x; }", "g S f"),
    "a.hpp": ("namespace n { class A { void m() {} }; }\nvoid A::q() {}\nA& r() {}", "n n.A n.A.m A::q r"),
    "a.cs": (
        "namespace N { class A { int P { get; set; } A() {} void M() {} } enum E { X } }",
        "N N.A N.A.P N.A.A N.A.M N.E",
    ),
    "a.rb": ("module M\n  class A\n    def f; end\n    def self.g; end\n  end\nend", "M M.A M.A.f M.A.self.g"),
    "a.php": ("<?php\nclass A { function f() {} }\ntrait T {}\nfunction g() {}", "A A.f T g"),
    "a.json": ('{"a": {"b": 1}}', "a a.b"),
    "a.yaml": ("a:\n  b: 1\n  'c': {d: 1}\nl:\n  - n: 1\n  - n: 2\n", "a a.b a.c a.c.d l l.n l.n"),
    "a.toml": ('x = 1\n[a.b]\ny = 1\n[[t]]\n"z" = 2', "x a.b a.b.y t t.z"),
    "a.html": ('<html><body><p>x</p><div class="a" id="m"><br></div></body></html>', "html html.body html.body.m"),
    "a.css": (
        ".a > b{}\n@media print { p {} }\n@keyframes k { from {} }",
        ".a_>_b @media_print @media_print.p @keyframes_k",
    ),
    "a.sql": ("CREATE TABLE s.t (id INT);\nCREATE VIEW v AS SELECT 1;\nSELECT 1;", "s.t s.t.id v"),
    "a.sh": ("f() { echo; }\nfunction g { x=1; }", "f g"),
    "a.md": ("# A\n\n## B c\n\n```\n# no\n```\n\nD\n===\n", "A A.B_c D"),
}


def only(text: str, language: str) -> Symbol:
    seen = survey(text, language)
    assert seen is not None
    return seen.symbols[0]


@pytest.mark.parametrize(("path", "source"), SOURCES.items())
def test_definitions_are_named_with_their_scopes(path: str, source: tuple[str, str]) -> None:
    text, names = source
    found = survey(text, find_language(path))
    assert found is not None
    assert [symbol.name.replace(" ", "_") for symbol in found.symbols] == names.split()
    assert count_errors(text, find_language(path)) == 0


def test_every_grammar_has_a_source_here() -> None:
    assert {find_language(path) for path in SOURCES} == set(GRAMMARS)


@pytest.mark.parametrize(
    ("path", "text", "kinds"),
    [
        ("a.py", "def f():\n  def g(): ...\nclass A:\n  def m(self): ...\n", "function function class method"),
        (
            "a.ts",
            "interface I { a(): void }\nclass A { m() {} }\nconst f = () => 1;",
            "interface method class method function",
        ),
        (
            "a.rs",
            "trait T { fn a(&self); }\nimpl T for S { fn a(&self) {} }\nfn f() {}",
            "trait method impl method function",
        ),
        ("a.rb", "module M\n  def f; end\nend\ndef g; end", "module method function"),
        ("a.toml", "[a]\nx = 1", "table key"),
        ("a.sql", "CREATE TABLE t (id INT);\nCREATE INDEX i ON t (id);", "table column index"),
    ],
)
def test_definitions_have_kinds(path: str, text: str, kinds: str) -> None:
    seen = survey(text, find_language(path))
    assert seen is not None
    assert [symbol.kind for symbol in seen.symbols] == kinds.split()


@pytest.mark.parametrize(
    ("language", "text", "extent"),
    [
        # (doc_line, first_line, name_line, body_line, end_line)
        ("python", "x = 1\n# c\n@a\n@b(\n1)\ndef f(\n  x,\n):\n  # c\n  return 1\n\n\ny = 1\n", (1, 2, 5, 8, 10)),
        ("python", "def f(): return 1\n", (0, 0, 0, 0, 1)),
        ("typescript", "/** d */\nexport const f = async () => {\n  1;\n};\n", (0, 1, 1, 2, 4)),
        ("typescript", "@A({})\n@B()\nexport class A\n{\n  x;\n}\n", (0, 0, 2, 4, 6)),
        ("rust", "#[a]\n/// d\n#[b]\nfn f()\nwhere T: X\n{\n  1\n}\n", (0, 2, 3, 6, 8)),
        ("java", "// c\n\n@A\nclass X\n  extends Y {\n}\n", (2, 2, 3, 5, 6)),
        ("csharp", "/// d\n[A]\npublic int F() => 1;\n", (0, 1, 2, 2, 3)),
        ("ruby", "# d\nclass A < B\n\n  x\nend\n", (0, 1, 1, 2, 5)),
        ("go", "// d\ntype T struct {\n  a int\n}\n", (0, 1, 1, 2, 4)),
        ("cpp", "template <class T>\nclass A {\n};\n", (0, 0, 1, 2, 3)),
        ("json", '{\n  "a": [\n    1\n  ]\n}\n', (1, 1, 1, 2, 4)),
        ("yaml", "a: &x\n\n  b: 1\n\nc: 1\n", (0, 0, 0, 1, 3)),
        ("yaml", "a: 1\n", (0, 0, 0, None, 1)),
        ("toml", "# d\n[a]\nb = 1\n\n[c]\n", (0, 1, 1, 2, 3)),
        ("html", '<p\n id="a">\n text\n</p>\n', (0, 0, 1, 2, 4)),
        ("css", "a,\nb {\n c: d\n}\n", (0, 0, 0, 2, 4)),
        ("bash", "#!/bin/sh\nf() {\n  x\n}\n", (1, 1, 1, 2, 4)),
        ("markdown", "# A\n\ntext\n\n## B\n\ntext\n\n# C\n", (0, 0, 0, 1, 7)),
        ("markdown", "A\n===\n\ntext\n", (0, 0, 0, 2, 4)),
    ],
)
def test_definitions_have_extents(language: str, text: str, extent: tuple[int | None, ...]) -> None:
    found = only(text, language)
    assert (found.doc_line, found.first_line, found.name_line, found.body_line, found.end_line) == extent


def test_overloads_stay_apart_and_point_to_their_parent() -> None:
    seen = survey("class A {\n int f(int a) { return 1; }\n int f(long a) { return 2; }\n}\n", "java")
    assert seen is not None
    assert [(symbol.name, symbol.first_line, symbol.parent, symbol.depth) for symbol in seen.symbols] == [
        ("A", 0, -1, 0),
        ("A.f", 1, 0, 1),
        ("A.f", 2, 0, 1),
    ]


def test_errors_have_lines() -> None:
    seen = survey("x = 1\ny = = 2\n", "python")
    assert seen is not None
    assert seen.error_lines == (1,)


def test_well_known_names_have_a_language() -> None:
    names = {"Gemfile": "ruby", "home/.bashrc": "bash", "Cargo.lock": "toml", "a/Rakefile": "ruby", "x.jsonc": "json"}
    assert {name: find_language(name) for name in names} == names
    assert find_language("C:\\x\\A.PY") == "python"
    assert {find_language(name) for name in ("Makefile", "Dockerfile", ".gitignore", "a.txt", "")} == {None}


def test_unknown_languages_and_huge_texts_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survey("a", None) is None
    assert count_errors("a", "cobol") is None
    monkeypatch.setattr(syntax, "MAX_BYTES", 10)
    assert survey("x = 1\n" * 10, "python") is None


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("yaml", "- " * 600),  # overflows a buffer of the scanner
        ("yaml", "".join(" " * depth + "- a:\n" for depth in range(600))),
        ("html", "<!--" * 20_000),  # each is looked for to the end of the text
        ("python", "(" * 50_000),  # one error node with all of them
        ("json", '{"a":' * 50_000),
    ],
)
def test_garbage_that_would_crash_or_hang_a_parser_is_not_read(language: str, text: str) -> None:
    assert survey(text, language) is None


class CountedWork:
    """Counts how often parsers ask whether to go on: about once in a hundred steps of theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        monkeypatch.setattr(syntax, "Parser", self._parser)

    def _parser(self, language: Language) -> CountedWork:
        self._real = Parser(language)
        return self

    def parse(
        self, read: Callable[[int, object], memoryview], *, progress_callback: Callable[[int, bool], bool]
    ) -> Tree:
        def counted(offset: int, has_error: bool) -> bool:
            self.calls += 1
            return progress_callback(offset, has_error)

        return self._real.parse(read, progress_callback=counted)


@pytest.mark.parametrize("look", [survey, list_nodes])
def test_error_recovery_that_takes_the_square_of_a_text_is_given_up(
    look: Callable[[str, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clear_caches()
    work = CountedWork(monkeypatch)
    text = "<!--" * 3_000  # five calls a byte in all
    assert look(text, "python") is None
    assert 500 < work.calls < 500 + len(text) // 9


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_broken_programs_take_a_tenth_of_the_work_that_they_may(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    language, random = find_language(f"a.{suffix}"), Random(suffix)
    work = CountedWork(monkeypatch)
    data = source(suffix, 40)
    for _ in range(6):
        data = edited(data, random)
        work.calls = 0
        assert (survey(data.decode(), language) is None) == (language is None)
        assert work.calls < 50 + len(data) // 50


def test_deep_nesting_is_read_to_a_depth() -> None:
    seen = survey('{"a":' * 40_000 + "1" + "}" * 40_000, "json")
    assert seen is not None
    assert 50 < len(seen.symbols) < 1_000
    assert max(len(symbol.name) for symbol in seen.symbols) < 200


@pytest.mark.parametrize(
    ("one", "other", "language", "equal"),
    [
        ("if a:\n    b()\n    c()\n", "if a:\n  b()\n\n  c()", "python", True),
        ("if a:\n    b()\n    c()\n", "if a:\n    b()\nc()\n", "python", False),
        ("f(a, b)\n", "f(a,\n  b)\n", "python", True),
        ("f(a, b)\n", "f(a, c)\n", "python", False),
        ('x = "a b"\n', 'x = "a  b"\n', "python", False),
        ('x = "a \\n b"\n', 'x = "a \\n  b"\n', "python", False),
        ("f(`a ${b} c`);\n", "f(`a ${b}  c`);\n", "typescript", False),
        ("f( a );\n\n\ng();\n", "f(a); g();\n", "typescript", True),
        ("f(); // one\n", "f(); // two\n", "typescript", False),
    ],
)
def test_nodes_are_equal_where_only_white_space_without_meaning_differs(
    one: str, other: str, language: str, equal: bool
) -> None:
    assert (list_nodes(one, language) == list_nodes(other, language)) is equal


def test_no_nodes_without_a_grammar_or_of_too_large_a_text() -> None:
    assert list_nodes("a", None) is None
    assert list_nodes("#" * (MAX_BYTES + 1), "python") is None


def test_nothing_of_a_parsed_text_stays_in_memory() -> None:
    text = "def f(x):\n    return x\n" * 200
    assert bytes_kept(syntax, lambda: list_nodes(text, "python"), times=40) < 2_000


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_a_guard_for_cpp_in_a_header_is_no_syntax_error(language: str) -> None:
    begins = '#ifdef __cplusplus\nextern "C" {\n#endif\n'
    ends = "#if defined(__cplusplus)\n}\n#endif\n"
    declared = "enum { A, B };\nint start(const char *);\n"
    header = f"#ifndef H\n#define H\n{begins}{declared}{ends}#endif\n"
    assert count_errors(header, language) == 0
    assert count_errors(header.replace(ends, ""), language) != 0
    assert count_errors(header.replace(begins, ""), language) != 0
    assert count_errors(header.replace("start(", "start(("), language) != 0
