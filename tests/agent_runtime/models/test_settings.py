"""The environment says where models lie and which sources are tried; a bad value stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runtime.errors import BadRequest
from agent_runtime.models.config import ModelSettings


def test_defaults_follow_the_xdg_specification(tmp_path: Path) -> None:
    assert ModelSettings.from_env({"XDG_CACHE_HOME": str(tmp_path)}) == ModelSettings(tmp_path / "hunk")
    assert ModelSettings.from_env({"XDG_CACHE_HOME": "relative"}) == ModelSettings.from_env({})
    assert ModelSettings.from_env({}).sources == ("hub", "registry")


def test_own_variables_win(tmp_path: Path) -> None:
    environ = {"HUNK_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/x", "HUNK_MODEL_SOURCES": "registry, hub"}
    assert ModelSettings.from_env(environ) == ModelSettings(tmp_path, ("registry", "hub"))


@pytest.mark.parametrize("value", ["", "mirror", "hub,hub", "hub,mirror", " , "])
def test_bad_sources_stop(value: str) -> None:
    with pytest.raises(BadRequest, match=r"HUNK_MODEL_SOURCES.*hub, registry") as caught:
        ModelSettings.from_env({"HUNK_MODEL_SOURCES": value})
    assert caught.value.field == "HUNK_MODEL_SOURCES"


def test_a_prompt_form_is_one_that_there_is() -> None:
    assert ModelSettings.from_env({}).prompt_form is None, "the catalogue decides"
    assert ModelSettings.from_env({"HUNK_PROMPT_FORM": "tags"}).prompt_form == "tags"
    with pytest.raises(BadRequest, match=r"HUNK_PROMPT_FORM is 'tag': give one of tags, ") as caught:
        ModelSettings.from_env({"HUNK_PROMPT_FORM": "tag"})
    assert caught.value.field == "HUNK_PROMPT_FORM"


def test_cache_that_is_no_folder_stops(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for value in (str(file), ""):
        with pytest.raises(BadRequest, match="HUNK_CACHE"):
            ModelSettings.from_env({"HUNK_CACHE": value})
