"""Record: what a proof says to each rank, so that nobody else needs to make it again.

It answers what a rank's Program depends on besides its own steps, and tells the Programs that were
proved: of each rank, or of those that represent all others up to a group. A rank that lowers
another Program must not run it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pycoll.program.image import Image
from pycoll.program.isa import Space
from pycoll.program.lower import Facts, scaled
from pycoll.program.program import Program
from pycoll.schedule import FLAT, Collective, Placement
from pycoll.verify.symmetry.canonical import DIGEST_BYTES as CLASS_BYTES
from pycoll.verify.symmetry.canonical import NotSymmetricError, class_digest, move
from pycoll.verify.symmetry.group import Group, Rotation, Xor
from pycoll.verify.symmetry.proof import covers
from pycoll.verify.verdict import Verdict

DIGEST_BYTES = 8
_GROUPS: dict[str, type[Group]] = {kind.__name__: kind for kind in (Rotation, Xor)}
#: Of each rank, or of each class of ranks, the instructions that divide.
Scales = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Record:
    """What is known of the Programs of all ranks of one form."""

    verdict: Verdict
    facts: Facts
    #: of each rank's Program of a sum, or of each class's where there is a group; none of a
    #: certificate that is tied to the source alone, and none where nothing was proved
    digests: bytes = b""
    group: Group | None = None  #: up to which ranks of a class do the same
    cut: bool = False  #: but for how ranges of chunks are cut
    scales: Scales | None = None  #: of an average

    def admits(
        self, program: Program, collective: Collective, lower: Callable[[int], Program]
    ) -> bool:
        """Tell whether a rank may run this Program of a sum, or `finished` that of an average.

        Args:
            program: What the rank has lowered.
            collective: What it is for.
            lower: Lowers the steps of the rank that represents this one, should it be needed.
        """
        if not self.digests:
            return self.verdict.origin in ("certificate", "unproved")
        if self.group is None:
            return self._digest(program.rank, DIGEST_BYTES) == digest_of(program)
        number = self.representative(program.rank)
        theirs = lower(number) if self.cut else None
        if self.cut and widest_of(program) > self.facts.widest:
            return False
        return covers(
            program, self._digest(number, CLASS_BYTES), collective, self.group, self.cut, theirs
        )

    def lowered_for(self, placement: Placement | None) -> Placement | None:
        """Return the placement for which ranks lower what runs at another one.

        Certificates are of flat placements. They cover what does not ask for another, and name what
        they cover by the flat one.
        """
        return FLAT if self.verdict.origin == "certificate" else placement

    @property
    def alike(self) -> bool:
        """Tell whether every rank's Program is that of its representative, moved by the group."""
        return self.group is not None and not self.cut

    @property
    def classes_are_large(self) -> bool:
        """Tell whether they are `alike`, and at least as many to a class as there are classes."""
        return self.group is not None and self.alike and self.group.order >= self.group.step

    def representative(self, rank: int) -> int:
        """Return the rank that was proved for this one."""
        return rank if self.group is None else rank % self.group.step

    def image(self, blob: bytes, rank: int) -> Image | None:
        """Return a rank's Program; None if ``blob`` was not proved, or has no image there.

        Args:
            blob: The Program of a sum of the rank's representative, where all are `alike`.
            rank: Any rank.
        """
        image, number = Image.of(blob), self.representative(rank)
        if self.group is None or class_digest(image) != self._digest(number, CLASS_BYTES):
            return None
        try:
            move(image, self.group, self.group.element(rank))
        except NotSymmetricError:  # the proof looked at a few ranks
            return None
        if self.scales is not None:
            image.scale(self.scales[number])
        return image

    def finished(self, program: Program) -> Program:
        """Return the Program that runs where this is the one of a sum."""
        if self.scales is None:
            return program
        return scaled(program, self.scales[self.representative(program.rank)])

    def _digest(self, number: int, nbytes: int) -> bytes:
        return self.digests[number * nbytes : (number + 1) * nbytes]

    def to_row(self) -> list[Any]:
        """Return all but the verdict, as what JSON can write in little room."""
        group = self.group
        return [
            *self.facts,
            base64.b64encode(self.digests).decode(),
            None if group is None else [type(group).__name__, *asdict(group).values()],
            self.cut,
            None if self.scales is None else packed(self.scales),
        ]

    @classmethod
    def from_row(cls, verdict: Verdict, row: Sequence[Any]) -> Record:
        """Return what `to_row` wrote."""
        widest, fused, edges, digests, group, cut, scales = row
        return cls(
            verdict,
            Facts(int(widest), bool(fused), int(edges)),
            base64.b64decode(digests, validate=True),
            None if group is None else _GROUPS[group[0]](*group[1:]),
            bool(cut),
            None if scales is None else unpacked(scales),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can write."""
        return {"verdict": asdict(self.verdict), "row": self.to_row()}

    @classmethod
    def from_json(cls, fields: dict[str, Any], **changes: Any) -> Record:
        """Return what `to_json` wrote; ``changes`` are of its verdict."""
        said = fields["verdict"]
        verdict = Verdict(**{**said, "tiles": tuple(said["tiles"]), **changes})
        return cls.from_row(verdict, fields["row"])


def digest_of(program: Program) -> bytes:
    """Return what tells one rank's Program from every other."""
    return hashlib.blake2b(program.to_bytes(), digest_size=DIGEST_BYTES).digest()


def widest_of(program: Program) -> int:
    """Return the chunks of the widest message that a Program sends or receives."""
    operands = (o for i in program.instructions for o in i.sources + i.destinations)
    return max((o.nchunks for o in operands if o.space == Space.SLOT), default=1)


def packed(scales: Scales) -> list[list[Any]]:
    """Write runs of neighbours that divide in the same instructions: [instructions, how many]."""
    runs: list[list[Any]] = []
    for one in scales:
        if runs and runs[-1][0] == sorted(one):
            runs[-1][1] += 1
        else:
            runs.append([sorted(one), 1])
    return runs


def unpacked(runs: Sequence[Sequence[Any]]) -> Scales:
    """Return what `packed` wrote."""
    return tuple(frozenset(one) for one, count in runs for _ in range(count))
