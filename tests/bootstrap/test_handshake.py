from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap import handshake
from pycoll.bootstrap.handshake import (
    PREFACE,
    PROTOCOL,
    Handshake,
    Preface,
    Side,
    check,
    proof,
    proves,
)
from pycoll.errors import BootstrapError

SECRET = b"s" * 32


def test_a_preface_survives():
    preface = Preface.make(3, 8)
    assert len(preface.encode()) == PREFACE.size == 48
    assert Preface.parse(preface.encode()) == preface


def test_every_preface_has_its_own_challenge():
    assert len({Preface.make(0, 1).nonce for _ in range(100)}) == 100


@given(st.binary(min_size=48, max_size=48))
def test_what_is_not_pycoll_is_said_to_be_so(data):
    with pytest.raises(BootstrapError, match=r"^what answered is not pycoll: it began with b"):
        Preface.parse(data)


def test_a_proof_convinces_only_its_own_conversation():
    client, server = Preface.make(1, 2), Preface.make(0, 2)
    given_proof = proof(SECRET, Side.CONNECTING, client, server)
    assert proves(given_proof, SECRET, Side.CONNECTING, client, server)
    assert not proves(given_proof, b"x" * 32, Side.CONNECTING, client, server)
    assert not proves(given_proof, SECRET, Side.LISTENING, client, server)  # reflected
    assert not proves(given_proof, SECRET, Side.CONNECTING, server, client)
    assert not proves(given_proof, SECRET, Side.CONNECTING, client, Preface.make(0, 2))  # replayed
    assert not proves(given_proof, SECRET, Side.CONNECTING, client._replace(rank=0), server)
    assert not proves(given_proof, SECRET, Side.CONNECTING, client._replace(version=9), server)


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (
            Preface(3, 4, 9, b""),
            r"^rank 3 speaks protocol 9, rank 0 wants 7: same pycoll version on all ranks\?$",
        ),
        (Preface(3, 5, PROTOCOL, b""), r"^rank 3 has size 5, rank 0 has size 4$"),
        (Preface(4, 4, PROTOCOL, b""), r"^a process says it is rank 4, want 0 to 3$"),
    ],
)
def test_a_peer_that_does_not_fit_the_job(peer, message):
    with pytest.raises(BootstrapError, match=message):
        check(peer, 0, 4)


def test_a_peer_that_fits():
    check(Preface.make(3, 4), 0, 4)
    assert len(proof(SECRET, Side.LISTENING, *[Preface.make(0, 1)] * 2)) == handshake.PROOF_BYTES


def talked(secret: bytes = SECRET) -> tuple[Handshake, Handshake]:
    """Let both sides of a connection shake hands."""
    calls = Handshake(Side.CONNECTING, secret, Preface.make(1, 2))
    serves = Handshake(Side.LISTENING, secret, Preface.make(0, 2))
    serves.feed(calls.own.encode())
    calls.feed(serves.feed(calls.feed(serves.own.encode())))
    assert calls.done
    assert serves.done
    return calls, serves


def test_both_ends_of_a_connection_have_the_same_seals_and_nobody_else_has():
    calls, serves = talked()
    (one, back), (two, forth) = calls.seals(), serves.seals()
    tags = [seal.tag(b"piece") for seal in (one, two)]
    assert [seal.tag(b"piece") for seal in (forth, back)] == tags
    again = [seal.tag(b"piece") for seal in talked()[0].seals()]
    assert len({*tags, *again}) == 4  # directions differ, and so do connections
