"""What every method of a process group passes: errors, the profiler, calls that are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pycoll.errors import PycollError
from pycoll.interop.torch_error import translated
from pycoll.interop.torch_profile import profiling, recorded
from pycoll.interop.torch_work import Pending

_Method = TypeVar("_Method", bound=Callable[..., Any])


def torch_errors(method: _Method) -> _Method:
    """Have a method raise pycoll's errors as torch's users expect them."""

    @functools.wraps(method)
    def raising(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except PycollError as error:
            raise translated(error) from error

    return cast(_Method, raising)


def call(
    name: str, at: int | None = 0, lane: Callable[..., tuple[Any, bool, Any]] | None = None
) -> Callable[[_Method], _Method]:
    """Have a method that prepares a call make it; torch's profiler sees that.

    The method looks at all that it was given, and returns what makes the call. Where it raises
    instead, the call takes its place among those of the group all the same: other ranks may have
    made theirs. From then on whatever is called sees to that itself.

    Args:
        name: Of the call, as torch names it.
        at: Which argument holds what this rank brings; None: nothing.
        lane: Of a message: takes what the method takes; gives peer, whether it is sent, and tag.
    """

    def calling(method: _Method) -> _Method:
        @functools.wraps(method)
        def make(group: Any, *arguments: Any, **options: Any) -> Any:
            try:
                try:
                    prepared = method(group, *arguments, **options)
                except BaseException as error:
                    if lane is None:
                        group._refused(name, error)
                    else:
                        group._refused_message(name, error, *lane(*arguments, **options))
                    raise
                return prepared()
            except PycollError as error:
                raise translated(error) from error

        return cast(_Method, _shown(name, at, make))

    return calling


def _shown(name: str, at: int | None, method: Any) -> Any:
    @functools.wraps(method)
    def seen(self: Any, *arguments: Any, **options: Any) -> Any:
        if not profiling():
            return method(self, *arguments, **options)
        with recorded(name, () if at is None else arguments[at : at + 1]):
            found = method(self, *arguments, **options)
        if isinstance(found, Pending):
            found.name = name
        return found

    return seen
