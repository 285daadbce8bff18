"""Settings: each value comes from its default, the file, the environment or a flag; the template of the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.config import Settings, resolve
from agent_runtime.config.settings import SETTINGS
from agent_runtime.config.sources import render_template
from agent_runtime.errors import BadRequest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_without_file_and_environment_all_is_default(tmp_path: Path) -> None:
    chosen = resolve({"XDG_CONFIG_HOME": str(tmp_path)})
    assert chosen.values == Settings()
    assert {str(origin) for origin in chosen.origins.values()} == {"default"}
    assert chosen.file.path == tmp_path / "hunk" / "config.toml"


def test_each_layer_is_stronger_than_the_one_before(file: Path) -> None:
    file.write_text('# mine\nport = 1\nhost = "10.0.0.1"\n\nmodel = "a"\ncontext = 512\n')
    environ = {"HUNK_CONFIG": str(file), "HUNK_PORT": "2", "HUNK_MODEL": "b"}
    chosen = resolve(environ, {"model": "c"})
    values = chosen.values
    assert (values.context, values.host, values.port, values.model) == (512, "10.0.0.1", 2, "c")
    assert values.dtype == "auto"
    places = {name: str(chosen.origins[name]) for name in ("dtype", "context", "host", "port", "model")}
    assert places == {
        "dtype": "default",
        "context": f"{file}:6",
        "host": f"{file}:3",
        "port": "HUNK_PORT",
        "model": "--model",
    }
    assert {name for name in SETTINGS if chosen.has_flag(name)} == {"model"}


def test_every_kind_of_value_is_read_from_a_file_and_from_the_environment(file: Path) -> None:
    file.write_text(
        'root = "src"\nwatch = false\ndeadline = 3\nallow_host = ["a", "b"]\nport = 9\ndtype = "float32"\n'
        'model_sources = ["registry"]\nspan_memory = 0.5\n'
    )
    from_file = resolve({}, config=file).values
    variables = {"ROOT": f"{file.parent}/src", "WATCH": "no", "DEADLINE": "3", "ALLOW_HOST": "a, b", "PORT": "9"}
    variables |= {"DTYPE": "float32", "MODEL_SOURCES": "registry", "SPAN_MEMORY": "0.5", "CONFIG": ""}
    from_environ = resolve({f"HUNK_{name}": value for name, value in variables.items()}).values
    assert from_file == from_environ
    assert from_file == Settings(
        root=file.parent / "src",
        watch=False,
        deadline=3.0,
        allow_host=("a", "b"),
        port=9,
        dtype="float32",
        model_sources=("registry",),
        span_memory=0.5,
    )


def test_an_empty_variable_takes_away_what_the_file_says(file: Path) -> None:
    file.write_text('url = "http://127.0.0.1:1"\nallow_host = ["a"]\n')
    values = resolve({"HUNK_URL": "", "HUNK_ALLOW_HOST": ""}, config=file).values
    assert (values.url, values.allow_host) == (None, ())


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("port = 70000", 3, ["port is 70000", "a whole number from 0 to 65535"]),
        ("port = true", 3, ["port is True", "a whole number"]),
        ('port = "80"', 3, ["port is '80'", "a whole number"]),
        ("port = 80.0", 3, ["port is 80.0"]),
        ("watch = 1", 3, ["watch is 1", "true or false"]),
        ("deadline = inf", 3, ["deadline is inf", "a number of at least 0.1"]),
        ("kv_gib = -1", 3, ["kv_gib is -1"]),
        ('dtype = "float64"', 3, ["dtype is 'float64'", "one of auto, bfloat16, float16, float32"]),
        ('allow_host = "a"', 3, ["allow_host is 'a'", "a list, each a text"]),
        ("allow_host = [1]", 3, ["allow_host is [1]"]),
        ('root = ""', 3, ["root is ''", "a path"]),
        ("root = 1979-05-27", 3, ["root is ", "a path"]),
        ("model.name = 'x'", 3, ["model is {'name': 'x'}", "a text"]),
        ("prot = 1", 3, ["no setting 'prot'", "did you mean port?"]),
        ("max-num-seqs = 1", 3, ["no setting 'max-num-seqs'", "did you mean max_num_seqs?"]),
        ("[serve]\nport = 1", 3, ["no setting 'serve'"]),
        ("colour = 'red'", 3, ["no setting 'colour'", "hunk config show"]),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(file: Path, text: str, line: int, words: list[str]) -> None:
    file.write_text(f"# mine\n\n{text}\n")
    with pytest.raises(BadRequest) as caught:
        resolve({"HUNK_CONFIG": str(file)})
    for word in [f"{file}:{line}: ", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HUNK_PORT", "tcp://10.0.0.1:8311", ["HUNK_PORT is 'tcp://10.0.0.1:8311'", "from 0 to 65535"]),
        ("HUNK_PORT", "", ["HUNK_PORT is ''"]),
        ("HUNK_WATCH", "perhaps", ["true or false"]),
        ("HUNK_DEADLINE", "nan", ["a number of at least 0.1"]),
        ("HUNK_MODEL_SOURCES", "hub,disk", ["HUNK_MODEL_SOURCES", "one of hub, registry"]),
        ("HUNK_PROT", "1", ["HUNK_PROT is no setting", "did you mean HUNK_"]),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, value: str, words: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        resolve({"HUNK_CONFIG": "", name: value})
    for word in words:
        assert word in str(caught.value)


def test_variables_that_are_like_none_of_ours_are_passed_over() -> None:
    assert resolve({"HUNK_CONFIG": "", "HUNK_SERVICE_NAMES_OF_OTHERS": "x"}).values == Settings()


def test_a_bad_secret_is_not_repeated(file: Path) -> None:
    file.write_text('token = ["very secret"]\n')
    with pytest.raises(BadRequest) as caught:
        resolve({}, config=file)
    assert "very" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "word"), [(b"port = \n", "not TOML"), (b"a = '\xff'", "byte 5"), (b"x" * (1 << 21), "over 1,024 KiB")]
)
def test_a_file_that_is_none_is_refused(file: Path, data: bytes, word: str) -> None:
    file.write_bytes(data)
    with pytest.raises(BadRequest, match=word):
        resolve({}, config=file)


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    for chosen in ({"environ": {"HUNK_CONFIG": str(tmp_path / "none")}}, {"environ": {}, "config": tmp_path / "none"}):
        arguments: dict[str, Any] = chosen
        with pytest.raises(BadRequest, match="there is no configuration file"):
            resolve(**arguments)
    with pytest.raises(BadRequest, match="cannot read"):
        resolve({}, config=tmp_path)


def test_a_line_is_told_only_where_it_is_sure(file: Path) -> None:
    file.write_text('model = """\nport = 1\n"""\nport = 70000\n')
    with pytest.raises(BadRequest) as caught:
        resolve({}, config=file)
    assert str(caught.value).startswith(f"{file}: port is 70000")


def test_every_setting_has_a_group_a_help_and_words_for_none() -> None:
    for each in SETTINGS.values():
        assert each.help.endswith("."), each.name
        assert each.default is not None or each.unset, each.name
        assert each.is_list or each.default is None or each.parse_text(str(each.default)) == each.default


def test_the_commented_file_sets_nothing(tmp_path: Path) -> None:
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
