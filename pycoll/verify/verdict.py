"""Verdict: what was proved, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pycoll.errors import counted

#: Is told at which stage a proof is.
Progress = Callable[[str], object]


def silent(stage: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Verdict:
    """What was proved, and how."""

    name: str  #: of the algorithm; of the collective where Programs were given
    size: int
    slots: int  #: per edge; it holds with more, too
    tiles: tuple[int, ...]  #: the unrollings that were run
    instructions: int  #: of all ranks' Programs
    seconds: float
    origin: str = "proof"  #: or "certificate", "cache", "unproved"
    by: str = ""  #: "rank by rank", or such as "1 rank for all, by rotation of 64"
    #: ranks whose Programs were held against that; each of the others does so before it runs
    compared: int = 0
    order: str = "free"  #: or "fixed", where it was proved to fold in the order of the ranks

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        """Say it in a sentence."""
        ranks = counted(self.size, "rank")
        if self.origin != "proof":
            return f"{self.name} at {ranks}: {self.origin}"
        found = "correct" if self.order == "free" else "correct, in the fixed order,"
        return (
            f"{self.name} is {found} at {ranks}: {self.instructions} instructions, proved in "
            f"{self.seconds:.3g} s, {self.how()}"
        )

    def how(self) -> str:
        """Say which ranks were proved, and which were compared with them."""
        if not self.compared:
            return self.by
        if self.compared == self.size:
            return f"{self.by}; all do the same"
        return (
            f"{self.by}; {self.compared} ranks were compared, each of the others compares its own "
            "program before it runs it"
        )

    def __repr__(self) -> str:
        return f"<pycoll.Verdict {self}>"
