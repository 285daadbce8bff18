"""Probes through the engine: a tiny random model, SmolLM2's tokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from benchmarks.reuse.quality import sources
from benchmarks.reuse.quality.layout import LaidOutProbe, lay_out
from benchmarks.reuse.quality.probes import make_probes
from benchmarks.reuse.quality.scoring import Scored, Scorer, modes, with_mode
from engine.reuse import Reuse
from tests.engine.tiny import tiny_decoder
from tests.models import RealModel

NUM_TOKENS = 12


@pytest.fixture(scope="module")
def text(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture(scope="module")
def scorer(text: TokenizerBundle) -> Scorer:
    decoder = tiny_decoder(vocab_size=len(text.tokenizer.token_bytes()), max_positions=4096)
    return Scorer(decoder, text, NUM_TOKENS)


@pytest.fixture(scope="module")
def probes(text: TokenizerBundle) -> list[LaidOutProbe]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "FEWEST_CHARS", 1500)
        patch.setattr(sources, "MOST_CHARS", 2500)
        return [lay_out(make_probes(kind, 1, seed=5)[0], text) for kind in ("default", "deleted", "repeat")]


SETTINGS = modes() | {
    "all": lambda probe: with_mode(Reuse("turbo", budget=1.0), probe),
    "asked": lambda probe: with_mode(Reuse("turbo", recompute=((probe.changed[1], probe.changed[1] + 40),)), probe),
}


@pytest.fixture(scope="module")
def scored(scorer: Scorer, probes: list[LaidOutProbe]) -> list[Scored]:
    found = [scorer.score(each, SETTINGS, with_noise=True) for each in probes]
    return [each for each in found if each is not None]


def test_running_all_is_the_full_recompute(scored: list[Scored]) -> None:
    assert len(scored) == 3
    for each in scored:
        assert each.by_setting["all"].divergence.kl.max() < 1e-6
        assert each.noise is not None
        assert each.noise.kl.max() < 1e-6
        assert each.by_setting["all"].num_run == each.num_prompt


def test_what_is_stale_is_far_off_and_approximations_are_between(scored: list[Scored]) -> None:
    for each in scored:
        turbo = each.by_setting["turbo"].divergence.kl.sum()
        assert turbo > 1e-8
        assert (each.stale is None) == (each.probe.probe_class == "insensitive")
        if each.stale is not None:
            assert turbo < each.stale.kl.sum()


def test_a_setting_runs_what_it_asks_for_and_the_tail(scored: list[Scored], probes: list[LaidOutProbe]) -> None:
    for each, probe in zip(scored, probes, strict=True):
        turbo, asked, fast = (each.by_setting[name] for name in ("turbo", "asked", "fast"))
        assert turbo.num_run == turbo.num_file + len(probe.head) + len(probe.tail)
        assert asked.num_run - turbo.num_run == pytest.approx(40, abs=8)  # a match too short to be taken is run, too
        assert turbo.num_run <= fast.num_run < each.num_prompt


def test_the_order_of_settings_does_not_matter(
    scorer: Scorer, probes: list[LaidOutProbe], scored: list[Scored]
) -> None:
    turned = scorer.score(probes[0], dict(reversed(SETTINGS.items())), with_noise=False)
    assert turned is not None
    for name, own in turned.by_setting.items():
        its = scored[0].by_setting[name]
        assert np.array_equal(own.divergence.kl, its.divergence.kl), name
        assert own.num_run == its.num_run
