"""native/isa.h is generated; C and Python must not tell two stories."""

from __future__ import annotations

from pathlib import Path

from pycoll.program.isa import header_text


def test_header_in_the_tree_is_what_the_table_writes(root: Path) -> None:
    assert (root / "native" / "isa.h").read_text() == header_text(), "run `make isa`"
