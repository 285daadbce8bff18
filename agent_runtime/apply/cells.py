"""Applies edits of a Jupyter notebook to the text of its cells, as the people and models that write them see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent_runtime.apply.result import decode, encode_merged, make_refusal, make_version, render_file_diff
from agent_runtime.errors import BadFile, EditRefused, ModelUnavailable
from agent_runtime.types import ApplyRequest, FileResult, Reason
from editor.codec import SourceText
from editor.notebook import CellsChangedError, Notebook, parse_notebook

SUFFIX = ".ipynb"

QUOTES_JSON = ('"cell_type"', '"source"')
"""An edit that has one of these is of the notebook's JSON."""


@dataclass(frozen=True, slots=True)
class NotebookRequest:
    """An edit of a notebook: `cells` is the same edit of the text of its cells."""

    request: ApplyRequest
    cells: ApplyRequest
    source: SourceText
    notebook: Notebook

    def build_result(self, made: FileResult) -> FileResult:
        """Return the result for the notebook, given that for its cells; outputs and metadata keep their bytes.

        Raises EditRefused if the edit changes which cells there are, BadFile if the file cannot have the text.
        """
        request, path = self.request, self.request.path
        before = make_version(request.original, self.source)
        if made.merged == self.notebook.text:
            after = before
        else:
            try:
                raw = self.notebook.replace_text(made.merged)
            except CellsChangedError as fault:
                suggestion = "Send an edit within one cell, or one of the notebook's JSON."
                reason = f"Only the text of cells can be edited, and {fault}."
                raise make_refusal([Reason("open_intent", reason, suggestion=suggestion, path=path)]) from None
            after = encode_merged(raw, self.source, by_model=False)
        return replace(
            made,
            path=path,
            merged=after.text or "",
            diff=render_file_diff(before.text, after.text, path) if made.status != "noop" else "",
            sha256_before=before.sha256,
            sha256_after=after.sha256,
            encoding=self.source.encoding,
            base_sha256=make_version(request.base, self.source).sha256 if made.base_sha256 and request.base else "",
        )


@contextmanager
def name_notebooks() -> Iterator[None]:
    """Have the reasons of a refusal name the notebook, not the text of its cells."""
    try:
        yield
    except (EditRefused, ModelUnavailable) as fault:
        fault.reasons = tuple(replace(reason, path=_strip_extension(reason.path)) for reason in fault.reasons)
        raise


def _strip_extension(path: str) -> str:
    head, suffix, extension = path.rpartition(SUFFIX)
    return head + suffix if suffix and f"{suffix}{extension}".count(".") == 2 else path


def read_notebook(request: ApplyRequest) -> NotebookRequest | None:
    """Return the edit as one of the cells; None if the file is no notebook, or the edit is one of its JSON."""
    if not request.path.lower().endswith(SUFFIX) or any(quoted in request.edit_text for quoted in QUOTES_JSON):
        return None
    try:
        source = decode(request.original, request.path)
        base = None if request.base is None else parse_notebook(decode(request.base, request.path).text)
    except BadFile:
        return None
    notebook = parse_notebook(source.text)
    if notebook is None or (base is None) != (request.base is None):
        return None
    old = None if base is None else base.text.encode()
    cells = replace(request, original=notebook.text.encode(), base=old, path=request.path + notebook.extension)
    return NotebookRequest(request, cells, source, notebook)
