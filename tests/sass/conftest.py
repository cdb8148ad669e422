"""Where what these tests share is found, and kernels that are compiled once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from pycoll.dtypes import DType, ReduceOp
from pycoll.runtime.cuda import compile

Key = tuple[DType, ReduceOp, tuple[int, int]]
#: Of the kernel of messages between two ranks.
TransferKey = tuple[tuple[int, int]]


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> Iterator[Callable[[Key | TransferKey], bytes]]:
    """The module of a dtype, operator and GPU: made ahead by two threads, kept for next time."""
    import listing

    lacking = compile.missing() or listing.lack()
    if lacking:
        pytest.skip(lacking)
    folder = Path(request.config.cache.mkdir("kernels"))
    pool = ThreadPoolExecutor(2)
    made: dict[Key | TransferKey, Future[bytes]] = {}
    for item in request.session.items:  # only what will be asked for, in that order
        key = getattr(item, "callspec", None) and item.callspec.params.get("key")
        if key is not None:
            make = compile.transfer_cubin if len(key) == 1 else compile.cubin
            made[key] = pool.submit(make, *key, folder)
    yield lambda key: made[key].result()
    pool.shutdown(cancel_futures=True)
