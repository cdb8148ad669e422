"""What is carried to a machine that has a GPU, Python and numpy: it is all that is wanted there."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import fakecuda
import pytest

sys.path.append(str(Path(__file__).parent))

import bare
import carry
import cases
import run_all

from pycoll.dtypes import DTYPES, ReduceOp
from pycoll.runtime.cuda import compile

pytestmark = pytest.mark.native
needs_stand_in = pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")


def test_what_the_user_had_on_the_path_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/one{os.pathsep}/two")
    path = run_all.environment(False, tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(carry.ROOT), "/one", "/two"]
    monkeypatch.setattr(carry, "PACKAGES", {"absent": "no_such_module_anywhere"})
    path = run_all.environment(False, tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(carry.ROOT), str(tmp_path / "python"), "/one", "/two"]


def test_the_commit_is_known_where_there_is_no_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = tmp_path / "carried"
    carry.fill(carried, ())
    known = carry.commit(carried)
    assert (carried / "commit").read_text() == f"{known}\n"
    # Within another repository it is not that one's.
    monkeypatch.setattr(carry, "ROOT", tmp_path)
    (carried / "commit").write_text("0123456789ab\n")
    assert carry.commit(carried) == "0123456789ab"
    assert carry.commit(tmp_path / "elsewhere") == "unknown"


#: Phases of --first that the stand-in cannot play.
SKIPPED = {"sanitizer"}


@pytest.mark.timeout(900)
@needs_stand_in
def test_the_first_ten_minutes_on_a_machine_with_python_and_numpy(tmp_path: Path) -> None:
    python, source = bare.python(tmp_path / "python"), bare.source(tmp_path / "source")
    output, carried = tmp_path / "out", source / "build" / "gpu" / "carried"
    more = fakecuda.environment()
    given = ["--stand-in", "--first", "--short", "--output", str(output)]
    lacks = bare.run(python, source, *given, "probe", timeout=200, **more)
    assert lacks.returncode == 1
    assert "No module named '_cffi_backend'" in lacks.stdout
    # What is carried is found, though the output lies elsewhere.
    carry.fill(carried, ())
    (carried / "commit").write_text("0123456789ab\n")
    images(carried)
    done = bare.run(python, source, *given, "--minutes", "12", timeout=800, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((output / "gpu-first.json").read_text())
    assert (result["commit"], result["form"]) == ("0123456789ab", "first short")
    phases = result["phases"]
    assert list(phases) == list(run_all.FIRST)
    found = {name: outcome["status"] for name, outcome in phases.items()}
    assert found == {name: "skipped" if name in SKIPPED else "passed" for name in phases}
    for size in (2, 4, 8):  # every algorithm reaches slots, tiles and lanes, in every dtype named
        details = phases["fused"]["details"][f"{size} ranks"]
        assert details["dtypes"] == ["bfloat16", "float32", "int8"]
        assert details["cases"] > 3 * len(cases.every_algorithm())
        assert not details["failures"]
    assert set(phases["threads"]["details"]) >= {"late", "abort", "streams", "graphs", "proxy"}
    assert phases["processes"]["details"]["2 ranks"]["reach"] == ["cuda", "cuda"]
    for name in ("gpu-one.json", "gpu-alone.json"):
        assert json.loads((output / name).read_text())["rows"], name
    # Its kernels were those that were carried: there is nothing to compile with.
    assert phases["fused"]["details"]["kernels"] == "carried"


def images(carried: Path) -> None:
    """Put something for every kernel where `prepare` puts it: the stand-in takes anything."""
    for dtype in DTYPES:
        for op in ReduceOp:
            image(carried, compile.entry(dtype, op))
    image(carried, compile.TRANSFER)


def image(carried: Path, which: str) -> None:
    name = compile._name(which, (9, 0), (12, 9))
    compile._store(carried / "pycoll" / "kernels" / f"{name}.cubin", name, b"any\0")


@pytest.mark.parametrize(("table", "names"), [(0, run_all.PHASES), (1, run_all.FIRST)])
def test_the_docs_have_the_phases_in_their_order(table: int, names: Any) -> None:
    text = (carry.ROOT / "docs" / "gpu-machine.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    rows = [line.split("|")[1].strip() for line in tables[table].splitlines()[2:]]
    assert rows == [getattr(name, "name", name) for name in names]
    seconds = re.findall(r"^\| \w+ \| (\d+) \|", tables[1], re.M)
    assert list(map(int, seconds)) == list(run_all.FIRST.values())
    assert sum(run_all.FIRST.values()) <= 600


def test_the_first_phases_are_in_the_order_of_all() -> None:
    assert list(run_all.FIRST) == [p.name for p in run_all.PHASES if p.name in run_all.FIRST]
