"""pycoll's errors as torch's users expect them: each is a RuntimeError, and the class it was."""

from __future__ import annotations

from typing import NoReturn

from torch.distributed import DistBackendError

from pycoll import errors
from pycoll.errors import PycollError

#: Class of pycoll → the class of the same name that is torch's, too.
_JOINED: dict[type[PycollError], type[PycollError]] = {
    kind: type(name, (kind, DistBackendError), {"__doc__": kind.__doc__, "__module__": __name__})
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, PycollError)
}
globals().update({kind.__name__: kind for kind in _JOINED.values()})  # where pickle looks for them


def translated(error: PycollError) -> PycollError:
    """Return an error that is also torch's `DistBackendError`, a RuntimeError.

    It is an instance of the class that `error` has, too, and `error` is its ``__cause__``.
    """
    if DistBackendError in type(error).__mro__:
        return error
    kind = next(kind for kind in type(error).__mro__ if kind in _JOINED)
    text = str(error)
    if kind is errors.CollectiveTimeout:  # what scripts for torch look for
        text = f"Timed out (the timeout passed): {text}"
    found: PycollError = _JOINED[kind](text)
    found.__cause__ = error
    return found


class Failure:
    """The value of a future that failed, for those who do not ask Python for it.

    Python cannot give a future of torch an error that torch's C++ sees; there it is a value like
    others, and DDP looks for tensors in it, by pickling it. So it hears what went wrong.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    def unwrap(self) -> NoReturn:
        """Raise the error."""
        raise self._error
