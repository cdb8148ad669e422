"""Record: what a proof says to each rank, so that nobody else needs to make it again.

It answers what a rank's Program depends on besides its own steps, and tells the Programs that were
proved: a rank that lowers another one must not run it.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from pycoll.program.lower import Facts
from pycoll.program.program import Program
from pycoll.verify.prove import Verdict

DIGEST_BYTES = 8
#: For each rank, the steps that end an average.
Completes = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Record:
    """What is known of the Programs of all ranks of one form."""

    verdict: Verdict
    facts: Facts
    completes: Completes | None = None  #: of an average
    #: of each rank's Program; none of a certificate, which is tied to the source, and none where
    #: nothing was proved
    digests: bytes = b""

    def ending(self, rank: int) -> frozenset[int] | None:
        """Return the steps of a rank that end an average; None of a sum."""
        return None if self.completes is None else self.completes[rank]

    def admits(self, program: Program) -> bool:
        """Tell whether a rank may run this."""
        if not self.digests:
            return self.verdict.origin in ("certificate", "unproved")
        first = program.rank * DIGEST_BYTES
        return self.digests[first : first + DIGEST_BYTES] == digest_of(program)

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can write."""
        return {
            "verdict": asdict(self.verdict),
            "facts": list(self.facts),
            "completes": None if self.completes is None else _packed(self.completes),
            "digests": base64.b64encode(self.digests).decode(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any], **changes: Any) -> Record:
        """Return what `to_json` wrote; ``changes`` are of its verdict."""
        said = fields["verdict"]
        verdict = Verdict(**{**said, "tiles": tuple(said["tiles"]), **changes})
        widest, fused, edges = fields["facts"]
        completes = fields["completes"]
        return cls(
            verdict,
            Facts(int(widest), bool(fused), int(edges)),
            None if completes is None else _unpacked(completes),
            base64.b64decode(fields["digests"], validate=True),
        )


def digest_of(program: Program) -> bytes:
    """Return what tells one rank's Program from every other."""
    return hashlib.blake2b(program.to_bytes(), digest_size=DIGEST_BYTES).digest()


def _packed(completes: Completes) -> list[list[Any]]:
    """Write runs of ranks that end averages in the same steps: [steps, number of ranks]."""
    runs: list[list[Any]] = []
    for steps in completes:
        if runs and runs[-1][0] == sorted(steps):
            runs[-1][1] += 1
        else:
            runs.append([sorted(steps), 1])
    return runs


def _unpacked(runs: list[list[Any]]) -> Completes:
    return tuple(frozenset(steps) for steps, count in runs for _ in range(count))
