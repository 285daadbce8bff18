"""Scores of the readings of open snippets by a model, and the weights that are fitted to them."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ModelChoice, ModelMerge, ModelTask
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.llm.scorer import FEATURES, AnswerScore, ChooserWeights, compute_features, compute_probabilities
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest
from benchmarks.cases import DEFAULT_CASES, Case, find_part, load_cases_at
from benchmarks.harness import say
from benchmarks.scoring import compute_interval, hides_deletion, is_same_but_blank_lines
from benchmarks.snippets import make_imitations
from benchmarks.train_reader.__main__ import write_reliability
from benchmarks.train_reader.order import Answer, Labelled, Order, bin_answers, fit_order
from editor import codec
from editor.types import Candidate, Unresolved

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WEIGHTS = ROOT / "agent_runtime" / "llm" / "chooser.json"
RIGHT_FOR_A_WRONG_ONE = 10
"""So many refusals does a wrong merge cost: the bar is where as many more right ones come with one more wrong.

Made snippets count as real ones: the reader was tuned to the real ones of the training part.
"""

FOLDS = 8


@dataclass(frozen=True, slots=True)
class ReadingScore:
    """A reading of a case as the reader and a model score it; `sum` and `least` are log-probabilities.

    right: whether it is the expected text, modulo blank lines. written: whether the model would write it.
    """

    score: float
    confidence: float
    sum: float
    least: float
    written: bool
    right: bool


@dataclass(frozen=True, slots=True)
class ScoredCase:
    """The readings of one open case that were scored, in their order; none where no reading passes the checks."""

    key: str
    id: str
    repo: str
    path: str
    style: str
    made: bool
    model: str
    has_right: bool = False
    readings: tuple[ReadingScore, ...] = ()
    seconds: float = 0.0

    @property
    def part(self) -> str:
        """The part of the data, train or test."""
        return find_part(self.repo, self.path)

    @property
    def is_written(self) -> bool:
        """Whether the model would write the first reading, so that it is chosen whatever the others are."""
        return bool(self.readings) and self.readings[0].written

    def compute_features(self) -> list[tuple[float, ...]]:
        """Return the features of each reading."""
        candidates = [Candidate("", each.score, "", each.confidence) for each in self.readings]
        return compute_features(
            candidates, [each.sum for each in self.readings], [each.least for each in self.readings]
        )

    def label(self) -> Labelled:
        """Return the case as the fit takes it."""
        right = np.array([each.right for each in self.readings], dtype=np.bool_)
        features = np.array(self.compute_features(), dtype=np.float64).reshape(-1, len(FEATURES))
        return Labelled(
            f"{self.model}/{self.id}", self.repo, self.path, self.style, self.made, features, right, right,
            np.arange(len(right)), 0.0,
        )  # fmt: skip


Scored = tuple[Sequence[Candidate], list[list[AnswerScore]]]
"""Candidates, and the scores of each question."""


class RecordingMerger(ModelMerger):
    """A model that keeps what it scored last, and scores all readings whatever the first one's scores are."""

    scores_all = True
    _last: Scored | None = None

    def take(self) -> Scored | None:
        """Return what was scored since the last call, if anything was."""
        found, self._last = self._last, None
        return found

    def score_candidates(
        self, task: ModelTask, scope: Any, candidates: Sequence[Candidate], *rest: Any
    ) -> list[list[AnswerScore]]:
        """As `ModelMerger.score_candidates`."""
        scores = super().score_candidates(task, scope, candidates, *rest)
        self._last = candidates, scores
        return scores


class UntrainedMerger(ModelMerger):
    """Judges the scores of readings by the fixed weights that are used for edits without confidences."""

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Choose as `ModelMerger.choose` does, among the same candidates without their confidences."""
        assert isinstance(task.by_rule, Unresolved)
        candidates = tuple(replace(candidate, confidence=None) for candidate in task.by_rule.candidates)
        return super().choose(replace(task, by_rule=replace(task.by_rule, candidates=candidates)), context, progress)


def main(description: str) -> None:
    """Score and fit, or fit alone. Raises SystemExit, with what is missing."""
    options = _options(description)
    if not options.fit_only:
        _score(options)
    cases = list(read_scores(options.scores))
    if not any(case.readings for case in cases):
        sys.exit(f"{', '.join(map(str, options.scores))}: no case has a reading that was scored")
    print(json.dumps(fit(cases, options), indent=1))


def fit(cases: Sequence[ScoredCase], options: argparse.Namespace) -> dict[str, Any]:
    """Fit the weights to the cases of the training part, write them, and return the figures."""
    train = [case for case in cases if case.part == "train" and case.readings]
    written = [case for case in train if case.is_written]
    share_written = (sum(case.readings[0].right for case in written) + 0.5) / (len(written) + 1)
    open_ones = [case for case in train if not case.is_written]
    held_out = choose_held_out(open_ones, options.l2, options.made_weight)
    bar = find_marginal_bar(list(held_out.values()))
    order = fit_order([case.label() for case in open_ones], options.l2, options.made_weight)
    chooser = ChooserWeights(tuple(map(float, order.weights)), float(order.none), bar, share_written)
    figures: dict[str, Any] = {}
    for model in sorted({case.model for case in cases}):
        for title, some in _group([case for case in cases if case.model == model]):
            in_train = title.startswith("train")
            answers = [
                held_out[_name(case)] if in_train and not case.is_written else answer(case, chooser)
                for case in some
                if case.readings
            ]
            figures[f"{model}, {title}"] = compute_figures(some, answers, bar)
    card = {
        "command": "python -m benchmarks.train_chooser --fit-only",
        "scores": {file.name: sha256(file.read_bytes()).hexdigest()[:16] for file in options.scores},
        "l2": options.l2,
        "made_weight": options.made_weight,
        "cases": {"real": sum(not case.made for case in train), "made": sum(case.made for case in train)},
        "left_out": "the test part (benchmarks/test_part.txt)",
        "figures": figures,
        "reliability": bin_answers(list(held_out.values()), np.array([one.probability for one in held_out.values()])),
    }
    weights = {name: round(weight, 6) for name, weight in zip(FEATURES, chooser.weights, strict=True)}
    content = {"card": card, "weights": weights, "none": round(chooser.none, 6)}
    content |= {"bar": round(bar, 4), "written": round(share_written, 4)}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        shown = {"training snippets, held out": [held_out[_name(case)] for case in open_ones if not case.made]}
        test = [case for case in cases if case.part == "test" and case.readings and not case.is_written]
        shown |= {"test part": [answer(case, chooser) for case in test]}
        straight = [(0.0, 0.0), (1.0, 1.0)]
        write_reliability(shown, straight, {"scored": bar}, options.plot, "chosen, % of the scored snippets")
    return figures


def _name(case: ScoredCase) -> str:
    return f"{case.model}/{case.id}"


def _group(cases: Sequence[ScoredCase]) -> Iterator[tuple[str, list[ScoredCase]]]:
    for title, part, made in (("train", "train", False), ("train, made", "train", True), ("test", "test", False)):
        some = [case for case in cases if case.part == part and case.made == made]
        if some:
            yield title, some


def choose_held_out(cases: Sequence[ScoredCase], l2: float, made_weight: float) -> dict[str, Answer]:
    """Return the choice of each case by weights that were fitted without its repository."""
    fold_of = {case.repo: int(sha256(case.repo.encode()).hexdigest(), 16) % FOLDS for case in cases}
    answers: dict[str, Answer] = {}
    for fold in sorted(set(fold_of.values())):
        order = fit_order([case.label() for case in cases if fold_of[case.repo] != fold], l2, made_weight)
        answers |= {_name(case): _answer(case, order) for case in cases if fold_of[case.repo] == fold}
    return answers


def answer(case: ScoredCase, chooser: ChooserWeights) -> Answer:
    """Return the choice of a case as the service makes it."""
    if case.is_written:
        return Answer(chooser.written, case.readings[0].right, case.readings[0].right)
    probabilities = compute_probabilities(case.compute_features(), chooser)
    best = int(np.argmax(probabilities))
    return Answer(probabilities[best], case.readings[best].right, case.readings[best].right)


def _answer(case: ScoredCase, order: Order) -> Answer:
    return answer(case, ChooserWeights(tuple(map(float, order.weights)), float(order.none), 0.0, 1.0))


def find_marginal_bar(answers: Sequence[Answer], price: int = RIGHT_FOR_A_WRONG_ONE) -> float:
    """Return the probability above which the right answers less `price` times the wrong ones are most; 2 for none."""
    ordered = sorted(answers, key=lambda one: -one.probability)
    gain, best, bar = 0, 0, 2.0
    for one in ordered:
        gain += 1 if one.modulo else -price
        if gain > best:
            best, bar = gain, one.probability
    return bar


def compute_figures(cases: Sequence[ScoredCase], answers: Sequence[Answer], bar: float) -> dict[str, Any]:
    """Return how many open cases have a right reading, and how many are chosen right and wrong above the bar."""
    chosen = [one for one in answers if one.probability >= bar]
    wrong = sum(not one.modulo for one in chosen)
    low, high = compute_interval(wrong, len(chosen)) or (0.0, 1.0)
    return {
        "open": len(cases),
        "with a right reading": sum(case.has_right for case in cases),
        "chosen": len(chosen),
        "right": len(chosen) - wrong,
        "wrong": wrong,
        "wrong share": f"{wrong / max(1, len(chosen)):.1%} [{low:.1%}, {high:.1%}]",
    }


def read_scores(files: Sequence[Path]) -> Iterator[ScoredCase]:
    """Yield the cases of score files, plain or compressed; a last line that was cut short is left out."""
    for file in files:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for line in data.decode().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                readings = tuple(ReadingScore(**each) for each in row.pop("readings"))
                yield ScoredCase(**row, readings=readings)


def _score(options: argparse.Namespace) -> None:
    """Score the open cases that the first score file lacks, and append them to it."""
    (file, *_) = options.scores
    if file.suffix == ".gz":
        sys.exit(f"{file} is compressed; name a plain file for new scores with --scores, or give --fit-only")
    known = {case.key for case in read_scores([file])} if file.exists() else set()
    from agent_runtime.wiring import open_merger

    say(f"opening {options.model}")
    plain = open_merger(options.model, ModelSettings.from_env(os.environ), LoadOptions(device=options.device))
    loaded = plain._loaded if options.adapter else replace(plain._loaded, choosing_adapter=None)
    merger = RecordingMerger(loaded)
    applier = Applier(lambda: merger)
    cases, started = _load_cases(options), time.monotonic()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        for number, case in enumerate(cases, 1):
            blank = _describe(case, options.model)
            if blank.key not in known:
                out.write(json.dumps(asdict(score_case(case, blank, applier, merger))) + "\n")
                out.flush()
            if number % 20 == 0:
                say(f"{number} of {len(cases)} cases, {time.monotonic() - started:.0f} s")
    merger.close()


def score_case(case: Case, blank: ScoredCase, applier: Applier, merger: RecordingMerger) -> ScoredCase:
    """Have the model choose, and return what it scored; an edit that needs no model has no readings."""
    began = time.perf_counter()
    request = ApplyRequest(
        case.original.encode(), case.edit, path=case.path, format=case.format, instruction=case.instruction
    )
    with suppress(HunkError):  # in doubt
        applier.apply(request)
    found = merger.take()
    if found is None:
        return blank
    candidates, scores = found
    expected = codec.decode(case.expected.encode()).text  # as candidates are: "\n" lines, no BOM
    readings = tuple(
        _make_reading(candidate, [question[at] for question in scores], expected)
        for at, candidate in enumerate(candidates[: len(scores[0])])
    )
    return replace(
        blank,
        has_right=any(is_same_but_blank_lines(each.text, expected) for each in candidates),
        readings=readings,
        seconds=round(time.perf_counter() - began, 3),
    )


def _make_reading(candidate: Candidate, scores: Sequence[AnswerScore], expected: str) -> ReadingScore:
    found = [logprob for score in scores for logprob in score.logprobs]
    return ReadingScore(
        score=round(candidate.score, 6),
        confidence=round(candidate.confidence or 0.0, 6),
        sum=round(sum(found), 3),
        least=round(min(found, default=0.0), 3),
        written=all(score.is_likeliest for score in scores),
        right=is_same_but_blank_lines(candidate.text, expected),
    )


def _describe(case: Case, model: str) -> ScoredCase:
    key = "\0".join((model, case.path, case.original, case.edit, case.expected, case.instruction))
    digest = sha256(key.encode()).hexdigest()[:16]
    return ScoredCase(digest, case.id, case.repo, case.path, case.style, case.shape == "made", model)


def _load_cases(options: argparse.Namespace) -> list[Case]:
    if options.repo is not None:
        with tempfile.TemporaryDirectory() as folder:
            write_changes(options.repo, Path(folder) / "pairs.jsonl", options.commits)
            return [case for part in ("train", "test") for case in make_imitations(Path(folder), options.made, 0, part)]
    real = [case for case in load_cases_at(options.cases / "snippets").cases if isinstance(case, Case)]
    made = make_imitations(options.cases / "commits", options.made, options.seed, "train")
    return [case for case in [*real, *made] if not hides_deletion(case)]


def write_changes(repository: Path, file: Path, most: int) -> None:
    """Write the files that the last commits of a git repository changed, before and after, as JSON lines."""

    def git(*arguments: str) -> bytes:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
        if done.returncode:
            sys.exit(f"{repository}: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    with file.open("w", encoding="utf-8") as out:
        for commit in git("rev-list", "--no-merges", f"--max-count={most}", "HEAD").decode().split():
            named = git("diff-tree", "--root", "-r", "--no-commit-id", "--name-only", "--diff-filter=M", "-z", commit)
            for path in filter(None, named.decode(errors="replace").split("\0")):
                before, after = (git("show", f"{version}:{path}") for version in (f"{commit}^", commit))
                if b"\0" in before + after or len(before) > 200_000:
                    continue
                texts = [each.decode(errors="replace").replace("\r\n", "\n") for each in (before, after)]
                row = {"repo": repository.resolve().name, "commit": commit, "path": path}
                out.write(json.dumps(row | {"original": texts[0], "expected": texts[1], "hunks": 1}) + "\n")


def _options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_chooser",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="the folder with snippets and commits")
    parser.add_argument("--repo", type=Path, help="make snippets over the commits of this git repository instead")
    parser.add_argument("--commits", type=int, default=500, help="with --repo: at most so many (default 500)")
    parser.add_argument("--made", type=int, default=300, help="so many made snippets (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="for the made snippets")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="scores the readings")
    parser.add_argument("--adapter", action="store_true", help="with the model's own adapter, as the service scores")
    parser.add_argument("--device", default="cpu", help="where it runs (default cpu)")
    parser.add_argument(
        "--scores",
        type=Path,
        nargs="+",
        default=sorted(HERE.glob("*.jsonl.gz")),
        help="score files (default: those beside this program); new scores go to the first",
    )
    parser.add_argument("--fit-only", action="store_true", help="score nothing")
    parser.add_argument("--made-weight", type=float, default=1.0, help="weight of a made snippet; a real one has 1")
    parser.add_argument("--l2", type=float, default=0.003, help="how small the weights are held (default 0.003)")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights are written")
    parser.add_argument("--plot", type=Path, help="draw the reliability there, as PNG (needs the bench extra)")
    return parser.parse_args()
