"""A folder of each family is opened as a user's would be: config, weights, tokenizer, chat template, edits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import LoadOptions, ModelSettings, Quantize
from agent_runtime.prompt.chat_template import ChatTemplate, render_frame
from agent_runtime.wiring import open_merger, open_model
from engine.decoder import Decoder
from engine.families import FAMILIES as ARCHITECTURES
from engine.layers.linear import find_int8_step
from engine.types import GenerationRequest
from engine.weights import Parameters, save_folder
from tests.engine.tiny import FAMILIES, tiny_config, tiny_parameters
from tests.repo_cache.test_piece_tokenizer import write_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
    "<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)


def write_byte_tokenizer(folder: Path) -> None:
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_folder(folder: Path, family: str) -> Parameters:
    is_gemma = family.startswith("gemma")
    if is_gemma:
        write_tokenizer(folder)
    else:
        write_byte_tokenizer(folder)
    vocab_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    parameters = tiny_parameters(tiny_config(**FAMILIES[family], vocab_size=vocab_size, max_positions=8192))
    save_folder(parameters, folder)
    tokens = {"eos_token": "<eos>", "bos_token": "<bos>"} if is_gemma else {"eos_token": "<|im_end|>"}
    tokens["chat_template"] = GEMMA if is_gemma else CHATML
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return parameters


@torch.inference_mode()
def write_greedily(model: Decoder, prompt: list[int], num_tokens: int) -> list[int]:
    caches, written = model.new_caches(1, len(prompt) + num_tokens), list(prompt)
    for _ in range(num_tokens):
        hidden = model.forward(torch.tensor(written[caches[0].lengths[0] :]), caches)
        written.append(int(model.logits(hidden[-1:]).argmax()))
    return written[len(prompt) :]


def test_every_family_has_a_small_config() -> None:
    assert {tiny_config(**changes).architecture for changes in FAMILIES.values()} == ARCHITECTURES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_a_family_writes_what_its_weights_say(family: str, tmp_path: Path) -> None:
    parameters = write_folder(tmp_path, family)
    settings = ModelSettings.from_env(os.environ | {"HUNK_CACHE": str(tmp_path / "cache")})
    loaded = open_model(str(tmp_path), settings, LoadOptions(context=512, dtype="float32", quantize="none"))
    prompt = loaded.text.tokenizer.encode("def f(items):\n    return ")
    try:
        found = loaded.engine.run(GenerationRequest(prompt=prompt, max_new_tokens=16))
    finally:
        loaded.engine.close()
    assert list(found.token_ids) == write_greedily(Decoder(parameters), prompt, 16)


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("family", ["qwen3 moe", "gemma2", "gemma3"])
def test_an_edit_is_put_to_it_and_what_it_writes_is_checked(family: str, quantize: Quantize, tmp_path: Path) -> None:
    """A random model writes no merge: it is refused. Gemma's template knows no system message."""
    if quantize == "int8" and find_int8_step() is None:
        pytest.skip("this torch has no exact products of bytes")
    from agent_runtime.apply.pipeline import Applier
    from agent_runtime.types import ApplyRequest

    write_folder(tmp_path, family)
    settings = ModelSettings.from_env(os.environ | {"HUNK_CACHE": str(tmp_path / "cache")})
    merger = open_merger(str(tmp_path), settings, LoadOptions(context=8192, quantize=quantize))
    original = b"def f(x):\n    return x\n\n\ndef g(x):\n    return f(x) + 1\n"
    edit = "def g(x):\n    # ... existing code ...\n    y = f(x)\n    # ...\n"
    try:
        answer = Applier(lambda: merger).apply(ApplyRequest(original=original, edit=edit, mode="model"))
    finally:
        merger.close()
    assert answer.status != "applied"


def test_a_system_message_that_a_template_refuses_goes_before_the_question() -> None:
    template = ChatTemplate(GEMMA, bos_token="<bos>")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    expected = "<bos><start_of_turn>user\nBe brief.\n\nWhy?<end_of_turn>\n<start_of_turn>model"
    assert template.render(messages) == expected
    assert render_frame(template, ["system", "user"]) == [
        "<bos><start_of_turn>user\n",
        "\n\n",
        "<end_of_turn>\n<start_of_turn>model",
    ]


def test_the_end_of_a_turn_of_gemma_ends_its_answer(tmp_path: Path) -> None:
    write_folder(tmp_path, "gemma3")
    settings = ModelSettings.from_env(os.environ | {"HUNK_CACHE": str(tmp_path / "cache")})
    loaded = open_model(str(tmp_path), settings, LoadOptions(context=256))
    loaded.engine.close()
    tokenizer = loaded.text.tokenizer
    assert {tokenizer.get_control_id(name) for name in ("<eos>", "<end_of_turn>")} == loaded.text.stop_ids


def test_a_model_without_memory_for_it_is_refused_with_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, "qwen3")
    monkeypatch.setattr("engine.weights.memory.get_free_bytes", lambda device: 1000)
    settings = ModelSettings.from_env(os.environ | {"HUNK_CACHE": str(tmp_path / "cache")})
    with pytest.raises(ModelUnavailable, match=r"cannot be loaded: there is no memory for 0\.0 GB of weights"):
        open_model(str(tmp_path), settings, LoadOptions(context=256))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (LoadOptions(context=256, kv_gib=1e9), r"no memory for \d+\.\d GB of KV; lower --kv-gib or --context$"),
        (LoadOptions(context=256, span_gib=1e9), r"no memory for \d+\.\d GB of stored KV; lower --span-memory$"),
        (LoadOptions(context=256, span_gib=1e-9), r"the KV of a token takes \d+; raise --span-memory$"),
    ],
)
def test_what_is_too_large_is_named_and_nothing_else(tmp_path: Path, options: LoadOptions, said: str) -> None:
    write_folder(tmp_path, "qwen3")
    settings = ModelSettings.from_env(os.environ | {"HUNK_CACHE": str(tmp_path / "cache")})
    with pytest.raises(ModelUnavailable, match=said):
        open_model(str(tmp_path), settings, options)
