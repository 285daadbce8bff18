"""Which sequences have how many tokens in the next step. Knows no tensors."""

from engine.scheduler.config import SchedulerConfig
from engine.scheduler.scheduler import Scheduler, SchedulerStats
from engine.scheduler.sequence import Sequence, Status

__all__ = ["Scheduler", "SchedulerConfig", "SchedulerStats", "Sequence", "Status"]
