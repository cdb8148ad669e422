"""What an algorithm writes: collectives, chunks, steps, the builder and the Schedule."""

from pycoll.schedule.algorithm import Algorithm
from pycoll.schedule.builder import ScheduleBuilder
from pycoll.schedule.chunk import Buffer, Chunks
from pycoll.schedule.collective import (
    COLLECTIVES,
    Collective,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from pycoll.schedule.placement import FLAT, Level, Placement
from pycoll.schedule.rank_steps import RankSteps
from pycoll.schedule.schedule import NotDirect, Schedule
from pycoll.schedule.step import Kind, Step
from pycoll.schedule.text import dump, parse
from pycoll.schedule.trace import asks_placement, rank_steps, schedule, trace

__all__ = [
    "COLLECTIVES",
    "FLAT",
    "Algorithm",
    "Buffer",
    "Chunks",
    "Collective",
    "Kind",
    "Level",
    "NotDirect",
    "Placement",
    "RankSteps",
    "Schedule",
    "ScheduleBuilder",
    "Step",
    "allgather",
    "allreduce",
    "alltoall",
    "asks_placement",
    "broadcast",
    "dump",
    "gather",
    "parse",
    "rank_steps",
    "reduce",
    "reduce_scatter",
    "scatter",
    "schedule",
    "trace",
]
