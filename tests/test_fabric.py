"""What PYCOLL_VERBS and PYCOLL_RAILS say."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.config import Config
from pycoll.errors import UsageError
from pycoll.fabric import MAX_RAILS, Fabric, Rail, Rails

FABRICS = st.builds(
    Fabric,
    tc=st.integers(0, 255),
    sl=st.integers(0, 15),
    timeout=st.integers(1, 31),
    retry=st.integers(0, 7),
    qps=st.integers(1, 8),
    srq=st.integers(0, 1 << 20),
    mtu=st.sampled_from([0, 256, 512, 1024, 2048, 4096]),
    pkey=st.sampled_from([0, 1, 0x7FFF, 0x8001, 0xFFFF]),
)
RAILS = st.builds(
    Rail, st.text("abcxyz0123_", min_size=1, max_size=20), st.integers(1, 255), st.integers(-1, 255)
)


def test_every_key_is_optional() -> None:
    assert Fabric.parse("tc=96") == Fabric(tc=96)
    assert Fabric.parse("mtu=1024, qps=2") == Fabric(qps=2, mtu=1024)
    every = Fabric.parse("tc=106,sl=3,timeout=14,retry=6,qps=2,srq=9,mtu=4096,pkey=0x8001")
    assert every == (106, 3, 14, 6, 2, 9, 4096, 0x8001)


def test_a_path_has_failed_after_two_seconds() -> None:
    fabric = Fabric()
    seconds = 4.096e-6 * 2**fabric.timeout * (fabric.retry + 1)
    assert 1.8 < seconds < 2.2


def test_the_default_is_shown_as_it_is_written() -> None:
    assert str(Fabric()) == "tc=106,sl=0,timeout=16,retry=6,qps=1,srq=16"


@given(FABRICS)
def test_what_is_shown_is_what_was_meant(fabric: Fabric) -> None:
    assert Fabric.parse(str(fabric)) == fabric


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tc=256", "tc as an integer from 0 to 255"),
        ("sl=16", "sl as an integer from 0 to 15"),
        ("timeout=0", "timeout as an integer from 1 to 31"),
        ("retry=8", "retry as an integer from 0 to 7"),
        ("qps=0", "qps as an integer from 1 to 8"),
        ("qps=9", "qps as an integer from 1 to 8"),
        ("srq=1048577", "srq as an integer from 0 to 1048576"),
        ("qps=-1", "qps as"),
        ("qps=", "qps as"),
        ("qps=2.0", "qps as"),
        ("qps=²", "qps as"),
        ("mtu=1500", "mtu as one of 256, 512, 1024, 2048, 4096"),
        ("mtu=0", "mtu as one of"),
        ("pkey=0", "pkey as a partition key, from 0x1 to 0xffff, such as 0x8001"),
        ("pkey=0x8000", "pkey as"),  # the partition 0 with full membership
        ("pkey=0x10000", "pkey as"),
        ("pkey=32769", "pkey as"),  # a number in the table, or a key?
        ("pkey=0x", "pkey as"),
        ("pkey=0x-1", "pkey as"),
        ("tc=1,tc=2", "tc once"),
        ("timeot=14", r"key=value,... with .*; 'timeot' is none, did you mean timeout\?"),
        ("mtus=1024", r"did you mean mtu\?"),
        ("", "key=value,... with keys of tc, sl, timeout, retry, qps, srq, mtu, pkey"),
        ("tc=1,", "'' is none"),
    ],
)
def test_a_bad_fabric_says_what_is_wanted(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        Fabric.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_fabric_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert Fabric.parse(str(Fabric.parse(text))) == Fabric.parse(text)


def test_a_rail_is_a_device_and_perhaps_a_port_and_an_address() -> None:
    assert Rails.parse("mlx5_0, mlx5_1:1,mlx5_2:2:3") == (
        Rail("mlx5_0"),
        Rail("mlx5_1", 1),
        Rail("mlx5_2", 2, 3),
    )
    assert str(Rails.parse("mlx5_0,mlx5_1:1,mlx5_2:2:3")) == "mlx5_0,mlx5_1:1,mlx5_2:2:3"


@given(st.lists(RAILS, min_size=1, max_size=MAX_RAILS, unique_by=lambda rail: rail[:2]))
def test_rails_are_shown_as_they_are_read(rails: list[Rail]) -> None:
    assert Rails.parse(str(Rails(rails))) == tuple(rails)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mlx5_0:0", "ports from 1"),
        ("mlx5_0:x", r"device\[:port\[:gid\]\]"),
        ("mlx5_0:1:", r"device\[:port\[:gid\]\]"),
        ("mlx5_0:1:2:3", r"device\[:port\[:gid\]\]"),
        (":1", r"device\[:port\[:gid\]\]"),
        ("mlx5_0,", r"device\[:port\[:gid\]\]"),
        ("x" * 64, r"device\[:port\[:gid\]\]"),
        ("mlx5_0:1,mlx5_0:1:3", "each port once, but mlx5_0:1:3 comes twice"),
        ("mlx5_0,mlx5_1,mlx5_0:2", "each port once, but mlx5_0:2 comes twice"),
        (",".join(f"mlx5_{i}" for i in range(9)), "at most 8 of them"),
    ],
)
def test_bad_rails_say_what_is_wanted(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        Rails.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_rails_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert Rails.parse(text)


def test_the_environment_is_read() -> None:
    config = Config.load(
        {"PYCOLL_TRANSPORT": " TCP", "PYCOLL_RAILS": "rxe0:1", "PYCOLL_VERBS": "qps=4"}
    )
    assert (config.transport, config.rails, config.verbs) == (
        "tcp",
        (Rail("rxe0", 1),),
        Fabric(qps=4),
    )
    rows = {row[0]: row[1] for row in config.rows()}
    assert rows["PYCOLL_RAILS"] == "rxe0:1"
    assert rows["PYCOLL_VERBS"] == "tc=106,sl=0,timeout=16,retry=6,qps=4,srq=16"
    assert (Config.load({}).transport, Config.load({}).rails) == ("auto", None)
    assert Config.load({}).verbs == Fabric()


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("PYCOLL_TRANSPORT", "rdma", "auto, verbs, libfabric or tcp"),
        ("PYCOLL_VERBS", "qp=2", r"key=value,.*did you mean qps\?"),
        ("PYCOLL_RAILS", "a:b", r"device\[:port\[:gid\]\]"),
    ],
)
def test_a_bad_variable_says_what_is_wanted(variable: str, value: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=rf"^{variable} is '{value}', want {wanted}"):
        Config.load({variable: value})
