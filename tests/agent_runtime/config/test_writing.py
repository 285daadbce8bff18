"""The file that `hunk config init` writes sets nothing as it is, and every default when its marks are taken away."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agent_runtime.config import Settings, resolve
from agent_runtime.config.settings import SETTINGS
from agent_runtime.config.sources import render_template


def test_the_render_template_sets_nothing(tmp_path: Path) -> None:
    assert tomllib.loads(render_template()) == {}


def test_each_line_can_be_taken_in(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+ = \S.*)$", r"\1", render_template(), flags=re.MULTILINE)
    file = tmp_path / "config.toml"
    file.write_text(text)
    chosen = resolve({}, config=file)
    assert chosen.values == Settings()
    in_file = {name for name, origin in chosen.origins.items() if origin.layer == "file"}
    assert in_file == {each.name for each in SETTINGS.values() if each.default is not None}


def test_every_setting_stands_in_it_with_its_help() -> None:
    text = re.sub(r"\n# (?!\w+ =)", " ", render_template())
    for each in SETTINGS.values():
        assert each.help in text
        assert f"# {each.name} =" in text
