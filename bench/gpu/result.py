"""A result that is on disk as far as it has come: who measured what, and every row so far."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import ratios


@dataclass
class Result:
    """What was measured, in a file that is written with each row: who is killed loses nothing."""

    path: Path
    meta: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Result:
        """Return what a file has; nothing, if there is none."""
        try:
            known = json.loads(path.read_text())
        except FileNotFoundError:
            return cls(path)
        return cls(path, known["meta"], known["rows"])

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, and write the file."""
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"meta": self.meta, "rows": self.rows, "ratios": ratios(self.rows)}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(part, self.path)
