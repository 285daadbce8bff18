"""Generated programs in many languages, and hostile edits of them."""

from __future__ import annotations

from random import Random

_PYTHON = '''
# What {n} stands for.
@decorated({n})
def function_{n}(argument, other={n}):
    """Docstring of {n}.

    More of it.
    """
    if argument > {n}:
        return [value * {n} for value in range(argument)]
    total = other + {n}

    for value in range(total):
        print(value, "text {n}", total - value)
    return total


'''
_JAVASCRIPT = """
// What {n} stands for.
export function name{n}(argument, other) {{
  const values = [1, 2, {n}];
  if (argument > {n}) {{
    return values.map((value) => value * {n});
  }}

  return `text ${{other}} {n}`;
}}
"""
_C = """
/* What {n} stands for. */
static int name_{n}(int argument, const char *other) {{
    int total = {n};
    for (int i = 0; i < argument; i++) {{
        total += i * {n};
    }}

    return total + other[0];
}}
"""
_METHOD = """
    /** What {n} stands for. */
    public int name{n}(int argument, String other) {{
        int total = {n};
        for (int i = 0; i < argument; i++) {{
            total += i * {n};
        }}

        return total + other.length();
    }}
"""
_GO = """
// Name{n} stands for something.
func Name{n}(argument int, other string) int {{
	total := {n}
	for i := 0; i < argument; i++ {{
		total += i * {n}
	}}

	return total + len(other)
}}
"""
_RUST = """
/// What {n} stands for.
#[inline]
pub fn name_{n}(argument: usize, other: &str) -> usize {{
    let mut total = {n};
    for i in 0..argument {{
        total += i * {n};
    }}

    total + other.len()
}}
"""
_RUBY = """
# What {n} stands for.
def name_{n}(argument, other)
  total = {n}
  argument.times do |i|
    total += i * {n}
  end

  total + other.size
end
"""
_PHP = """
/* What {n} stands for. */
function name_{n}($argument, $other) {{
    $total = {n};
    for ($i = 0; $i < $argument; $i++) {{
        $total += $i * {n};
    }}

    return $total + strlen($other);
}}
"""
_CSS = "\n/* {n} */\n.name-{n} > a:hover {{\n  color: #00{n};\n  margin: {n}px auto;\n}}\n"
_HTML = '<section id="s{n}">\n  <h2>Title {n}</h2>\n\n  <p class="c{n}">Text <b>{n}</b> and more.</p>\n</section>\n\n'
_YAML = "name_{n}:\n  # comment\n  key: value {n}\n  list:\n    - one\n    - {n}\n\n"
_JSON = '  "name_{n}": {{\n    "key": [1, 2, {n}],\n    "text": "value {n}"\n  }},\n'
_TOML = '[table.name_{n}]\nkey = "value"\nlist = [1, {n}]\n\n'
_SQL = "-- {n}\nCREATE TABLE name_{n} (\n  id INTEGER PRIMARY KEY,\n  value TEXT NOT NULL\n);\n\n"
_BASH = '# {n}\nname_{n}() {{\n  local value="$1"\n  if [ "$value" = {n} ]; then\n    echo "text {n}"\n  fi\n}}\n\n'
_MARKDOWN = "## Title {n}\n\nText of {n}, a line long.\n\n```python\nx = {n}\n\n# no heading\n```\n\n- one\n- {n}\n\n"

_PARTS = {
    "py": ("import os\nimport sys\n", _PYTHON, ""),
    "js": ('import x from "y";\n', _JAVASCRIPT, ""),
    "ts": ('import x from "y";\n', _JAVASCRIPT.replace("argument,", "argument: number,"), ""),
    "c": ("#include <stdio.h>\n", _C, ""),
    "cpp": ("namespace one {\n", _C, "}\n"),
    "java": ("package one;\n\npublic class Name {\n", _METHOD, "}\n"),
    "cs": ("namespace One {\npublic class Name {\n", _METHOD.replace("String", "string"), "}\n}\n"),
    "go": ("package one\n", _GO, ""),
    "rs": ("use std::fmt;\n", _RUST, ""),
    "rb": ("require 'x'\n", _RUBY, ""),
    "php": ("<?php\n", _PHP, ""),
    "css": ("", _CSS, ""),
    "html": ("<html><body>\n", _HTML, "</body></html>\n"),
    "yaml": ("---\n", _YAML, ""),
    "json": ("{\n", _JSON, '  "last": null\n}\n'),
    "toml": ("", _TOML, ""),
    "sql": ("", _SQL, ""),
    "sh": ("#!/bin/sh\n", _BASH, ""),
    "md": ("# Title\n\n", _MARKDOWN, ""),
    "txt": ("", "Paragraph {n}, of a line or\nof two lines.\n\n", ""),
}
SUFFIXES = tuple(_PARTS)

INSERTED = (
    *("", "\n", "\n\n", "\n\n\n", " ", "    ", "\t", "\r\n", '"""', "'", '"', "`", "\\"),
    *(
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ":",
        ";",
        ",",
        "#",
        "/*",
        "*/",
        "//",
        "--",
        "<!--",
        "-->",
        "<?php ",
        "?>",
    ),
    *(
        "def f():\n    return 1\n\n\n",
        "class A:\n    x = 1\n",
        "}\n\nfoo() {\n",
        "\n\nfoo\n\n",
        "x = 1\n",
        "- a: [1, 2]\n",
    ),
    *("é", "日本語", "😀", "<<EOF\n", "EOF\n", "```\n", "0" * 700, " " * 600, "\n" * 40, "if x:\n", "end\n", "<div>\n"),
)
"""What breaks syntax, moves blank lines or has no lines."""


def source(suffix: str, num_definitions: int) -> bytes:
    """A program of that many definitions."""
    head, part, tail = _PARTS[suffix]
    return (head + "".join(part.format(n=number) for number in range(num_definitions)) + tail).encode()


def edited(data: bytes, random: Random) -> bytes:
    """The text after one edit at a random place; it stays UTF-8."""
    text = data.decode()
    start = random.randrange(len(text) + 1)
    end = min(len(text), start + random.choice((0, 0, 0, 1, 5, 30, 300, 3000)))
    if random.random() < 0.3:  # whole lines
        start = text.rfind("\n", 0, start) + 1
        end = text.find("\n", end) + 1 or len(text)
    inserted = random.choice(INSERTED)
    if random.random() < 0.2:  # a part of itself
        start_of_part = random.randrange(len(text) + 1)
        inserted = text[start_of_part : start_of_part + random.randrange(400)]
    return (text[:start] + inserted + text[end:]).encode()
