"""What an algorithm writes: collectives, chunks, steps, the builder and the Schedule."""

from pycoll.schedule.algorithm import Algorithm
from pycoll.schedule.builder import ScheduleBuilder
from pycoll.schedule.chunk import Buffer, Chunks
from pycoll.schedule.collective import COLLECTIVES, Collective, allreduce
from pycoll.schedule.schedule import NotDirect, Schedule, schedule, trace
from pycoll.schedule.step import Kind, Step
from pycoll.schedule.text import dump, parse

__all__ = [
    "COLLECTIVES",
    "Algorithm",
    "Buffer",
    "Chunks",
    "Collective",
    "Kind",
    "NotDirect",
    "Schedule",
    "ScheduleBuilder",
    "Step",
    "allreduce",
    "dump",
    "parse",
    "schedule",
    "trace",
]
