"""What tests compile is made anew where anything that it reads has changed, and only then."""

from __future__ import annotations

import subprocess
from pathlib import Path

import compiled
import pytest

MAIN = """
#include <stdio.h>
#include "word.h"
int main(void) { return puts(WORD) < 0; }
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    compiled.require()
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "kept")
    return tmp_path / "kept"


def unit(folder: Path, word: str) -> compiled.Unit:
    """A program that says a word of a header, in a folder that is made."""
    folder.mkdir(exist_ok=True)
    (folder / "word.h").write_text(f'#define WORD "{word}"\n')
    source = folder.parent / "say.c"
    source.write_text(MAIN)
    return compiled.Unit(source, (f"-I{folder}",))


def said(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_the_same_is_made_once(tmp_path: Path) -> None:
    one = compiled.linked("say", [unit(tmp_path / "a", "one")])
    made = one.stat()
    assert compiled.linked("say", [unit(tmp_path / "a", "one")]) == one
    assert (one.stat().st_ino, one.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)


def test_a_header_and_a_flag_count(tmp_path: Path) -> None:
    one = compiled.linked("say", [unit(tmp_path / "a", "one")])
    two = compiled.linked("say", [unit(tmp_path / "b", "two")])
    assert (said(one), said(two)) == ("one\n", "two\n")
    assert compiled.linked("say", [unit(tmp_path / "a", "one")], "-Wl,-O1") != one


def test_what_the_linker_reads_counts(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        made.append(compiled.linked("say", [unit(tmp_path / "c", "x")], reads=[tmp_path / name]))
    assert made[0] != made[1]


def test_what_does_not_compile_leaves_nothing(tmp_path: Path, kept: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int main(void) { return nothing; }\n")
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"broken\.c.*nothing"):
            compiled.linked("broken", [compiled.Unit(source, ())])
    assert not [path for path in kept.rglob("*") if path.suffix == ".o"]


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="core/nothing"):
        compiled.parts("plain", ["core/nothing"])
