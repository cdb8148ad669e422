"""The question to the kernel about lossless priorities, and its answers."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from pycoll.doctor.dcb import answer, lossless, question


def attribute(kind: int, body: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(body), kind) + body + b"\0" * (-len(body) % 4)


def reply(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def pfc(enabled: int) -> bytes:
    """The IEEE settings as a driver gives them: ETS, then struct ieee_pfc."""
    body = struct.pack("=BBBxHxx16Q", 8, enabled, 0, 0, *range(16))
    nested = attribute(1, bytes(60)) + attribute(2, body)
    whole = attribute(1, b"eth1\0") + attribute(13 | 0x8000, nested)
    return reply(79, struct.pack("=BBH", 0, 21, 0) + whole)


@pytest.mark.parametrize("enabled", [0, 0x08, 0xFF])
def test_an_answer(enabled):
    assert answer(pfc(enabled)) == enabled


@pytest.mark.parametrize(
    "message",
    [
        b"",
        pfc(8)[:30],
        reply(2, struct.pack("=i", -errno.EOPNOTSUPP) + question("eth1")),
        reply(79, struct.pack("=BBH", 0, 21, 0)),
        reply(79, struct.pack("=BBH", 0, 21, 0) + attribute(13, attribute(1, bytes(60)))),
        reply(79, struct.pack("=BBH", 0, 21, 0) + attribute(13, attribute(2, b"\x08"))),
        reply(79, struct.pack("=BBH", 0, 21, 0) + struct.pack("=HH", 0, 13)),
    ],
)
def test_an_answer_that_says_nothing(message):
    assert answer(message) is None


@pytest.mark.parametrize(
    ("interface", "error"), [("lo", errno.EOPNOTSUPP), ("nosuch0", errno.ENODEV)]
)
def test_the_kernel_understands_the_question(interface, error):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(10)
        kernel.bind((0, 0))
        kernel.send(question(interface))
        message = kernel.recv(1 << 16)
    kind, code = struct.unpack_from("=4xH10xi", message)
    if -code == errno.EOPNOTSUPP and interface == "nosuch0":
        pytest.skip("this kernel is built without CONFIG_DCB")
    assert (kind, -code) == (2, error)
    assert lossless(interface) is None
