"""What a request asks for is done with the very bytes whose hash was looked at."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import ModelUnavailable, Stale
from agent_runtime.request_context import CancelToken, RequestContext
from agent_runtime.server.routes.apply import apply_body
from agent_runtime.server.schemas import ApplyBody, FileBody
from agent_runtime.workspace.workspace import Workspace, write_if_merged

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 3\n b = 2\n"
HASH = sha256(FILE.encode()).hexdigest()
OTHER = FILE + "c = 3\n"

BODIES = [
    ApplyBody(path="a.py", edit=BLOCK, expected_sha256=HASH, write=True),
    ApplyBody(files=[FileBody(path="a.py", edit=BLOCK, expected_sha256=HASH)], write=True),
    ApplyBody(files=[FileBody(path="a.py", expected_sha256=HASH)], edit=DIFF, write=True),
]


class Changing(Workspace):
    """Another program writes the file just behind the first time that it is read."""

    def read(self, path: str) -> bytes:
        data = super().read(path)
        (self.root / path).write_text(OTHER)
        return data


def no_model() -> NoReturn:
    raise ModelUnavailable("there is none")


@pytest.mark.parametrize("body", BODIES)
def test_a_file_that_changes_behind_its_hash_is_neither_merged_nor_written(tmp_path: Path, body: ApplyBody) -> None:
    (tmp_path / "a.py").write_text(FILE)
    workspace = Changing(tmp_path)
    result = apply_body(Applier(no_model), workspace, body, RequestContext())
    assert (result.file.sha256_before, result.file.merged) == (HASH, "a = 3\nb = 2\n")
    with pytest.raises(Stale):
        write_if_merged(workspace, result, CancelToken())
    assert (tmp_path / "a.py").read_text() == OTHER
