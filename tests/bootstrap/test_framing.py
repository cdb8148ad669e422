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
    Kind,
    encode,
    pack_blobs,
    unpack_blobs,
)
from pycoll.errors import BootstrapError

LIMIT = 4096

frames = st.builds(
    Frame,
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    st.text(max_size=60),
    st.binary(max_size=LIMIT),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(frames, max_size=5), st.data())
def test_frames_survive_any_cutting_of_the_stream(sent, data):
    stream = b"".join(encode(frame) for frame in sent)
    decoder = Decoder(LIMIT)
    got = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert got == sent


@given(st.lists(frames, min_size=1, max_size=4))
def test_reading_what_is_missing_never_reads_past_a_frame(sent):
    stream = b"".join(encode(frame) for frame in sent)
    for frame in sent:
        decoder = Decoder(LIMIT)
        got = []
        while not got:
            count = decoder.missing()
            assert 0 < count <= len(stream)
            got = decoder.feed(stream[:count])
            stream = stream[count:]
        assert got == [frame]
    assert stream == b""


@given(st.binary(max_size=300))
def test_garbage_is_an_error_or_is_waited_on_and_never_anything_else(data):
    decoder = Decoder(LIMIT)
    try:
        got = decoder.feed(data)
    except BootstrapError:
        return
    assert b"".join(map(encode, got)) == data[: len(b"".join(map(encode, got)))]


@given(frames, st.data())
def test_a_flipped_byte_never_escapes_as_another_error(frame, data):
    stream = bytearray(encode(frame))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    try:
        got = Decoder(LIMIT).feed(bytes(stream))
    except BootstrapError:
        return
    assert frame not in got


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((0, 0, 0, 0, 0), r"^control frame: kind is 0\.0, want 1\.0 to 14\.0$"),
        ((77, 0, 0, 0, 0), r"^control frame: kind is 77\.0, want"),
        ((1, 3, 0, 0, 0), r"^control frame: kind is 1\.3, want"),
        ((1, 0, 257, 0, 0), r"^control frame: the key has 257 bytes, at most 256$"),
        ((7, 0, 0, 5, 2**32 - 1), r"^control frame: ABORT of rank 5 has 4294967295 bytes, at most"),
    ],
)
def test_a_bad_header_is_refused_before_its_body_comes(header, message):
    with pytest.raises(BootstrapError, match=message):
        Decoder(LIMIT).feed(HEADER.pack(*header, 0))


def test_a_key_that_is_not_text_is_refused():
    with pytest.raises(BootstrapError, match=r"^control frame: ABORT: key is not UTF-8$"):
        Decoder(LIMIT).feed(HEADER.pack(Kind.ABORT, 0, 1, 0, 0, 0) + b"\xff")


def test_a_key_that_is_too_long_is_not_sent():
    with pytest.raises(BootstrapError, match=r"^control frame: the key has 300 bytes, at most"):
        encode(Frame(Kind.ABORT, 0, "é" * 150))
    assert encode(Frame(Kind.ABORT, 0, "k" * MAX_KEY))


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
