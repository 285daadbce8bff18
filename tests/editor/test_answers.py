"""Chat answers: the lines of the file are read, and talk, fences, names and calls around them are not."""

from __future__ import annotations

from contextlib import suppress

import pytest

from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.formats.answers import read_answer
from editor.formats.markup import find_kind, is_label
from editor.grammars import find_language
from editor.merge import merge
from editor.types import FormatName, Merged, Sketch, Unresolved

DOCKERFILE = "FROM python:3.12\nEXPOSE 80\n"
PYTHON = "import os\n\nprint(os.getpid())\n"
INSTALL = "Install with the following command:\n\n```bash\npip install x\n```\n"
README = "# Tool\n\nUse it:\n\n```\ntool run\n```\n\nDone.\n"
RUST = "/*!\nA crate.\n\n```\nlet x = 1;\n```\n*/\nfn f() {}\n"


def refused(edit: str, path: str, format_name: FormatName | None = None) -> str:
    with pytest.raises(EditSyntaxError) as fault:
        parse(edit, format_name or "auto", path)
    assert fault.value.suggestion
    return fault.value.message


@pytest.mark.parametrize("format_name", ["whole", "lazy"])
@pytest.mark.parametrize(
    ("path", "text", "edit", "prose"),
    [
        ("Dockerfile", DOCKERFILE, "```dockerfile\n{}```\n\nThe port is open now.\n", "The port is open now."),
        ("Dockerfile", DOCKERFILE, "I opened the port.\n\n```dockerfile\n{}```\n", "I opened the port."),
        ("Dockerfile", DOCKERFILE, "Dockerfile\n```dockerfile\n{}```\n", "Dockerfile"),
        ("Dockerfile", DOCKERFILE, "**Dockerfile**\n\n```\n{}```\n", "**Dockerfile**"),
        ("Dockerfile", DOCKERFILE, "### Dockerfile\n\n```dockerfile\n{}```\n", "### Dockerfile"),
        ("Dockerfile", DOCKERFILE, "Here it is:\n\n```\n{}```\n\nChanges:\n- opened a port\n", None),
        (
            "Dockerfile",
            DOCKERFILE,
            "One.\nTwo.\nThree.\nFour.\nFive.\n\n```\n{}```\n",
            "One.\nTwo.\nThree.\nFour.\nFive.",
        ),
        ("x.py", PYTHON, "x.py\n```python\n{}```\n", "x.py"),
        ("x.py", PYTHON, "Sure! I've added it.\n\n~~~py\n{}~~~\n", "Sure! I've added it."),
        ("src/x.py", PYTHON, "```python src/x.py\n{}```\nIt prints the id.", "It prints the id."),
        ("x.py", PYTHON, "Done.\n```python\n{}```\nRun it:\n```bash\npython x.py\n```\n", None),
        ("x.py", PYTHON, "1. Change the file:\n\n   ```python\n   {}   ```\n", "1. Change the file:"),
        ("x.py", PYTHON, "**x.py**\n\n{}", "**x.py**"),
        ("x.py", PYTHON, "```python\n{}```\n", ""),
        ("x.py", PYTHON, "````\n```python\n{}```\n````\n", ""),
        ("requirements.txt", "flask\npytest\n", "pytest is in now.\n```\n{}```\n", "pytest is in now."),
        ("notes.txt", "a\nb\n", "I added b.\n\n```\n{}```\n", "I added b."),
        ("README.md", "# T\n\ntext\n", "I've updated the README.\n\n```markdown\n{}```\n", "I've updated the README."),
        ("README.md", README, "```markdown\n{}```\n", ""),
        ("README.md", README, "Here is the updated README:\n\n````md\n{}````\nBye.\n", None),
        ("x.rs", RUST, "{}", ""),
        ("x.rs", RUST, "```rust\n{}```\n", ""),
    ],
)
def test_the_text_is_the_inside_of_the_fence(
    format_name: FormatName, path: str, text: str, edit: str, prose: str | None
) -> None:
    shown = text.replace("\n", "\n   ").removesuffix("   ") if "   {}" in edit else text
    parsed = parse(edit.replace("{}", shown), format_name, path)
    assert isinstance(parsed.changes, Sketch)
    assert parsed.changes.blocks == (tuple(text.removesuffix("\n").split("\n")),)
    if prose is not None:
        assert parsed.prose == prose


@pytest.mark.parametrize("format_name", ["whole", "lazy"])
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("install.md", INSTALL),
        ("install.md", "```bash\npip install x\n```\n"),
        ("README.md", README),
        ("README.md", "# T\n\nI use this:\n\n```markdown\n# Title\n```\n\n## More\n"),
        ("x.rs", RUST),
        ("x.py", '"""Doc.\n\n```\nx\n```\n"""\nimport os\n'),
        ("test_x.py", 'edit = """\nHere it is:\n\n```text\nx\n"""\n'),
        ("x.js", "const t = `\n```\ncode\n```\n`;\n"),
        (".dockerignore", ".dockerignore\nDockerfile\n"),
        ("x.html", "<content>\n<p>Here is it.</p>\n</content>\n"),
        ("x.py", '"""Doc.\n\nThis adds two numbers, and no more.\n"""\nimport os\n'),
        ("LICENSE", "The license of the new version is this.\n\nAll of it.\n"),
    ],
)
def test_fences_of_the_file_stay(format_name: FormatName, path: str, text: str) -> None:
    parsed = parse(text, format_name, path)
    assert parsed.new_lines == tuple(text.removesuffix("\n").split("\n"))
    assert parsed.prose == ""


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("notes.txt", "Notes\n\n```\nx\n```\n\nmore\n"),
        ("README.md", "Here is an example:\n\n```markdown\n# T\n```\n"),
        ("README.md", "I updated the file.\n\n```sh\nmake\n```\n"),
        ("README.md", "Here it is.\n\n```\nmake\n```\n"),
        ("requirements.txt", "flask\n+pytest\n"),
        ("README.md", "# Docs\n\nThis is the new version of the docs:\n\n```markdown\n# T\n```\n"),
        ("x.py", "I did it.\n\n```python\na = 1\n```\n\n```python\nb = 2\n```\n"),
        ("x.py", "import os\n```python\na = 1\n```\n"),
        ("x.py", "Run it:\n```bash\npython x.py\n```\n"),
        ("x.py", "The config:\n```yaml\na: 1\n```\n"),
        ("x.py", "```python\na = 1\n"),
        ("x.py", "a = 1\n```\n"),
        ("README.md", "```markdown\n# T\n"),
        ("x.py", "Here is the file:\n\na = 1\n"),
        ("Dockerfile", "FROM x\n\nThis uses x now.\n"),
        ("x.py", "<think>\nHm.\n</think>\n\na = 1\n"),
        ("Main.kt", "f()\n\nChanges made:\n- calls f\n"),
        ("Main.kt", "f()\n\n---\nI changed the number.\n"),
        ("Main.kt", "f()\n\nLet me know if you need anything else!\n"),
        (".env", "A=1\nB=3\n\nB is 3 now.\n"),
        ("notes.txt", "x\ny\n\nI added y.\n"),
        ("README.md", "Here's the updated README:\n\n# T\n"),
        ("Main.kt", '<file path="Main.kt">\nf()\n</file>\n'),
        ("Main.kt", "<updated-code>\nf()\n</updated-code>\n"),
        ("Main.kt", "cat > Main.kt <<'EOF'\nf()\nEOF\n"),
        ("a.ini", 'write_file(path="a.ini", content="x=2")\n'),
        ("x.yaml", "<write_to_file>\n<path>x.yaml</path>\n<content>\na: 2\n</content>\n</write_to_file>"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(path: str, edit: str) -> None:
    assert refused(edit, path, "whole")


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("x.py", "```diff\na = 1\n+b = 2\n```\n"),
        ("a.js", "```diff\n// ... existing code ...\nfunction f() {\n+  log();\n}\n```\n"),
        ("requirements.txt", "flask\n+pytest\n"),
        ("a.md", "# T\n\nfoo\n+new text\nbar\n"),
        ("x.py", "3c3\n< c = 3\n---\n> c = 30\n"),
        ("x.py", "*** x.py\n--- x.py\n***************\n*** 1,3 ****\n"),
        ("x.py", "<<<<<<< HEAD\na = 1\n=======\na = 2\n>>>>>>> branch\n"),
        (
            "x.py",
            "I changed it.\n```python\na = 1\n```\n   <<<<<<< SEARCH\n   b\n   =======\n   c\n   >>>>>>> REPLACE\n",
        ),
    ],
)
def test_another_kind_of_edit_is_no_snippet(path: str, edit: str) -> None:
    assert refused(edit, path, "lazy")


def test_a_diff_may_hold_lines_with_signs() -> None:
    assert parse("+++ b/x\n+new\n", "lazy", "changes.patch").new_lines == ("+++ b/x", "+new")
    text = "const diff = `\n+new\n`;\n"
    for name in ("lazy", "whole"):
        assert parse(text, name, "x.test.ts").new_lines == tuple(text.split("\n")[:-1])  # type: ignore[arg-type]


def test_several_fences_are_parts_of_one_snippet() -> None:
    edit = (
        "Import it:\n\n```ts\nimport a from 'a'\nimport b from 'b'\n```\n\nand use it:\n\n"
        "```ts\nfunction f() {\n  // ... existing code ...\n  b()\n}\n```\n\nThat is all."
    )
    parsed = parse(edit, path="src/x.ts")
    assert parsed.changes == Sketch(
        (("import a from 'a'", "import b from 'b'"), ("function f() {",), ("  b()", "}")),
        opens_elided=True,
        closes_elided=True,
        marker_indents=((), (), ("  ",), ()),
        fences=(0, 1, 1),
    )
    assert [line for line in parsed.prose.split("\n") if line] == ["Import it:", "and use it:", "That is all."]
    assert parsed.detected.startswith("2 code fences")


def test_placeholders_around_a_fence_are_those_of_the_snippet() -> None:
    parsed = parse("// ... existing code ...\n```ts\nconst a = 1\n```\n// ... existing code ...\n", path="x.ts")
    assert parsed.changes == Sketch((("const a = 1",),), True, True, marker_indents=(("",), ("",)))


def test_a_fence_for_another_file_is_refused() -> None:
    edit = "**app.py**\n```python\na = 1\n```\n\n**utils.py**\n```python\nb = 1\n```\n"
    with pytest.raises(EditSyntaxError, match=r"other files: utils\.py") as fault:
        parse(edit, path="app.py")
    assert fault.value.code == "several_files"


@pytest.mark.parametrize(
    "edit",
    [
        "Remove the call of `b`, and add this:\n\n```python\nimport os\nimport sys\n```\n\n```python\nx = 1\n```\n",
        "Change this:\n\n```python\nx = 1\n```\n\nto:\n\n```python\ny = 2\nz = 3\n```\n",
    ],
)
def test_what_only_the_prose_says_is_not_left_out_for_certain(edit: str) -> None:
    original = "import os\nx = 1\nz = 3\n\n\ndef f():\n    a()\n    b()\n"
    outcome = merge(original, parse(edit, path="x.py"), find_language("x.py"))
    assert isinstance(outcome, Unresolved), outcome


def test_a_chat_answer_for_a_new_file_is_the_file() -> None:
    parsed = parse("I'll create the file.\n\n```python\nprint(1)\n```\n\nIt prints 1.\n", path="x.py")
    assert merge("", parsed) == Merged("print(1)\n", "anchored")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("x.py", "code"),
        ("Dockerfile", "code"),
        ("requirements-dev.txt", "code"),
        ("notes.txt", "text"),
        ("LICENSE", "text"),
        ("docs/a.mdx", "markdown"),
        ("package.json", "json"),
        ("config.json.example", "json"),
        (".firebaserc", "json"),
        ("fix.patch", "patch"),
        ("", "unknown"),
    ],
)
def test_kinds_of_files(path: str, kind: str) -> None:
    assert find_kind(path) == kind


@pytest.mark.parametrize("name", ["self.items", "App.add", "Node.js", "os.path", "this.state", "v1.beta"])
def test_labels(name: str) -> None:
    assert is_label(name)


@pytest.mark.parametrize(
    "name", ["x.py", "src/a.unknown", ".env", "Makefile", "app.config.js", "main.tf", "a.gradle.kts"]
)
def test_file_names(name: str) -> None:
    assert not is_label(name)


@pytest.mark.parametrize(
    "edit",
    [
        "```markdown\n" + "x\n\n```\ny\n" * 4000,
        "```\n" * 20_001,
        "I did.\n" * 20_000 + "```python\nx\n```\n",
        '```python\n"""\n' + "```\n" * 10_000,
        "`" * 50_000 + "\n",
        "a" * 100_000 + "\n```python\nx\n```\n",
    ],
)
@pytest.mark.parametrize("path", ["x.py", "x.md", ""])
def test_long_answers_are_read_or_refused(edit: str, path: str) -> None:
    """Their work is linear: with quadratic work this would not end."""
    lines = edit.split("\n")
    with suppress(EditSyntaxError):
        assert sum(map(len, read_answer(lines, path, whole=True).parts)) <= len(lines)
