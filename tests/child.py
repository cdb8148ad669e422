"""A test in a process of its own: a child of the one that collected it, forked as it stands."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from _pytest.runner import runtestprotocol

SECONDS = 240  #: until a test that hangs shows where, and ends

Prepare = Callable[[pytest.Item, Path], None]


def run(item: pytest.Item, prepare: Prepare | None) -> Sequence[pytest.TestReport]:
    """Run a test in a child, which is first prepared with a folder of its own; its reports."""
    with tempfile.TemporaryDirectory(prefix="pycoll-test-") as name:
        folder = Path(name)
        sys.stdout.flush()
        sys.stderr.flush()
        faulthandler.cancel_dump_traceback_later()  # a thread, for which the child would wait
        child = os.fork()
        if child == 0:
            _run(item, folder, prepare)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            told = pickle.loads((folder / "reports").read_bytes())
            read = item.config.hook.pytest_report_from_serializable
            return [read(config=item.config, data=data) for data in told]
        said = (folder / "crash").read_text()
    text = f"the test's process ended with {code}\n{said}"
    call = pytest.CallInfo.from_call(lambda: pytest.fail(text, pytrace=False), "call")
    return [pytest.TestReport.from_item_and_call(item, call)]


def _run(item: pytest.Item, folder: Path, prepare: Prepare | None) -> NoReturn:
    """Run a test in this process, and end it."""
    code = 1
    with (folder / "crash").open("w") as crash:
        try:
            faulthandler.enable(crash)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, crash, chain=True)
            signal.alarm(SECONDS)
            if prepare is not None:
                prepare(item, folder)
            # What is torn down is this test's own; all else belongs to the parent.
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore
            write = item.config.hook.pytest_report_to_serializable
            told = [write(config=item.config, report=report) for report in reports]
            (folder / "reports").write_bytes(pickle.dumps(told))
            code = 0
        except BaseException:
            traceback.print_exc(file=crash)
        finally:
            crash.flush()
            os._exit(code)
