"""A large answer is written in steps: byte for byte what the encoder makes of it in one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import ModelUnavailable
from agent_runtime.serialization import result_to_json
from agent_runtime.server import responses
from agent_runtime.server.responses import BLOCK_CHARACTERS, encode_in_steps, encode_result
from agent_runtime.types import ApplyRequest

LONG = st.text(st.sampled_from('a"\\\n\x01é漢😀\u2028'), min_size=1).map(lambda text: text * BLOCK_CHARACTERS)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | LONG,
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
)
def test_a_value_is_encoded_as_in_one_step(value: Any) -> None:
    assert encode_in_steps(value) == to_json(value)


def no_model() -> None:
    raise ModelUnavailable("there is none")


@pytest.mark.parametrize("num_lines", [10, 200_000])
def test_no_long_text_is_encoded_at_once(num_lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = "a = 1\n" + "é = '\\n'\n" * num_lines
    request = ApplyRequest(original.encode(), '{"old_string": "a = 1", "new_string": "a = 2"}', "a.txt")
    result = Applier(no_model).apply(request)  # type: ignore[arg-type]
    lengths = []

    def counted(value: Any) -> bytes:
        lengths.append(len(value) if isinstance(value, str) else len(str(value)))
        return to_json(value)

    monkeypatch.setattr(responses, "to_json", counted)
    assert encode_result(result).content == to_json(result_to_json(result))
    assert max(lengths) <= BLOCK_CHARACTERS
