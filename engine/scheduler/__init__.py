"""Decides which sequences have how many tokens in the next step. Uses no tensors."""

from engine.engine_config import SchedulerConfig
from engine.scheduler.queue import ScheduledSequence, Status
from engine.scheduler.scheduler import Scheduler, SchedulerStats

__all__ = ["ScheduledSequence", "Scheduler", "SchedulerConfig", "SchedulerStats", "Status"]
