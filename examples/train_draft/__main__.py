"""Train a draft head for a model, and measure how many tokens it drafts right: `python examples/train_draft`.

The head guesses the next tokens from the hidden state that the model's LM head saw last and the token that it chose. It
is one gated layer that is applied again for each further token (as in ReDrafter, arXiv 2403.09919, and IBM's MLP
speculator, arXiv 2404.19124). It shares the model's embedding and the LM head's rows of the most frequent tokens.

The steps, each of which goes on where it was stopped:

1. The model reads files of real commits, and what it would write after each token is kept with its hidden states. The
   same is done with as much general text: the files of `--control`, if there are any.
2. It answers questions about files of repositories that are in no training text.
3. Heads are trained on growing parts of both texts. Each drafts those answers wherever the copy draft finds nothing.
   Accepted tokens a draft are given with a 95 % interval (bootstrap over the answers), and the best speed that they
   allow with the seconds of this machine, of that without drafts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_runtime.errors import HunkError
from agent_runtime.llm.chat import build_draft, encode_prompt
from agent_runtime.llm.interface import ChatMessage
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.wiring import open_model
from benchmarks.drafts import NEW_CODE, QUESTIONS, SYSTEM, draw_questions, read_commits
from benchmarks.harness import describe_machine, render_rows, say
from engine.speculation.step_times import StepTimes

UNSEEN = ("sourcegraph/cody", "gin-gonic/gin", "google/gson")
"""Repositories whose files are asked about, and not trained on: TypeScript, Go, Java."""

WINDOW = 640
"""Tokens of a file that the model reads at once."""

SHARD = 10
"""Files whose states are kept together."""

MOST_ROWS = 16_384
"""Rows of the LM head that the head uses."""

NUM_LIKELY = 16
"""Of each choice of the model so many candidates are kept."""

CHAIN = 4
"""Tokens of a draft."""

ANSWER = 128
"""The most tokens of an answer."""

BATCH, RATE, UNROLLED, SAMPLED = 256, 1e-3, 2, 1024
"""Of the training: positions of a step, the learning rate, tokens of a chain, and rows of the LM head that each step's
candidates are compared with."""


@dataclass(frozen=True, slots=True)
class States:
    """What the model saw and would write, token by token; `last` marks the last tokens of its texts."""

    token_ids: Tensor  # int64 [num_tokens]
    hidden: Tensor  # float16 [num_tokens, hidden_size], as the LM head gets it
    likely: Tensor  # int32 [num_tokens, NUM_LIKELY], the most likely next tokens
    shares: Tensor  # float16, their probabilities
    last: Tensor  # bool [num_tokens]


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer to a question of some kind, and the hidden states from which each was chosen.

    is_new: after which tokens the copy draft finds nothing, or something that is more likely wrong than right. copied:
    what it finds there, -1 for nothing.
    """

    token_ids: list[int]
    hidden: Tensor  # [len(token_ids), hidden_size]
    is_new: list[bool]
    copied: list[int]
    kind: str


class DraftHead(nn.Module):
    """Turns a hidden state and the token that was chosen from it into a guess at the next hidden state."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.from_state = nn.Linear(hidden_size, hidden_size, bias=False)
        self.from_token = nn.Linear(hidden_size, hidden_size, bias=False)
        self.gate_up = nn.Linear(2 * hidden_size, 2 * width, bias=False)
        self.down = nn.Linear(width, hidden_size, bias=False)
        for each in (self.from_state, self.from_token, self.down):
            nn.init.zeros_(each.weight)  # at first all tokens are equally likely

    def forward(self, state: Tensor, token: Tensor) -> Tensor:
        """[num_rows, hidden_size] twice -> [num_rows, hidden_size], to be multiplied by rows of the LM head."""
        state, token = (F.rms_norm(each, each.shape[-1:]) for each in (state, token))
        gate, up = self.gate_up(torch.cat([state, token], dim=1)).chunk(2, dim=1)
        out: Tensor = self.from_state(state) + self.from_token(token) + self.down(F.silu(gate) * up)
        return out


class Trainer:
    """Trains and measures heads of one model."""

    def __init__(self, loaded: LoadedModel, answers: Sequence[Answer], counts: Tensor, width: int) -> None:
        """counts: how often each token was chosen in the training texts."""
        model = loaded.engine.model
        weights = model.weights
        order = torch.argsort(counts, descending=True, stable=True)
        self.row_ids = order[:MOST_ROWS]  # of equally frequent tokens the lower ids: BPE made them first
        self._row_of = torch.full((len(counts),), -1).index_put_((self.row_ids,), torch.arange(len(self.row_ids)))
        self._embedding = weights.embedding.float()
        one_hot = torch.eye(self._embedding.shape[1], dtype=weights.dtype).split(64)
        self._rows = torch.cat([model.logits(each)[:, self.row_ids].float() for each in one_hot]).T.contiguous()
        self._answers = answers
        self._width = width

    def train(self, states: States, num_tokens: int, epochs: int) -> tuple[DraftHead, int]:
        """Train a head on the first tokens of a text; return it with the number of tokens that it has seen."""
        torch.manual_seed(0)
        head = DraftHead(states.hidden.shape[1], self._width)
        optimiser = torch.optim.AdamW(head.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
        ends = states.last.clone()
        for _ in range(UNROLLED - 1):  # a chain stays within its text
            ends[:-1] |= ends[1:].clone()
        places = (~ends[:num_tokens]).nonzero()[:, 0]
        num_steps, started = epochs * math.ceil(len(places) / BATCH), time.monotonic()
        for step in range(num_steps):
            if step % math.ceil(len(places) / BATCH) == 0:
                batches = iter(places[torch.randperm(len(places))].split(BATCH))
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / 12) * (1.0 - step / num_steps)
            loss = self._compute_loss(head, states, next(batches))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if step % 100 == 99:
                rate = (step + 1) / (time.monotonic() - started)
                say(f"  step {step + 1} of {num_steps}, {(num_steps - step) / rate:.0f} s left, loss {loss.item():.2f}")
        return head, epochs * len(places)

    def _compute_loss(self, head: DraftHead, states: States, places: Tensor) -> Tensor:
        """Return the cross-entropy against the model's choices, among their candidates and some other rows."""
        state, loss = states.hidden[places].float(), torch.zeros(())
        for ahead in range(1, UNROLLED + 1):
            state = head(state, self._embedding[states.token_ids[places + ahead]])
            rows = self._row_of[states.likely[places + ahead].long()]
            shares = states.shares[places + ahead].float() * (rows >= 0)
            kept = shares.sum(dim=1) > 0.2
            rows, shares = rows[kept].clamp(min=0), F.normalize(shares[kept], p=1.0, dim=1)
            others = torch.arange(min(SAMPLED, len(self.row_ids))), torch.randint(len(self.row_ids), (SAMPLED,))
            some = torch.cat([rows.flatten(), *others]).unique()
            scores = (state[kept] @ self._rows[some].T).log_softmax(dim=1)
            loss = loss - (shares * scores.gather(1, torch.searchsorted(some, rows))).sum(dim=1).mean()
        return loss

    @torch.inference_mode()
    def measure(self, head: DraftHead) -> list[list[int]]:
        """Return for each answer how many tokens of each draft are right, where there is nothing to copy."""
        return [self._draft(head, answer) for answer in self._answers]

    def _draft(self, head: DraftHead, answer: Answer) -> list[int]:
        at = torch.tensor([at for at, new in enumerate(answer.is_new) if new and at + CHAIN < len(answer.token_ids)])
        if not len(at):
            return []
        written, state = torch.tensor(answer.token_ids), answer.hidden[at].float()
        token_ids, right = written[at], torch.ones(len(at), dtype=torch.bool)
        accepted = torch.zeros(len(at), dtype=torch.int64)
        for ahead in range(1, CHAIN + 1):
            state = head(state, self._embedding[token_ids])
            token_ids = self.row_ids[(state @ self._rows.T).argmax(dim=1)]
            right &= token_ids == written[at + ahead]
            accepted += right
        return accepted.tolist()

    @torch.inference_mode()
    def time_step(self, head: DraftHead) -> float:
        """Return the seconds of a drafted token, with plain torch products in float32."""
        state, seconds = torch.zeros(1, self._embedding.shape[1]), []
        for _ in range(30):
            started = time.perf_counter()
            state = head(state, self._embedding[:1])
            (state @ self._rows.T).argmax(dim=1)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)


def main() -> None:
    """Train, measure, print the table and write figures and plot."""
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    say(describe_machine())
    try:
        how = LoadOptions(context=4096, kv_sequences=1)
        loaded = open_model(options.model, ModelSettings.from_env(os.environ), how)
        texts = {"code": read_code()} | ({"general": iter([*read_general(options.control)])} if options.control else {})
        states = {kind: collect(loaded, kind, some, options.tokens, out) for kind, some in texts.items()}
        answers = answer_questions(loaded, options.answers, out)
    except (HunkError, OSError, ValueError) as error:
        sys.exit(str(error))
    say(f"{(time.monotonic() - started) / 60:.0f} minutes for texts and answers")
    counts = torch.zeros(loaded.engine.model.config.vocab_size, dtype=torch.int64)
    for each in states.values():
        counts += each.likely[:, 0].bincount(minlength=len(counts))
    trainer, times, rows = Trainer(loaded, answers, counts, options.width), loaded.engine.stats().step_times, []
    for kind, each in states.items():
        for size in [len(each.token_ids) >> halved for halved in reversed(range(options.sizes))]:
            file = out / f"head-{kind}-{size}.json"
            if not file.exists():
                say(f"{kind}: a head on {size} tokens")
                head, num_seen = trainer.train(each, size, options.epochs)
                torch.save(head.state_dict(), file.with_suffix(".pt"))
                facts = {"text": kind, "tokens": size, "seen": num_seen, "step_s": trainer.time_step(head)}
                accepted = trainer.measure(head)
                of_code = [some for some, answer in zip(accepted, answers, strict=True) if answer.kind in NEW_CODE]
                facts["of_code"] = _mean(of_code) if any(of_code) else None
                file.write_text(json.dumps(facts | summarise(accepted, facts["step_s"], times)))
            rows.append(json.loads(file.read_text()))
            print(render_rows(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    followed = [
        (token_id == copied)
        for each in answers
        for token_id, copied, new in zip(each.token_ids[1:], each.copied, each.is_new, strict=False)
        if new
    ]
    num_tokens = sum(len(each.token_ids) for each in answers)
    print(
        f"{len(answers)} answers of {num_tokens} tokens; for {len(followed)} of them no likely copy is found, and the "
        f"first token of an unlikely one is right for {sum(followed)}"
    )
    print(render_rows(rows, COLUMNS))
    print(f"{(time.monotonic() - started) / 60:.0f} minutes in all")
    write_plot(rows, out / "curve.png")
    loaded.engine.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/train_draft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument("--out", type=Path, default=Path("train_draft"), help="folder of all that is kept")
    parser.add_argument("--tokens", type=int, default=60_000, help="of each text: a minute for 6,000 with AVX2")
    parser.add_argument("--control", type=Path, help="a folder of general text in files *.txt")
    parser.add_argument(
        "--sizes", type=int, default=3, help="heads of each text; each has twice the tokens of the last"
    )
    parser.add_argument("--answers", type=int, default=18, help="answers that are drafted")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=2048, help="of the head's gated part")
    options = parser.parse_args()
    if min(options.tokens, options.sizes, options.answers, options.epochs, options.width) < 1:
        parser.error("--tokens, --sizes, --answers, --epochs and --width must be at least 1")
    return options


def read_code() -> Iterator[str]:
    """Yield files of the commits of all other repositories than UNSEEN, each path once, in random order."""
    found = {(pair["repo"], pair["path"]): pair["expected"] for pair in read_commits()}
    texts = [text for (repo, _), text in found.items() if repo not in UNSEEN]
    random.Random(0).shuffle(texts)
    yield from texts


def read_general(folder: Path) -> Iterator[str]:
    """Yield parts of the folder's texts in random order; raises ValueError if there are none."""
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in sorted(folder.glob("*.txt"))]
    parts = [text[start : start + 4000] for text in texts for start in range(0, len(text), 4000)]
    if not parts:
        raise ValueError(f"there is no file *.txt in {folder}")
    random.Random(0).shuffle(parts)
    yield from parts


@torch.inference_mode()
def collect(loaded: LoadedModel, kind: str, texts: Iterator[str], num_tokens: int, out: Path) -> States:
    """Read texts up to `num_tokens`, each from a random place on; files of an earlier run are not read again."""
    model, encode = loaded.engine.model, loaded.text.tokenizer.encode
    caches, rng, shards, total = model.new_caches(1, WINDOW), random.Random(0), list[States](), 0
    started, num_known = time.monotonic(), 0
    while total < num_tokens:
        file, parts = out / f"{kind}-{len(shards):04}.pt", list[States]()
        some = [text for _, text in zip(range(SHARD), texts, strict=False)]
        starts = [rng.random() for _ in some]
        if not some:
            raise ValueError(f"the {kind} text has {total} tokens, not {num_tokens}; take fewer")
        if not file.exists():
            for text, start in zip(some, starts, strict=True):
                token_ids = encode(text)
                first = int(start * max(0, len(token_ids) - WINDOW))
                ids = torch.tensor(token_ids[first : first + WINDOW])
                for cache in caches:
                    cache.lengths[0] = 0
                hidden = model.forward(ids, caches)
                tops = [model.logits(rows).float().softmax(dim=1).topk(NUM_LIKELY) for rows in hidden.split(64)]
                likely, shares = torch.cat([top.indices for top in tops]), torch.cat([top.values for top in tops])
                last = torch.arange(len(ids)) == len(ids) - 1
                parts.append(States(ids, hidden.half(), likely.int(), shares.half(), last))
            fields = zip(*(asdict(part).values() for part in parts), strict=True)
            write_whole(file, [torch.cat(field) for field in fields])
        else:
            num_known = total
        shards.append(States(*torch.load(file)))
        total += len(shards[-1].token_ids)
        rate = (total - num_known) / (time.monotonic() - started)
        say(f"{kind}: {total} of {num_tokens} tokens, {max(0.0, num_tokens - total) / rate / 60:.0f} minutes left")
    fields = zip(*([getattr(each, name) for name in States.__slots__] for each in shards), strict=True)
    return States(*[torch.cat(field) for field in fields])


@torch.inference_mode()
def answer_questions(loaded: LoadedModel, count: int, out: Path) -> list[Answer]:
    """Have the model answer questions about files of UNSEEN, greedily; answers of an earlier run are kept."""
    pairs, kinds = [pair for pair in read_commits() if pair["repo"] in UNSEEN], [*QUESTIONS]
    seeds = range(math.ceil(count / len(UNSEEN)))
    asked = [each for seed in seeds for each in draw_questions(pairs, kinds[seed % 4 :] + kinds[: seed % 4], 1, seed)]
    answers = []
    for number, (kind, path, text, question) in enumerate(asked[:count]):
        file = out / f"answer-{number:02}.pt"
        if not file.exists():
            user = ChatMessage("user", f"The file {path}:\n```\n{text}\n```\n{question}")
            prompt = encode_prompt(loaded.text, [ChatMessage("system", SYSTEM), user])
            write_whole(file, _answer(loaded, prompt))
            say(f"answer {number + 1} of {count}, about {path}")
        answers.append(Answer(*torch.load(file), kind))
    return answers


def _answer(loaded: LoadedModel, prompt: Sequence[int]) -> list[object]:
    """Return the fields of an `Answer` but its kind."""
    model, copier = loaded.engine.model, build_draft(loaded.text, prompt, "", ANSWER)
    caches, ids, hidden, pending = model.new_caches(1, len(prompt) + ANSWER), list[int](), list[Tensor](), [*prompt]
    while len(ids) < ANSWER and not (ids and ids[-1] in loaded.text.stop_ids):
        hidden.append(model.forward(torch.tensor(pending), caches)[-1:])
        pending = model.likeliest(hidden[-1]).token_ids.tolist()
        ids += pending
    drafts = [copier.propose(ids[: at + 1], CHAIN) for at in range(len(ids))]
    is_new = [not each.token_ids or each.runs[0].hazard > 0.5 for each in drafts]
    return [ids, torch.cat(hidden), is_new, [each.token_ids[0] if each.token_ids else -1 for each in drafts]]


def write_whole(file: Path, content: object) -> None:
    """Save a file by torch, all or nothing."""
    part = file.with_suffix(".part")
    torch.save(content, part)
    part.replace(file)


def summarise(accepted: Sequence[Sequence[int]], step_s: float, times: StepTimes) -> dict[str, float]:
    """Return the accepted tokens a draft with their 95 % interval, the share of drafts whose first, second and third
    token is right if those before are, and the best speed of any length of drafts, of that without drafts.
    """
    found, rng = [each for each in accepted if each], random.Random(0)
    means = sorted(_mean([rng.choice(found) for _ in found]) for _ in range(1000))
    every = [length for each in found for length in each]
    reached = [sum(length >= ahead for length in every) for ahead in range(CHAIN + 1)]
    speed = max(
        sum(reached[: most + 1]) / reached[0] * times(1) / (times(1 + most) + most * step_s)
        for most in range(CHAIN + 1)
    )
    shares = {f"right{ahead}": reached[ahead] / max(1, reached[ahead - 1]) for ahead in (1, 2, 3)}
    return {
        "drafts": len(every),
        "accepted": _mean(found),
        "low": means[25],
        "high": means[974],
        "speed": speed,
    } | shares


def _mean(accepted: Sequence[Sequence[int]]) -> float:
    return sum(map(sum, accepted)) / sum(map(len, accepted))


def write_plot(rows: Sequence[dict[str, float]], file: Path) -> None:
    """Write accepted tokens by training tokens, for each text, as a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for kind, colour in (("code", "#d08a3c"), ("general", "#6f9bd1")):
        own = [row for row in rows if row["text"] == kind]
        if own:
            sizes, means = [row["tokens"] for row in own], [row["accepted"] for row in own]
            errors = [[row["accepted"] - row["low"] for row in own], [row["high"] - row["accepted"] for row in own]]
            axes.errorbar(sizes, means, errors, color=colour, marker="o", capsize=3, label=f"trained on {kind} text")
    axes.set(xscale="log", xlabel="training tokens", ylabel=f"accepted of {CHAIN}", ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=90)
    plt.close(figure)


COLUMNS = {
    "text": "{text}",
    "tokens": "{tokens}",
    "seen": "{seen}",
    "drafts": "{drafts}",
    "accepted of 4": "{accepted:.2f}",
    "from": "{low:.2f}",
    "to": "{high:.2f}",
    "in code": "{of_code:.2f}",
    "first right": "{right1:.2f}",
    "second": "{right2:.2f}",
    "third": "{right3:.2f}",
    "best speed": "{speed:.2f}",
}


if __name__ == "__main__":
    main()
