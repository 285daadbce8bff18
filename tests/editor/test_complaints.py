"""What users of other editing tools complain of, one test a complaint, each with its thread.

The threads are those of the project's survey of its peers. Quotes are from the threads; where a thread could not be
read again, the complaint stands as the survey lists it ("as listed").
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import Stale
from agent_runtime.workspace.workspace import replace_file
from editor import codec
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.types import AlreadyApplied, Check, FormatName, Merged, MergeOutcome, Unresolved
from editor.verify import verify

PYTHON = """import os
import sys

LIMIT = 10


def first(path):
    with open(path) as file:
        data = file.read()
    return data.strip()


def second(path):
    return os.path.basename(path)


def third():
    return sys.argv[:LIMIT]
"""


def outcome(original: str, edit: str, format_name: FormatName) -> MergeOutcome:
    """Parse and merge; an edit that cannot be read is a refusal as well."""
    try:
        return merge(original, parse(edit, format_name), "python")
    except EditSyntaxError as error:
        return Unresolved(error.code, error.message, suggestion=error.suggestion)


def merged(original: str, edit: str, format_name: FormatName) -> Merged:
    """Parse, merge and verify an edit that has to be certain."""
    found = outcome(original, edit, format_name)
    assert isinstance(found, Merged), found
    return found


def best(original: str, edit: str, format_name: FormatName) -> str:
    """Return the merged text, or the first of the candidates where the intent is open; '' if there is none."""
    found = outcome(original, edit, format_name)
    if isinstance(found, Merged):
        return found.text
    return found.candidates[0].text if isinstance(found, Unresolved) and found.candidates else ""


def merged_bytes(data: bytes, edit: str, format_name: FormatName) -> bytes:
    source = codec.decode(data)
    return codec.encode(merged(source.text, edit, format_name).text, source, by_model=False)


def refused(original: str, edit: str, format_name: FormatName) -> Unresolved:
    found = outcome(original, edit, format_name)
    assert isinstance(found, Unresolved), found
    return found


def failed_checks(original: str, result: str, edit: str, format_name: FormatName, path: str = "x.py") -> list[str]:
    checks: tuple[Check, ...] = verify(original, result, parse(edit, format_name), find_language(path))
    return [check.name for check in checks if not check.ok]


def block(before: str, after: str) -> str:
    return f"<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n"


def replacement(old: str, new: str) -> str:
    return json.dumps({"old_text": old, "new_text": new})


class TestUnreferencedCodeDropped:
    """Code that the edit does not mention is gone afterwards."""

    def test_a_docstring_leaves_the_body_continue_4126(self) -> None:
        """https://github.com/continuedev/continue/issues/4126

        "Code will be deleted when writing a doc string": 'after the "with" statement, there is no more code'.
        """
        marker = "# ... existing code ...\n"
        edit = f'{marker}\ndef first(path):\n    """Read a file."""\n    with open(path) as file:\n{marker}'
        expected = PYTHON.replace("def first(path):\n", 'def first(path):\n    """Read a file."""\n')
        assert best(PYTHON, edit, "lazy") == expected

    def test_functions_that_are_not_shown_stay_continue_8087(self) -> None:
        """https://github.com/continuedev/continue/issues/8087

        As listed: unreferenced code dropped.
        """
        marker = "# ... existing code ...\n"
        edit = f"{marker}\ndef second(path):\n    return os.path.dirname(path)\n\n{marker}"
        assert best(PYTHON, edit, "lazy") == PYTHON.replace("basename", "dirname")

    def test_imports_that_are_not_shown_stay_opencode_morph_fast_apply_5(self) -> None:
        """https://github.com/JRedeker/opencode-morph-fast-apply/issues/5

        "import blocks that appear between the old code and the nearest `// ... existing code ...` marker can be
        silently dropped".
        """
        edit = "# ... existing code ...\n\ndef third():\n    return sys.argv[1:LIMIT]\n"
        assert best(PYTHON, edit, "lazy") == PYTHON.replace("argv[:LIMIT]", "argv[1:LIMIT]")
        lost = PYTHON.removeprefix("import os\nimport sys\n\n").replace("argv[:LIMIT]", "argv[1:LIMIT]")
        assert "elided_lines_kept" in failed_checks(PYTHON, lost, edit, "lazy")


class TestPlaceholdersWrittenAsCode:
    """`... existing code ...` ends up in the file."""

    def test_a_placeholder_among_the_new_lines_is_refused_cline_577(self) -> None:
        """https://github.com/cline/cline/issues/577

        As listed: placeholders written as code. In the same project, https://github.com/cline/cline/issues/534: "Cline
        Overwriting full code with # ... (keep the existing imports and other functions)".
        """
        edit = block("def third():\n    return sys.argv[:LIMIT]\n", "def third():\n    # ... rest of the code ...\n")
        assert refused(PYTHON, edit, "search_replace").code == "open_intent"

    def test_a_placeholder_in_a_whole_file_is_no_code_aider_350(self) -> None:
        """https://github.com/Aider-AI/aider/issues/350

        As listed: placeholders written as code.
        """
        edit = "import os\nimport sys\n\nLIMIT = 20\n\n# ... rest of the code remains the same ...\n"
        found = outcome(PYTHON, edit, "lazy")
        assert not isinstance(found, Merged) or found.text == PYTHON.replace("LIMIT = 10", "LIMIT = 20")
        assert "marker_leak" in failed_checks(PYTHON, edit, edit, "lazy")

    def test_only_new_placeholders_are_refused_qwen_code_2575(self) -> None:
        """https://github.com/QwenLM/qwen-code/issues/2575

        "Models (especially under context pressure) sometimes replace actual code with shorthand placeholders" ...
        "only blocks NEW placeholders not present in the original".
        """
        edit = replacement("    return sys.argv[:LIMIT]\n", "    # (rest of code ...)\n")
        found = outcome(PYTHON, edit, "replace")
        leaks = isinstance(found, Merged) and failed_checks(PYTHON, found.text, edit, "replace") == []
        assert not leaks
        documented = PYTHON.replace("LIMIT = 10\n", "LIMIT = 10\n# ... existing code ...\n")
        edit = replacement("LIMIT = 10\n# ... existing code ...\n", "LIMIT = 20\n# ... existing code ...\n")
        assert merged(documented, edit, "replace").text == documented.replace("10", "20")


class TestWrongPlaceOrSilentFuzzyMatch:
    """A near-miss is taken for a match, and nobody is told."""

    def test_equal_first_and_last_lines_are_no_match_opencode_2433(self) -> None:
        """https://github.com/anomalyco/opencode/issues/2433

        "Often Claude will try to make a string replacement with an incorrect search string and opencode will accept
        the search string anyway and cause a syntax error".
        """
        original = "function a() {\n  one();\n  two();\n  three();\n}\n\nfunction b() {\n  one();\n}\n"
        edit = block("function a() {\n  something();\n  else();\n}\n", "function a() {\n  new();\n}\n")
        found = refused(original, edit, "search_replace")
        assert found.code == "not_found"
        assert "1" in found.nearest

    def test_the_answer_says_how_the_place_was_found_opencode_44999(self) -> None:
        """https://github.com/anomalyco/opencode/issues/44999

        "success gives no signal whether oldString matched exactly or via fuzzy fallback".
        """
        exact = block("    return os.path.basename(path)\n", "    return os.path.dirname(path)\n")
        shifted = block("return os.path.basename(path)\n", "return os.path.dirname(path)\n")
        assert merged(PYTHON, exact, "search_replace").rung == "exact"
        assert merged(PYTHON, shifted, "search_replace").rung == "reindent"
        assert merged(PYTHON, exact, "search_replace").text == merged(PYTHON, shifted, "search_replace").text


class TestLineEndingsAndByteOrderMarks:
    """CRLF becomes LF, a BOM gets lost, another encoding is turned into UTF-8."""

    def test_a_patch_keeps_crlf_codex_4003(self) -> None:
        """https://github.com/openai/codex/issues/4003

        "When codex makes changes to files, it does not adhere to the line endings in the file but appears to alway
        use Unix-style LF".
        """
        edit = "*** Begin Patch\n*** Update File: x.txt\n@@\n one\n-two\n+2\n+2.5\n three\n*** End Patch\n"
        assert merged_bytes(b"one\r\ntwo\r\nthree\r\n", edit, "v4a") == b"one\r\n2\r\n2.5\r\nthree\r\n"

    def test_other_encodings_are_edited_codex_21164(self) -> None:
        """https://github.com/openai/codex/issues/21164

        "Currently apply_patch fails on non UTF-8 encoded files".
        """
        edit = block("größe = 1\n", "größe = 2\n")
        for encoding in ("latin-1", "utf-16"):
            data = "# Maß\r\ngröße = 1\r\n".encode(encoding)
            assert merged_bytes(data, edit, "search_replace") == "# Maß\r\ngröße = 2\r\n".encode(encoding)

    def test_bom_and_crlf_stay_together_claude_code_28831(self) -> None:
        """https://github.com/anthropics/claude-code/issues/28831

        As listed: CRLF and BOM. In the same project, https://github.com/anthropics/claude-code/issues/19565: "My files
        originally had CRLF line endings. When Claude Code edits files using Edit/Write tools, they're saved with LF
        endings".
        """
        data = "\ufeffone\r\ntwo\r\n".encode()
        assert merged_bytes(data, block("one\n", "1\n"), "search_replace") == "\ufeff1\r\ntwo\r\n".encode()


class TestLookAlikeCharacters:
    """A model writes a space for an NBSP, and straight quotes for curly ones."""

    def test_an_nbsp_is_found_and_kept_claude_code_29870(self) -> None:
        """https://github.com/anthropics/claude-code/issues/29870

        'The Edit tool fails with "String to replace not found in file" when the target file contains non-breaking
        spaces (U+00A0'.
        """
        original = "the task list in\u00a0current use\nand\u00a0more\n"
        edit = block("the task list in current use\n", "the task list in current use today\n")
        found = merged(original, edit, "search_replace")
        assert found.rung == "folded"
        assert found.text == "the task list in\u00a0current use today\nand\u00a0more\n"

    def test_curly_quotes_stay_curly_claude_code_26141(self) -> None:
        """https://github.com/anthropics/claude-code/issues/26141

        "When the model's `new_string` contains Unicode characters like curly quotes (`U+201C`, `U+201D`), they are
        silently downgraded to ASCII equivalents".
        """
        original = "She said, “Hello.”\n\nHe replied, “Goodbye.”\n"
        edit = block('She said, "Hello."\n', 'She said, "Hi there."\n')
        assert merged(original, edit, "search_replace").text == original.replace("Hello", "Hi there")
        sent = block("He replied, “Goodbye.”\n", "He replied, “So long – and thanks.”\n")
        assert "“So long – and thanks.”" in merged(original, sent, "search_replace").text


class TestIndentation:
    """New lines land at the wrong depth."""

    OUTER = (
        'class Outer:\n    def method(self):\n        self.kept = "unchanged"\n        self.target_a = "before"\n'
        '        self.target_b = "before"\n        self.kept_2 = "unchanged"\n'
    )

    def test_a_first_line_without_its_indent_zed_60302(self) -> None:
        """https://github.com/zed-industries/zed/issues/60302

        "Agent tool `edit_file` corrupts multi-line `new_text` indentation" (the thread's own reproduction.
        """
        old = 'self.target_a = "before"\n        self.target_b = "before"'
        edit = replacement(old, old.replace("before", "after"))
        assert merged(self.OUTER, edit, "replace").text == self.OUTER.replace("before", "after")

    def test_an_unindented_block_is_shifted_to_the_file_continue_11282(self) -> None:
        """https://github.com/continuedev/continue/issues/11282

        "I found that indentation issues are very frequent in Python code modification tools".
        """
        edit = block(
            'self.target_a = "before"\nself.target_b = "before"\n',
            'if True:\n    self.target_a = "x"\nself.target_b = "y"\n',
        )
        found = merged(self.OUTER, edit, "search_replace")
        assert '        if True:\n            self.target_a = "x"\n        self.target_b = "y"\n' in found.text


class TestRetryLoopsAndPoorErrors:
    """The error does not help, so the same edit comes again."""

    WRONG = block("def second(path):\n    return os.path.base_name(path)\n", "def second(path):\n    return path\n")

    def test_an_error_shows_the_place_and_the_way_out_cline_4384(self) -> None:
        """https://github.com/cline/cline/issues/4384

        "Models get stuck in infinite retry loops, burning through tokens and API costs"; wanted are "Better error
        messages showing exact mismatch locations".
        """
        found = refused(PYTHON, self.WRONG, "search_replace")
        assert "basename" in found.nearest
        assert "13" in found.nearest
        assert found.suggestion
        assert len(found.reason + found.nearest + found.suggestion) < 1500

    def test_the_same_edit_again_is_told_from_a_miss_gemini_cli_4576(self) -> None:
        """https://github.com/google-gemini/gemini-cli/issues/4576

        "it should provide a clear, non-looping error message, allowing the agent to re-evaluate the file content and
        adjust its approach".
        """
        edit = block("    return os.path.basename(path)\n", "    return os.path.dirname(path)\n")
        once = merged(PYTHON, edit, "search_replace").text
        assert isinstance(outcome(once, edit, "search_replace"), AlreadyApplied)

    def test_of_many_blocks_the_failing_one_is_named_aider_4098(self) -> None:
        """https://github.com/Aider-AI/aider/issues/4098

        As listed: retry loops and poor errors. In the same project, https://github.com/Aider-AI/aider/issues/942: "the
        search and replace repeats infinitely until stopped by CTRL+C".
        """
        fine = block("LIMIT = 10\n", "LIMIT = 20\n")
        found = refused(PYTHON, fine + self.WRONG, "search_replace")
        assert "Block 2 of 2" in found.reason


class TestOrderPartialLinesAndFinalNewline:
    """Blocks in another order, half a line, the newline at the end."""

    def test_blocks_may_come_in_any_order_cline_4067(self) -> None:
        """https://github.com/cline/cline/issues/4067

        "the model provided `SEARCH`/`REPLACE` blocks in an order that did not match their appearance in the target
        file".
        """
        edit = block("def third():\n", "def last():\n") + block("LIMIT = 10\n", "LIMIT = 20\n")
        expected = PYTHON.replace("third", "last").replace("= 10", "= 20")
        assert merged(PYTHON, edit, "search_replace").text == expected

    def test_a_last_line_cut_short_is_refused_and_shown_cline_11439(self) -> None:
        """https://github.com/cline/cline/issues/11439

        "replace_in_file says SEARCH block does not match when displayed text exists as a partial-line match" (the
        thread's own example.
        """
        original = (
            "            g_audioFeatures[0].dominantFreq = live.dominantFreq;\n        }\n\n"
            "        // Build tree spheres with CONTINUOUS time + live audio (no jerk)\n"
        )
        start = original.removesuffix(" with CONTINUOUS time + live audio (no jerk)\n") + "\n"
        edit = block(start, start.replace("live.dominantFreq", "1.0"))
        found = outcome(original, edit, "search_replace")
        assert not isinstance(found, Merged)
        assert isinstance(found, Unresolved)
        assert "with CONTINUOUS time + live audio (no jerk)" in found.nearest

    @pytest.mark.parametrize("end", ["", "\n"])
    def test_the_final_newline_stays_as_it_was_cline_11439(self, end: str) -> None:
        """https://github.com/cline/cline/issues/11439

        As listed: final newline.
        """
        assert merged(f"a = 1\nb = 2{end}", block("b = 2\n", "b = 3\n"), "search_replace").text == f"a = 1\nb = 3{end}"


class TestFileEmptiedOrTruncated:
    """The file is shorter than it should be, or empty."""

    def test_a_miss_changes_nothing_cline_9555(self) -> None:
        """https://github.com/cline/cline/issues/9555

        "the tool empties the file (sets content to empty string) instead of leaving the file unchanged".
        """
        edit = block("gem 'rails', '~> 7.0'\n", "gem 'rails', '~> 7.1'\n")
        found = refused("source 'https://rubygems.org'\ngem 'puma'\n", edit, "search_replace")
        assert all(candidate.text for candidate in found.candidates)
        assert isinstance(outcome("", edit, "search_replace"), Unresolved)

    def test_a_file_that_loses_its_end_is_rejected_kilocode_3312(self) -> None:
        """https://github.com/Kilo-Org/kilocode/issues/3312

        "Fatal: Kilo Code Truncates Files During Editing": "Loss of file content that wasn't included in the rewrite".
        """
        original = PYTHON + "".join(f"\n\ndef more_{number}():\n    return {number}\n" for number in range(20))
        cut = original[: len(original) // 3].rpartition("\n")[0] + "\n"
        found = outcome(original, cut, "whole")
        assert not isinstance(found, Merged) or failed_checks(original, found.text, cut, "whole")


class TestStaleOrConcurrentWrites:
    """Somebody else changed the file in between."""

    def test_a_file_that_changed_is_not_overwritten_claude_code_43138(self, tmp_path: Path) -> None:
        """https://github.com/anthropics/claude-code/issues/43138

        "An agent writing a file should NEVER be able to overwrite content that was modified after the agent's initial
        read".
        """
        file = tmp_path / "i18n.js"
        file.write_bytes(b"a = 1\n")
        read = sha256(file.read_bytes()).hexdigest()
        file.write_bytes(b"a = 1\nb = 2\n")
        with pytest.raises(Stale):
            replace_file(file, b"a = 3\n", expected_sha256=read)
        assert file.read_bytes() == b"a = 1\nb = 2\n"

    def test_old_lines_that_no_longer_stand_are_refused_qwen_code_3839(self) -> None:
        """https://github.com/QwenLM/qwen-code/issues/3839

        "`Edit` and `WriteFile` will happily overwrite a file that's changed under them, no error".
        """
        edit = block("LIMIT = 10\n\n\ndef first(path):\n", "LIMIT = 11\n\n\ndef first(path):\n")
        changed = PYTHON.replace("LIMIT = 10", "LIMIT = 99")
        assert not isinstance(outcome(changed, edit, "search_replace"), Merged | AlreadyApplied)


class TestHtmlEscapes:
    """`&lt;` in the edit arrives as `<` in the file."""

    PAGE = "<p>Tom &amp; Jerry &lt;3 &apos;cheese&apos;</p>\n<p>a & b</p>\n"

    @pytest.mark.parametrize("format_name", ["search_replace", "replace", "udiff", "whole"])
    def test_entities_are_written_as_sent_roo_code_10804(self, format_name: FormatName) -> None:
        """https://github.com/RooCodeInc/Roo-Code/issues/10804

        "Roo Code keeps replacing them on save".
        """
        old, new = "<p>a & b</p>\n", "<p>a &amp; b &lt; c &apos;</p>\n"
        expected = self.PAGE.replace(old, new)
        edits: dict[str, str] = {
            "search_replace": block(old, new),
            "replace": replacement(old, new),
            "udiff": f"--- a/x.html\n+++ b/x.html\n@@ -2 +2 @@\n-{old}+{new}",
            "whole": expected,
        }
        assert merged(self.PAGE, edits[format_name], format_name).text == expected

    def test_decoded_entities_are_another_text_cline_7698(self) -> None:
        """https://github.com/cline/cline/issues/7698

        "it converts HTML entities to their actual symbols".
        """
        edit = block("<p>Tom & Jerry <3 'cheese'</p>\n", "<p>Tom & Jerry</p>\n")
        assert not isinstance(outcome(self.PAGE, edit, "search_replace"), Merged)
        found = merged(self.PAGE, block("<p>a & b</p>\n", "<p>b & a</p>\n"), "search_replace")
        assert "Tom &amp; Jerry &lt;3 &apos;cheese&apos;" in found.text
