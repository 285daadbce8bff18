"""A file without a name is named by its language where its grammar proves it, and not otherwise."""

from __future__ import annotations

import pytest

from agent_runtime.server.openai.requests import MAX_CHARACTERS, guess_file_name

SAMPLES = {
    "file.py": "import os\n\n\ndef size(path):\n    return os.stat(path).st_size  # bytes\n",
    "file.ts": "import { log } from './log';\n\nexport function log2(value: number): number {\n  return 2;\n}\n",
    "file.tsx": "import React from 'react';\n\nexport function Hello() {\n  return <b>Hello</b>;\n}\n",
    "file.go": 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hello")\n}\n',
    "file.rs": "use std::fs;\n\npub fn size(path: &str) -> u64 {\n    fs::metadata(path).unwrap().len()\n}\n",
    "file.cpp": "#include <vector>\n\nint first(const std::vector<int>& all) {\n  return all.front();\n}\n",
    "file.cs": "using System;\n\nnamespace Shop {\n    class Cart {\n        int Total() { return 1; }\n    }\n}\n",
    "file.java": "package shop;\n\npublic class Cart {\n    int total() {\n        return 1;\n    }\n}\n",
    "file.php": "<?php\n\nfunction twice($value) {\n    return $value * 2;\n}\n",
    "file.rb": "def twice(value)\n  value * 2\nend\n",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_language_is_told_by_the_text(name: str) -> None:
    assert guess_file_name(SAMPLES[name]) == name
    assert guess_file_name(SAMPLES[name].replace("\n", "\r\n")) == name


def test_javascript_counts_as_typescript() -> None:
    assert guess_file_name("function add(a, b) {\n  return a + b;\n}\n") == "file.ts"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "limit = 10\n",
        "# Notes\n\nclass Cart:\n\nis what we begin with, and then: nothing (yet.\n",
        "def broken(:\n    return\n",
        '{"function": "none"}\n',
        "def f():\n    pass\n" * (MAX_CHARACTERS // 10),
    ],
)
def test_a_text_that_proves_nothing_has_no_name(text: str) -> None:
    assert guess_file_name(text) == ""
