"""What cannot be served on a GPU is refused, with what to do instead."""

from __future__ import annotations

import re
from typing import Any

import gpus
import numpy as np
import pytest

import pycoll

pytestmark = gpus.MARKS


def test_arrays_that_are_not_served() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            good = gpus.of(np.ones(6, "f4"))

            def refused(message: str, call: Any, *arguments: Any, **more: Any) -> None:
                with pytest.raises(pycoll.UsageError, match=message):
                    call(*arguments, **more)

            on_host = gpus.Seen(np.ones(6, "f4"))
            refused("knows of no memory of a GPU", comm.allreduce, on_host)
            strided = gpus.Seen(good.host, strides=(8,))
            refused(r"not contiguous \(shape \(6,\), strides \(8,\)\)", comm.allreduce, strided)
            turned = gpus.of(np.ones((2, 3), "f4"))
            turned.__cuda_array_interface__["strides"] = (4, 8)
            refused("not contiguous", comm.allreduce, turned)
            refused(
                "dtype complex64, which can be moved", comm.allreduce, gpus.of(np.ones(2, "c8"))
            )
            masked = gpus.Seen(good.host, mask=object())
            refused("has a mask", comm.allreduce, masked)
            swapped = gpus.Seen(good.host, typestr=">f4")
            refused(r"dtype >f4, .*newbyteorder", comm.allreduce, swapped)
            host = np.ones(6, "f4")
            mixed = "one array is on cuda:0 and another on the host"
            refused(mixed, comm.allreduce, good, host)
            refused("on the host and another on cuda:0", comm.allreduce, host, good)
            refused(mixed, comm.allreduce, [good, host])
            refused(mixed, comm.allgather, gpus.of(np.ones(3, "f4")), host)
            fixed = gpus.Seen(good.host, data=(good.host.ctypes.data, True))
            refused("x is read-only", comm.allreduce, fixed)
            refused("out has shape", comm.allreduce, good, gpus.of(np.ones(5, "f4")))
            refused("out has dtype", comm.allreduce, good, gpus.of(np.ones(6, "f8")))
            overlapping = gpus.Seen(good.host[1:5]), gpus.Seen(good.host[0:4])
            refused("overlaps it", comm.allreduce, *overlapping)
            for call in (comm.send, comm.recv):
                refused(r"no GPU yet.* comm\.cuda\(\) on all ranks first", call, good, 0)
            refused(mixed, comm.exchange, [(good, 0)], [(host, 0)])
            refused("overlaps it", comm.alltoallv, good, [3, 3], good, [3, 3])
            refused("device is \"gpu\"|device is 'gpu'", comm.empty, 3, device="gpu")
            refused("no GPU yet", comm.explain, "allreduce", 8, device="cuda")
            # Nothing of all that was a call: this is the first.
            assert comm.allreduce(good) is good

    gpus.ranks(2, rank)


def test_a_rank_uses_one_gpu() -> None:
    def rank() -> None:
        import fakecuda

        with pycoll.init() as comm:
            assert comm.cuda(comm.rank).device == comm.rank
            fakecuda.use(comm.rank)
            x = gpus.of(np.ones(5, "f4"))
            assert comm.allreduce(x, async_op=True).synchronize() is x
            assert x.host.tolist() == [2.0] * 5
            fakecuda.use(1 - comm.rank)
            there = gpus.of(np.ones(5, "f4"))
            text = re.escape(
                f"an array is on cuda:{1 - comm.rank}, and the GPU of this communicator is "
                f"cuda:{comm.rank}"
            )
            with pytest.raises(pycoll.UsageError, match=text):
                comm.allreduce(there)

    gpus.ranks(2, rank, devices=2)


def test_without_a_gpu_all_ranks_hear_what_is_missing() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            with pytest.raises(pycoll.UnavailableError, match=r"rank 0 cannot use GPU 0.*rank 1"):
                comm.cuda()
            assert comm.allreduce(np.ones(2)).tolist() == [2, 2]  # the rest goes on

    pycoll.spawn(rank, 2, timeout=60)


def test_one_rank_without_a_gpu_is_named_on_all() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            device = 7 if comm.rank else 0
            with pytest.raises(pycoll.UnavailableError, match=r"^rank 1 cannot use GPU 7"):
                comm.cuda(device)
            comm.cuda(0)  # another try is another plane
            x = gpus.of(np.ones(3, "f4"))
            comm.allreduce(x, async_op=True).synchronize()
            assert x.host.tolist() == [2.0] * 3

    gpus.ranks(2, rank)


def test_one_rank_without_a_compiler_is_named_on_all() -> None:
    def rank() -> None:
        from pycoll.runtime.cuda import kernels

        def lacks(*_: Any) -> None:
            raise pycoll.UnavailableError("arrays of a GPU need cupy")

        with pycoll.init() as comm:
            good = kernels.compile.require
            if comm.rank == 1:
                kernels.compile.require = lacks
            text = "^rank 1 cannot use GPU 0: arrays of a GPU need cupy$"
            x = gpus.of(np.ones(3, "f4"))
            with pytest.raises(pycoll.UnavailableError, match=text):
                comm.allreduce(x)
            kernels.compile.require = good
            comm.allreduce(x, async_op=True).synchronize()
            assert x.host.tolist() == [2.0] * 3

    gpus.ranks(2, rank)


def test_a_number_that_is_no_gpus() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for device in ("x", 1.5, -1, 2**40):
                with pytest.raises(pycoll.UsageError, match=r"cuda: device is .*, want the number"):
                    comm.cuda(device)
            comm.cuda(np.int64(0))  # nobody had come to what is told above

    gpus.ranks(2, rank)
