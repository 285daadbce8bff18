"""A service to attack: its folders, its tokens, and a random model of two layers that is loaded at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agent_runtime.access import new_token
from agent_runtime.server.token_file import TokenFile
from benchmarks.serve.service import Running, serving

POLITE, ATTACKER = "polite", "attacker"
"""The tenants."""

MAX_CONNECTIONS = 200
"""Of the service: attackers take all of them without more open files than most systems let a process have."""

DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a service has its files, and the tokens of its tenants."""

    folder: Path
    tokens: dict[str, str]

    @property
    def root(self) -> Path:
        """Where it writes."""
        return self.folder / "root"

    @property
    def cache(self) -> Path:
        """What it keeps, its journals among it."""
        return self.folder / "cache"

    @contextmanager
    def serving(self, *options: str | Path, root: Path | None = None, cache: Path | None = None) -> Iterator[Running]:
        """A service of its own process; raises RuntimeError where it does not start, or end when it is told to."""
        limits = ("--max-connections", str(MAX_CONNECTIONS), "--drain", str(DRAIN_S))
        environ = {"HUNK_CACHE": str(cache or self.cache), "HUNK_CONFIG": ""}
        model = self.folder / "model"
        options = ("--tokens", self.folder / "tokens.json", *limits, *options)
        with serving(model, root or self.root, *options, environ=environ) as service:
            yield service

    @staticmethod
    def url(service: Running) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{service.port}"

    def client(self, service: Running) -> httpx.Client:
        """The polite tenant's."""
        headers = {"authorization": f"Bearer {self.tokens[POLITE]}"}
        return httpx.Client(base_url=self.url(service), headers=headers, timeout=30)


def make_setting(folder: Path) -> Setting:
    """Make all that a service needs in an empty folder."""
    for name in ("root", "cache", "model"):
        (folder / name).mkdir()
    file, tokens = TokenFile(folder / "tokens.json"), {}
    for tenant in (POLITE, ATTACKER):
        token, tokens[tenant] = new_token(tenant, tenant, frozenset(("admin",)), datetime.now(UTC))
        file.change(lambda known, token=token: known.with_token(token))  # type: ignore[misc]
    _make_model(folder / "model")
    return Setting(folder, tokens)


def _make_model(folder: Path) -> None:
    """Make a model that no request of this benchmark asks; the service wants one to start."""
    import torch  # takes a second to import

    from agent_runtime.models.bf16_copy import write_tokenizer_config
    from engine.config import ModelConfig
    from engine.weights import Parameters
    from engine.weights.safetensors import save_folder

    end = "<|im_end|>"
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    raw = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64}
    raw |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    raw |= {"vocab_size": len(alphabet) + 1, "max_position_embeddings": 32_768, "rope_theta": 10000.0}
    raw |= {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
    parameters = Parameters(ModelConfig.from_hf(raw), torch.float32)
    random = torch.Generator().manual_seed(0)
    for _, tensor in sorted(parameters.slots().items()):
        tensor.copy_(torch.empty(tensor.shape).normal_(1.0, 0.1, generator=random))
    save_folder(parameters, folder)
    template = "{% for message in messages %}{{ message['content'] }}" + end + "{% endfor %}"
    write_tokenizer_config(folder, chat_template=template, eos_token=end, bos_token="")
