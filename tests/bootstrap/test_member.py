from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import HELLO_LIMIT
from pycoll.errors import BootstrapError


def test_this_process_describes_itself():
    me = Member.me()
    assert me.pid == os.getpid()
    assert str(me) == f"process {os.getpid()} on {socket.gethostname()}"
    assert Member.parse(me.encode()) == me
    assert Member.parse(me._replace(port=7, address="::1").encode()).port == 7
    assert len(me.encode()) <= HELLO_LIMIT


@given(st.binary(max_size=40))
def test_any_bytes_are_a_member_or_a_bootstrap_error(data):
    try:
        member = Member.parse(data)
    except BootstrapError:
        return
    assert member.encode() == data


def test_a_short_hello_is_refused():
    with pytest.raises(BootstrapError, match=r"^hello: 3 bytes, want at least 15$"):
        Member.parse(b"abc")


def test_an_address_that_is_cut_off_is_refused():
    whole = Member(1, 2, "", "10.0.0.1").encode()
    with pytest.raises(BootstrapError, match=r"^hello: 22 bytes, want at least 23$"):
        Member.parse(whole[:-1])


def test_a_member_is_seen_at_an_address():
    seen = Member.me().seen_at("::ffff:10.0.0.1")
    assert seen.address == "10.0.0.1"
    assert Member.parse(seen.encode()) == seen


def test_a_host_that_is_not_text_is_refused():
    with pytest.raises(BootstrapError, match=r"^hello: the host's name is not UTF-8$"):
        Member.parse(bytes(15) + b"\xff")
