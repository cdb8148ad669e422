"""Finding: one thing that the report names, without being asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """What is wrong, and with whom.

    Attributes:
        kind: "late", "link", "port", "disagreement", "stopped", "lost", "stuck", "error" or
            "missing"; docs/trace.md says what each means.
        ranks: Of the job: whom it names.
        text: For people: a line, and those below it with what explains it.
        details: For programs; the keys are those of docs/trace.md.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str
    details: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {"kind": self.kind, "ranks": list(self.ranks), "text": self.text, **self.details}
