"""Schedules: commands that are sent by the clock, each tick once, by any process that lives."""

from commandbus.schedules.model import Missed, Overlap, Schedule, ScheduleStatus, ScheduleTime
from commandbus.schedules.service import Schedules

__all__ = ["Missed", "Overlap", "Schedule", "ScheduleStatus", "ScheduleTime", "Schedules"]
