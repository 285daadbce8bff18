"""Has a model choose among the readings of an edit by how likely it would be to write each."""

from agent_runtime.deciding.checking import sound
from agent_runtime.deciding.scoring import score_answers
from agent_runtime.deciding.weighing import best_of, weigh

__all__ = ["best_of", "score_answers", "sound", "weigh"]
