"""Decides which sequences have how many tokens in the next step. Uses no tensors."""

from engine.scheduler.config import SchedulerConfig
from engine.scheduler.scheduler import Scheduler, SchedulerStats
from engine.scheduler.sequence import ScheduledSequence, Status

__all__ = ["ScheduledSequence", "Scheduler", "SchedulerConfig", "SchedulerStats", "Status"]
