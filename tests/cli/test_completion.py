"""What a shell needs to complete pycoll's commands."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

import pytest

from pycoll.cli import completion

needs_shtab = pytest.mark.skipif(
    importlib.util.find_spec("shtab") is None, reason="shtab is not installed"
)


@needs_shtab
@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_learns_commands_options_and_values(cli, shell):
    done = cli("completion", shell)
    assert done.code == 0
    for words in ("explain", "against", "bfloat16", "reduce_scatterv"):
        assert words in done.out


@needs_shtab
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pycoll", "ver"], "verify"),
        (["pycoll", "tr"], "trace"),
        (["pycoll", "bench", "--ag"], "--against"),
    ],
)
def test_bash_completes(cli, words, offered):
    script = cli("completion", "bash").out
    asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_pycoll; "
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{asked} printf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [offered]


def test_without_shtab_it_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = cli("completion", "bash")
    assert done.code == 2
    assert "completion is made by shtab, which does not load (" in done.err
    assert done.err.endswith("; pip install shtab\n")


def test_an_old_shtab_that_lacks_a_shell_is_named(cli, monkeypatch):
    old = type(sys)("shtab")
    old.SUPPORTED_SHELLS, old.__version__ = ["bash"], "1.0"
    monkeypatch.setitem(sys.modules, "shtab", old)
    done = cli("completion", "fish")
    assert done.code == 2
    assert "shtab 1.0 makes nothing for fish; pip install --upgrade shtab" in done.err


def test_nothing_else_loads_shtab():
    code = "import sys; from pycoll.cli import parser; parser(); assert 'shtab' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
