"""Questions of different length share the passes of a model: each joins when there is room, and leaves when it is done.

python examples/continuous_batching.py --model smollm2-135m
"""

from __future__ import annotations

import argparse
import os

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.wiring import open_model
from engine import ContinuousBatchingEngine, GenerationRequest

QUESTIONS = {
    "Say hello.": 12,
    "Name the colours of the rainbow.": 48,
    "What is 2 + 2?": 16,
    "Write one sentence about the sea.": 40,
    "What is the capital of France?": 16,
    "Count from one to ten.": 32,
}
"""Each with the most tokens of its answer."""


def main() -> None:
    """Answer all questions, three at a time, and show who comes and goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    loaded = open_model(parser.parse_args().model, ModelSettings.from_env(os.environ), LoadOptions(context=256))
    engine = ContinuousBatchingEngine(
        loaded.engine.model, loaded.text.tokenizer, "cpu", max_batch_size=3, max_seq_len=256
    )
    asked = {engine.add_request(request_for(loaded, text, limit)): text for text, limit in QUESTIONS.items()}
    num_steps = 0
    while engine.scheduler.has_pending_work():
        finished = engine.step()
        num_steps += 1
        for output in finished:
            assert output.result is not None, output.error
            usage, answer = output.result.usage, output.result.text.decode().strip()
            stats = engine.scheduler.stats()
            print(f"step {num_steps:3}: {asked[output.id]!r} is done after {usage.completion} tokens")
            print(f"          {answer!r}")
            print(f"          {stats.num_running} go on, {stats.num_waiting} wait")
    print(f"{len(asked)} answers in {num_steps} passes")


def request_for(loaded: LoadedModel, question: str, max_new_tokens: int) -> GenerationRequest:
    """A question in the model's own chat format; its turn ends at one of the model's stop ids."""
    prompt = loaded.text.template.render([{"role": "user", "content": question}])
    token_ids = loaded.text.tokenizer.encode_template(prompt)
    return GenerationRequest(token_ids, max_new_tokens, stop_ids=loaded.text.stop_ids)


if __name__ == "__main__":
    main()
