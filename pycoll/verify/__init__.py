"""Prove the Programs of all ranks before any of them runs.

``pycoll.verify`` is this package and can be called: ``pycoll.verify("ring", size=8)``.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from pycoll.verify.algorithm import verify
from pycoll.verify.gate import by_certificate, gate
from pycoll.verify.prove import verify_programs
from pycoll.verify.record import Record
from pycoll.verify.verdict import Verdict

__all__ = ["Record", "Verdict", "by_certificate", "gate", "verify", "verify_programs"]


class _CallablePackage(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Verdict:
        """Call `verify` of this package."""
        return verify(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
