"""The guest: commands in it, from Python and from a shell, and what is left of it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import Guest, GuestError

GUEST = str(Path(__file__).with_name("guest.py"))


def test_it_runs_debians_kernel_on_this_machines_files(guest: Guest) -> None:
    said = guest.run(["sh", "-c", "uname -r; pwd; nproc; ulimit -l; cat /etc/os-release"]).stdout
    here = Path("/etc/os-release").read_text()
    assert said == f"{guest.release}\n{os.getcwd()}\n2\nunlimited\n{here}"
    assert guest.release != os.uname().release


def test_exit_status_and_streams_are_the_commands(guest: Guest) -> None:
    command = guest.run(["sh", "-c", "echo out; echo err >&2; exit 7"], check=False)
    assert (command.returncode, command.stdout, command.stderr) == (7, "out\n", "err\n")
    assert guest.run(["sh", "-c", "kill -TERM $$"], check=False).returncode == -signal.SIGTERM
    command = guest.run(["no-such-program"], check=False)
    assert command.returncode == 127
    assert command.stderr.startswith("no-such-program: [Errno 2] No such file or directory")
    with pytest.raises(GuestError, match=r"sh -c echo why; false ended with 1\n.*stdout:\nwhy"):
        guest.run(["sh", "-c", "echo why; false"])


def test_folder_variables_and_input_are_those_given(guest: Guest, tmp_path: Path) -> None:
    argv = ["sh", "-c", 'pwd; echo "$WORD"; cat; env | wc -l']
    env = {"WORD": "two  words\nand a line", "PATH": os.environ["PATH"]}
    said = guest.run(argv, cwd="/usr", env=env, input="read\n" * 20_000).stdout
    first, word, line, *read, variables = said.splitlines()
    assert (first, word, line) == ("/usr", "two  words", "and a line")
    assert read == ["read"] * 20_000
    assert int(variables) < 6  # a shell has some of its own


def test_much_output_comes_whole(guest: Guest) -> None:
    assert guest.run(["seq", "100000"]).stdout.split() == [str(n) for n in range(1, 100_001)]


def test_commands_run_at_once(guest: Guest) -> None:
    first, second = (guest.start(["sh", "-c", "read line; echo $line"], stdin=True) for _ in "12")
    for command, text in ((second, "second"), (first, "first")):
        command.send(f"{text}\n")
        assert (command.wait(), command.stdout) == (0, f"{text}\n")


def running(guest: Guest) -> str:
    """The arguments of every process."""
    return guest.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout


def test_what_a_command_started_ends_with_it(guest: Guest) -> None:
    guest.run(["sh", "-c", "setsid sleep 1001 & sleep 1002 &"])
    assert "sleep" not in running(guest)


def test_a_command_that_takes_too_long_is_killed_and_the_guest_lives(guest: Guest) -> None:
    with pytest.raises(GuestError, match=r"the end did not come in 10 seconds; sh -c .*(?s:.*)up"):
        guest.run(["sh", "-c", "echo up; sleep 1003 & sleep 1003"], timeout=10)
    assert "sleep" not in running(guest)
    command = guest.start(["echo", "other"])
    with pytest.raises(GuestError, match=r"ended with 0\n.*\nother and never said 'this'"):
        command.until("this")


def test_a_kernel_that_fails_is_shown_and_ends_the_guest() -> None:
    with Guest() as guest:
        crash = guest.start(["sh", "-c", "echo c >/proc/sysrq-trigger"])
        with pytest.raises(GuestError, match=r"the guest ended while sh -c(?s:.*)sysrq triggered"):
            crash.wait()
        assert not guest.alive
    with pytest.raises(GuestError, match=r"the guest has ended(?s:.*)sysrq triggered crash"):
        guest.run(["true"])


def test_only_shared_folders_change_here(guest: Guest, tmp_path: Path) -> None:
    Path(tmp_path, "from here").write_text("seen")
    elsewhere = Path(__file__).with_name("written")
    script = 'cat "from here"; echo back > "from there"; echo lost > "$0"; cat "$0"'
    said = guest.run(["sh", "-c", script, str(elsewhere)], cwd=tmp_path).stdout
    assert said == "seenlost\n"
    assert Path(tmp_path, "from there").read_text() == "back\n"
    assert not elsewhere.exists()


def processes_with(word: str) -> set[int]:
    """Processes here that have a word in their arguments."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if word.encode() in Path(folder, "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


@contextlib.contextmanager
def all_ends(word: str) -> Iterator[None]:
    """Wait at the end until the processes of a guest, known by a word, have ended."""
    yield
    left: list[int] = []
    for pid in processes_with(word):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            left.append(os.pidfd_open(pid))
    for process in left:
        assert select.select([process], [], [], 30)[0], "the guest still runs"
        os.close(process)


def test_from_a_shell(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; ibv_devices | grep -c rxe; exit 7"
    done = subprocess.run(
        [sys.executable, GUEST, "--nics", "2", "--share", str(tmp_path), "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n2\n", "err\n")
    assert not processes_with(str(tmp_path))


def test_from_a_shell_a_timeout_ends_the_guest_and_shows_its_console(tmp_path: Path) -> None:
    script = "echo up; echo on the console >/dev/console; sleep 1000"
    argv = [sys.executable, GUEST, "--timeout", "20", "--share", str(tmp_path), "--"]
    argv += ["sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stdout) == (124, "up\n")
    assert "guest: sh has not ended after 20 seconds\n" in done.stderr
    assert "on the console" in done.stderr
    assert not processes_with(str(tmp_path))


def test_no_guest_outlives_who_booted_it(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        GUEST,
        "--share",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        "echo up; sleep 1000",
    ]
    with (
        all_ends(str(tmp_path)),
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(processes_with(str(tmp_path))) == 2
        process.kill()
