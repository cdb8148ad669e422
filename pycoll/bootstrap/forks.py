"""Forks: the ranks of `pycoll run` as copies of one process, which has imported what they need.

A fresh interpreter takes a fifth of a second of a core, and 30 MB, to import numpy and pycoll; a
thousand of them take minutes. So the worker becomes a fresh interpreter itself, with the
environment of a rank, imports both and forks. A copy goes on as an interpreter that was told to
run the program would: with its `sys.argv`, `sys.path`, `__main__`, signals, tracebacks and end.

What differs: `os.environ` changed by the program before it imports numpy comes too late for numpy;
all ranks have one hash seed; `ps` shows the worker's command, which ends with the program's.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import importlib.machinery
import io
import os
import resource
import runpy
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from pycoll.bootstrap import supervisor
from pycoll.bootstrap.descriptors import restore
from pycoll.bootstrap.local_child import die_with, limit_malloc
from pycoll.bootstrap.preload import preload
from pycoll.bootstrap.processes import Started, Starter, shared_environ
from pycoll.bootstrap.ranks import Ranks

_MOST_DESCRIPTORS = 1 << 20  #: that are closed in a rank
#: The worker begins with it. The path of a rank is what it has besides the folder of this package.
#: What is registered first is called last, behind whatever ends what was imported.
_CODE = """\
import atexit, sys
last = []
atexit.register(lambda last=last: [call() for call in last])
path = [folder for folder in sys.path if folder]
sys.path[:] = [*path, {root!r}]
from pycoll.bootstrap.forks import main
main(path, last)"""


def work(program: list[str], size: int, grace: float, soft: int) -> NoReturn:
    """Go on, in the worker, as the interpreter that the ranks will be copies of.

    Args:
        program: As an interpreter takes it: ["-m"], file or module, and its arguments.
        size: Number of ranks.
        grace: As `Ranks` takes it.
        soft: The limit of file descriptors that a rank has.
    """
    code = _CODE.format(root=str(Path(__file__).parents[2]))
    command = [sys.executable, "-c", code, str(size), repr(grace), str(soft), *program]
    supervisor.execute(command, shared_environ(size))


def main(path: list[str], last: list[Callable[[], None]]) -> None:
    """Be the worker, or return at the end of a rank's program.

    Args:
        path: What the ranks have of `sys.path`, but for its first entry.
        last: What the interpreter calls in the end, after all other exit handlers.
    """
    signals = supervisor.signal_pipe()
    size, grace, soft, *program = sys.argv[1:]
    preload(int(size))
    gc.collect()
    gc.freeze()  # else a collection copies every page that has an object of this process
    ranks = Ranks(Forks(int(size), int(soft)), float(grace))
    if ranks.start(signals):
        sys.exit(ranks.wait(signals))
    del ranks
    last.append(functools.partial(_leave_alone, [*sys.modules]))
    _become(path, program)


def _leave_alone(imported: list[str]) -> None:
    """Keep the interpreter's end from taking apart what was there before the fork.

    That would copy most of its pages, 17 MB of each of perhaps a thousand ranks at once.
    """
    for name in imported:
        module = sys.modules.get(name)
        if module is not None and name not in ("sys", "builtins", "__main__"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))  # no reference is the last one
            del sys.modules[name]


class Forks(Starter):
    """Starts each rank as a copy of this process, which has one thread.

    Those of a BLAS that numpy has loaded end before a fork, and begin anew in the copy.
    """

    def start(self, rank: int) -> Started | None:
        """Fork; None in the rank, which has its environment, its streams and no more open."""
        out, err = os.pipe(), os.pipe()
        parent = os.getpid()
        pid = supervisor.fork()
        if pid:
            os.close(out[1])
            os.close(err[1])
            return Started(_Forked(pid), out[0], err[0])
        die_with(parent)
        limit_malloc(self.size)
        os.environ.update(self.variables(rank))
        self.close()
        os.dup2(out[1], 1)
        os.dup2(err[1], 2)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.closerange(3, _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard)
        restore(self._soft)
        supervisor.no_signal_pipe()
        return None


class _Forked:
    """A `Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """See `Process`."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, sig: int) -> None:
        """See `Process`."""
        if self.poll() is None:
            os.kill(self.pid, sig)


def _become(path: list[str], program: list[str]) -> None:
    """Run a program as `python` with these arguments does, up to the interpreter's own end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=False)  # the worker's may be a terminal
    sys.orig_argv = [sys.executable, *program]
    module = program[0] == "-m"
    sys.argv = program[1:] if module else program
    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(dict.fromkeys(("__doc__", "__package__", "__loader__", "__spec__")))
    names.update(__name__="__main__", __annotations__={}, __builtins__=builtins)
    try:
        if module:
            _run_module(path, os.getcwd(), sys.argv[0])
        elif os.path.isdir(sys.argv[0]) or zipfile.is_zipfile(sys.argv[0]):
            _run_module(path, os.path.abspath(sys.argv[0]))
        else:
            _run_file(path, sys.argv[0], names)
    except BaseException as error:
        _show_from(_of_the_program(error.__traceback__))
        raise


def _run_module(path: list[str], folder: str, name: str = "") -> None:
    """Run a module by its name, or the one that is the main one of a folder or an archive."""
    _search(path, folder)
    if name:
        sys.argv[0] = "-m"  # as long as it is sought
    run = runpy._run_module_as_main  # type: ignore[attr-defined]  # as the interpreter does
    run(name or "__main__", alter_argv=bool(name))


def _run_file(path: list[str], file: str, names: dict[str, object]) -> None:
    _search(path, os.path.dirname(os.path.realpath(file)))
    whole = os.path.abspath(file)
    loader: importlib.machinery.SourceFileLoader | importlib.machinery.SourcelessFileLoader
    if file.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", whole)
        code = loader.get_code("__main__")
        assert code is not None
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", whole)
        code = compile(loader.get_data(whole), whole, "exec", dont_inherit=True)
    names.update(__file__=whole, __cached__=None, __loader__=loader)
    exec(code, names)


def _search(path: list[str], first: str) -> None:
    sys.path[:] = path if sys.flags.safe_path else [first, *path]


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return what is left of a traceback behind the frames of this module."""
    while traceback and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _show_from(traceback: TracebackType | None) -> None:
    """Have the interpreter show no more than this of what ends it."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        shown(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = hook
