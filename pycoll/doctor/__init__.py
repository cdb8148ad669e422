"""Checks of a machine: what keeps RDMA and TCP below their speed or from working, and the cure."""

from pycoll.doctor.bandwidth import bandwidth
from pycoll.doctor.finding import Finding, Level
from pycoll.doctor.machine import Attributes, Machine, Registration
from pycoll.doctor.registry import CHECKS, Check, examine

__all__ = [
    "CHECKS",
    "Attributes",
    "Check",
    "Finding",
    "Level",
    "Machine",
    "Registration",
    "bandwidth",
    "examine",
]
