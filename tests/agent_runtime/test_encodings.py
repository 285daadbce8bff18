"""Files in other encodings, through the real command line and the real service: every byte outside the edit stays."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.client import Client
from agent_runtime.types import ApplyRequest, PatchRequest
from tests.agent_runtime.cli.test_cli import hunk
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import hunk_here, serving

TEXT = "# café, naïve\r\ntimeout_seconds = 10\nname = 'é'"
EDITED = TEXT.replace("timeout_seconds = 10", "timeout_seconds = 30")
BLOCK = "<<<<<<< SEARCH\ntimeout_seconds = 10\n=======\ntimeout_seconds = 30\n>>>>>>> REPLACE\n"
KINDS = {
    "utf-8": (b"", "utf-8"),
    "utf-8 with BOM": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be": (codecs.BOM_UTF16_BE, "utf-16-be"),
    "utf-32-le": (codecs.BOM_UTF32_LE, "utf-32-le"),
    "Windows-1252": (b"", "cp1252"),
    "Shift-JIS": (b"", "latin-1"),
}


def encoded(kind: str, text: str) -> bytes:
    mark, encoding = KINDS[kind]
    if kind == "Shift-JIS":
        return text.replace("café, naïve", "設定ファイル").replace("é", "設定値").encode("shift-jis")
    return mark + text.encode(encoding)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(ScriptedMerger()) as url:
        yield url


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("remote", [False, True], ids=["here", "service"])
def test_the_file_comes_back_in_its_encoding(tmp_path: Path, url: str, kind: str, remote: bool) -> None:
    file = tmp_path / "settings.py"
    file.write_bytes(encoded(kind, TEXT))
    where = ["--url", url] if remote else []
    done = hunk_here("apply", file, "--edit", "-", "--write", "--json", *where, stdin=BLOCK)
    assert done.exit_code == 0, done.exception
    assert file.read_bytes() == encoded(kind, EDITED)
    answer = json.loads(done.stdout)
    assert answer["encoding"] == KINDS[kind][1]
    assert answer["merged"].encode(answer["encoding"]) == encoded(kind, EDITED)
    assert answer["sha256_before"] == sha256(encoded(kind, TEXT)).hexdigest()
    assert answer["sha256_after"] == sha256(encoded(kind, EDITED)).hexdigest()


def test_a_utf16_file_is_edited_by_the_command_as_it_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "settings.py"
    file.write_bytes(encoded("utf-16-le", TEXT))
    done = hunk("apply", file, "--edit", "-", "--write", stdin=BLOCK)
    assert (done.returncode, "+timeout_seconds = 30" in done.stdout) == (0, True)
    assert file.read_bytes() == encoded("utf-16-le", EDITED)


@pytest.mark.parametrize("kind", KINDS)
def test_the_client_gives_the_bytes_to_write(url: str, kind: str) -> None:
    original = encoded(kind, TEXT)
    with Client(url) as client:
        one = client.apply(ApplyRequest(original, BLOCK, path="a.py"))
        many = client.apply_patch(PatchRequest("a.py\n" + BLOCK), {"a.py": original}.get)
    assert one.file.data == many.file.data == encoded(kind, EDITED)
    assert one.file.sha256_before == many.file.sha256_before == sha256(original).hexdigest()


def test_what_the_encoding_cannot_express_is_refused_and_nothing_written(tmp_path: Path) -> None:
    file = tmp_path / "settings.py"
    file.write_bytes(encoded("Windows-1252", TEXT))
    done = hunk("apply", file, "--edit", "-", "--write", stdin=BLOCK.replace("30", "30  # 設定"))
    assert done.returncode == 2
    assert "Windows-1252" in done.stderr
    assert file.read_bytes() == encoded("Windows-1252", TEXT)
