"""Train the weights by which a model chooses among the readings of a snippet: `python -m benchmarks.train_chooser`.

Two steps, each of which can be repeated alone:

1. Every open case (no reading is above the reader's bars) goes through the pipeline, and the model scores its readings
   as it does in the service. `--scores FILE` keeps a line for each case; a run that was stopped goes on there. The
   cases are the snippets below `--cases` and made ones over its commits, or over those of a git repository (`--repo`).
2. A softmax over the readings and "none of these" is fitted to all scores that `--scores` names. On folds that share no
   repository the bar is found below which ten more right choices cost one wrong one. `agent_runtime/llm/chooser.json`
   is written with its data card, and figures are printed, those of the fixed test part last for each model.

The scores of both models of the catalogue are beside this file, so that step 2 needs no model and takes seconds:
`python -m benchmarks.train_chooser --fit-only`.
"""

from __future__ import annotations

from agent_runtime.process import set_environment


def main() -> None:
    """Run the command."""
    set_environment()
    from benchmarks.train_chooser.train import main as train  # imports torch

    train(__doc__ or "")


if __name__ == "__main__":
    main()
