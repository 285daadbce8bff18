"""The chat template renders what transformers renders from the same file, and cannot leave its sandbox."""

from __future__ import annotations

from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from agent_runtime.errors import CorruptModel
from agent_runtime.prompt.chat_template import ChatTemplate
from tests.models import real_model

CONVERSATIONS = {
    "one question": [{"role": "user", "content": "Hi"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\n"},
        {"role": "user", "content": "  c\n\n"},
    ],
    "awkward text": [
        {"role": "system", "content": ""},
        {"role": "user", "content": "<|im_end|>\n{{ x }} {% if %} <b>&amp;</b> 'q' \"é\" \ue0f0\r\n"},
    ],
    "ends with the assistant": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
}


def stored_template(path: Path) -> str:
    """The template of a GGUF file, without reading its vocabulary: key, type 8 (string), length, text."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as raw:
        at = raw.find(b"tokenizer.chat_template") + len(b"tokenizer.chat_template")
        length = int.from_bytes(raw[at + 4 : at + 12], "little")
        return raw[at + 12 : at + 12 + length].decode()


def reference() -> PreTrainedTokenizerFast:
    """A tokenizer of transformers that is only there for its template machinery."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("ready_for_answer", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_catalogue_templates_render_as_in_transformers(name: str, conversation: str, ready_for_answer: bool) -> None:
    source, messages = stored_template(real_model(name).path), CONVERSATIONS[conversation]
    assert "<|im_start|>" in source
    expected = reference().apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=ready_for_answer
    )
    assert ChatTemplate(source).render(messages, add_generation_prompt=ready_for_answer) == expected
    assert messages[-1]["content"].strip() in expected


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {% if loop.last %}{{ m.content }}{% break %}{% endif %}\n{% endfor %}\nend",
        "{{ bos_token }}{{ messages[0]['content'] | trim }}{{ eos_token }}",
        "{%- if tools %}T{% endif %}{% if not tools is defined %}U{% endif %}{{ messages | length }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    ],
)
def test_what_templates_use_works_as_in_transformers(source: str) -> None:
    messages = CONVERSATIONS["turns"]
    expected = reference().apply_chat_template(messages, chat_template=source, tokenize=False)
    ours = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert ours.render(messages, add_generation_prompt=False) == expected


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages[", "{% endfor %}", "{{ x | no_such_filter }}"])
def test_a_broken_template_is_a_corrupt_model(source: str) -> None:
    with pytest.raises(CorruptModel, match="not valid Jinja"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_a_template_that_reaches_out_is_refused(source: str) -> None:
    with pytest.raises(CorruptModel):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ range(10 ** 9) | list }}", "{% include 'x' %}", "{{ 'a' + 1 }}"])
def test_a_template_that_fails_is_a_corrupt_model(source: str) -> None:
    with pytest.raises(CorruptModel, match="cannot be rendered"):
        ChatTemplate(source).render([])


def test_tojson_writes_json_and_does_not_escape_for_html() -> None:
    template = ChatTemplate("{{ messages[0] | tojson }}")
    assert (
        template.render([{"role": "user", "content": "a < b & 'é'"}]) == '{"role": "user", "content": "a < b & \'é\'"}'
    )


def test_a_template_may_refuse_messages_by_itself() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(CorruptModel, match="roles must alternate"):
        template.render([])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
        "{% for a in [1] recursive %}{{ loop(range(99999)) }}{% endfor %}",
        "{{ 9 ** 999999999 }}",
        "{{ messages|length ** 999999999 }}",
        "{{ 'a' * 99999999999 }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
def test_one_that_does_not_end_is_given_up(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.prompt.chat_template.RENDER_SECONDS", 0.1)
    with pytest.raises(CorruptModel, match="the model's chat template"):
        ChatTemplate(source).render([{"role": "user", "content": "Hi"}] * 3)
