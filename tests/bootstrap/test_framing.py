from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap.framing import (
    HEADER,
    LENGTH,
    MAX_KEY,
    Decoder,
    Frame,
    FrameType,
    encode,
    pack_blobs,
    sealed,
    unpack_blobs,
)
from pycoll.bootstrap.seal import TAG_BYTES, Seal, SealError, digest_of
from pycoll.errors import BootstrapError

LIMIT = 4096
KEY = b"k" * 32


def stream_of(sent: list[Frame], key: bytes = KEY) -> bytes:
    seal = Seal(key)
    return b"".join(sealed(frame, seal) for frame in sent)


def sealed_bytes(*pieces: bytes) -> bytes:
    """Return what a peer that knows the key sends, whatever it is."""
    seal = Seal(KEY)
    return b"".join(piece + seal.tag(digest_of(piece)) for piece in pieces)


frames = st.builds(
    Frame,
    st.sampled_from(FrameType),
    st.integers(0, 2**32 - 1),
    st.text(max_size=60),
    st.binary(max_size=LIMIT),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(frames, max_size=5), st.data())
def test_frames_survive_any_cutting_of_the_stream(sent, data):
    stream = stream_of(sent)
    decoder = Decoder(LIMIT, Seal(KEY))
    got = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert got == sent


@given(st.lists(frames, min_size=1, max_size=4))
def test_reading_what_is_missing_never_reads_past_a_frame(sent):
    stream = stream_of(sent)
    decoder = Decoder(LIMIT, Seal(KEY))
    for frame in sent:
        got = []
        while not got:
            count = decoder.missing()
            assert 0 < count <= len(stream)
            got = decoder.feed(stream[:count])
            stream = stream[count:]
        assert got == [frame]
    assert stream == b""


@given(st.binary(max_size=300))
def test_garbage_is_waited_on_or_its_seal_does_not_hold(data):
    decoder = Decoder(LIMIT, Seal(KEY))
    if len(data) < HEADER.size + TAG_BYTES:
        assert decoder.feed(data) == []
        return
    with pytest.raises(SealError, match=r"^control connection: the seal of piece 0 does not hold"):
        decoder.feed(data)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_what_a_peer_that_knows_the_key_may_send_is_frames_or_a_bootstrap_error(pieces):
    decoder = Decoder(LIMIT, Seal(KEY))
    try:
        got = decoder.feed(sealed_bytes(*pieces))
    except BootstrapError:
        return
    assert b"".join(map(encode, got)) == b"".join(pieces)[: len(b"".join(map(encode, got)))]


@given(frames, st.data())
def test_a_flipped_byte_is_noticed_before_the_frame_is_believed(frame, data):
    """Even in a length: nothing waits for bytes that nobody announced."""
    stream = bytearray(stream_of([frame]))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError, match="does not hold"):
        Decoder(LIMIT, Seal(KEY)).feed(bytes(stream))


@given(st.lists(frames, min_size=2, max_size=4, unique=True), st.data())
def test_frames_that_are_dropped_repeated_or_moved_are_not_believed(sent, data):
    seal = Seal(KEY)
    pieces = [sealed(frame, seal) for frame in sent]
    at = data.draw(st.integers(0, len(sent) - 2))
    change = data.draw(st.sampled_from(["drop", "repeat", "swap"]))
    if change == "drop":
        del pieces[at]
    elif change == "repeat":
        pieces.insert(at + 1, pieces[at])
        at += 1
    else:
        pieces[at], pieces[at + 1] = pieces[at + 1], pieces[at]
    decoder = Decoder(LIMIT, Seal(KEY))
    assert decoder.feed(b"".join(pieces[:at])) == sent[:at]
    with pytest.raises(SealError, match=rf"the seal of piece {2 * at} does not hold"):
        decoder.feed(b"".join(pieces[at:]))


@given(frames)
def test_a_frame_of_another_connection_or_direction_is_not_believed(frame):
    with pytest.raises(SealError, match="does not hold"):
        Decoder(LIMIT, Seal(KEY)).feed(stream_of([frame], b"x" * 32))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((0, 0, 0, 0, 0), r"^control frame: kind is 0\.0, want 1\.0 to 25\.0$"),
        ((77, 0, 0, 0, 0), r"^control frame: kind is 77\.0, want"),
        ((1, 3, 0, 0, 0), r"^control frame: kind is 1\.3, want"),
        ((1, 0, 257, 0, 0), r"^control frame: the key has 257 bytes, at most 256$"),
        ((7, 0, 0, 5, 2**32 - 1), r"^control frame: ABORT of rank 5 has 4294967295 bytes, at most"),
    ],
)
def test_a_bad_header_is_refused_before_its_body_comes(header, message):
    with pytest.raises(BootstrapError, match=message):
        Decoder(LIMIT, Seal(KEY)).feed(sealed_bytes(HEADER.pack(*header, 0)))


def test_a_key_that_is_not_text_is_refused():
    data = sealed_bytes(HEADER.pack(FrameType.ABORT, 0, 1, 0, 0, 0), b"\xff")
    with pytest.raises(BootstrapError, match=r"^control frame: ABORT: key is not UTF-8$"):
        Decoder(LIMIT, Seal(KEY)).feed(data)


def test_a_key_that_is_too_long_is_not_sent():
    with pytest.raises(BootstrapError, match=r"^control frame: the key has 300 bytes, at most"):
        encode(Frame(FrameType.ABORT, 0, "é" * 150))
    assert encode(Frame(FrameType.ABORT, 0, "k" * MAX_KEY))


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_blobs_survive(blobs):
    assert unpack_blobs(pack_blobs(blobs), len(blobs)) == blobs


@given(st.binary(max_size=60), st.integers(0, 5))
def test_garbage_blobs_are_an_error_or_repack_to_themselves(data, count):
    try:
        blobs = unpack_blobs(data, count)
    except BootstrapError:
        return
    assert (pack_blobs(blobs), len(blobs)) == (data, count)


@pytest.mark.parametrize("data", [b"\1", LENGTH.pack(2**32 - 1), pack_blobs([b"a", b"b"])])
def test_a_wrong_number_of_blobs_is_refused(data):
    with pytest.raises(
        BootstrapError, match=r"^control frame: \d+ bytes hold \d whole blobs, want"
    ):
        unpack_blobs(data, 1)
