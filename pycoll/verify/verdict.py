"""Verdict: what was proved, and how."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.errors import counted


@dataclass(frozen=True)
class Verdict:
    """What was proved, and how."""

    name: str  #: of the algorithm; of the collective where Programs were given
    size: int
    slots: int  #: per edge; it holds with more, too
    tiles: tuple[int, ...]  #: the unrollings that were run
    instructions: int  #: of all Programs that were proved
    seconds: float
    origin: str = "proof"  #: or "certificate", "cache", "unproved"
    by: str = "rank by rank"  #: or which ranks stand for all, and up to what
    #: ranks whose Programs were held against that: of more, each does so before it runs
    compared: int = 0

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        """Say it in a sentence."""
        ranks = counted(self.size, "rank")
        if self.origin != "proof":
            return f"{self.name} at {ranks}: {self.origin}"
        return (
            f"{self.name} is correct at {ranks}: {self.instructions} instructions, proved in "
            f"{self.seconds:.3g} s, {self.how()}"
        )

    def how(self) -> str:
        """Say which ranks were proved, and which were compared with them."""
        if not self.compared:
            return self.by
        if self.compared == self.size:
            return f"{self.by}; all do the same"
        return (
            f"{self.by}; {self.compared} ranks were compared, and each compares its own program "
            "before it runs it"
        )

    def __repr__(self) -> str:
        return f"<pycoll.Verdict {self}>"
