"""What broke the prefix that two prompts have in common: where, what it was, what it cost, what to do about it."""

from agent_runtime.doctor.diagnosis import Diagnosis, diagnose
from agent_runtime.doctor.transcripts import PromptText, prompt_of_turn, read_prompt

__all__ = ["Diagnosis", "PromptText", "diagnose", "prompt_of_turn", "read_prompt"]
