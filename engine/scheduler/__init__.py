"""Which sequences have how many tokens in the next step. Knows no tensors."""

from engine.scheduling.config import SchedulerConfig
from engine.scheduling.scheduler import Scheduler, SchedulerStats
from engine.scheduling.sequence import Sequence, Status

__all__ = ["Scheduler", "SchedulerConfig", "SchedulerStats", "Sequence", "Status"]
