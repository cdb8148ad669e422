from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest

from pycoll.config import MOST_RANKS, SETTINGS, Config
from pycoll.errors import UsageError


def test_an_empty_environment_gives_the_defaults():
    config = Config.load({"HOME": "/home/ada"})
    assert config.algorithm is None
    assert config.timeout == 300
    assert config.cache == Path("/home/ada/.cache/pycoll")
    assert (config.rank, config.size, config.address, config.secret) == (None, None, None, None)
    assert config.iface is None
    assert set(config.origins.values()) == {"default"}


def test_the_cache_follows_xdg():
    assert Config.load({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/pycoll")
    assert Config.load({"XDG_CACHE_HOME": "/x", "PYCOLL_CACHE": "/y"}).cache == Path("/y")


def test_the_environment_is_read_and_recorded():
    config = Config.load(
        {
            "PYCOLL_ALGORITHM": "ring",
            "PYCOLL_TIMEOUT": "2.5",
            "PYCOLL_RANK": "3",
            "PYCOLL_SIZE": "4",
            "PYCOLL_ADDRESS": "[::1]:29400",
            "PYCOLL_SECRET": "00ff" * 8,
        }
    )
    assert config.algorithm == "ring"
    assert config.timeout == 2.5
    assert (config.rank, config.size, config.address) == (3, 4, "[::1]:29400")
    assert config.secret == bytes.fromhex("00ff" * 8)
    assert config.origins["timeout"] == "environment"
    assert config.origins["cache"] == "default"


def test_an_argument_beats_the_environment():
    config = Config.load({"PYCOLL_TIMEOUT": "2"}, timeout=7)
    assert (config.timeout, config.origins["timeout"]) == (7, "argument")


def test_an_argument_that_is_none_is_no_argument():
    config = Config.load({"PYCOLL_TIMEOUT": "2"}, timeout=None)
    assert (config.timeout, config.origins["timeout"]) == (2, "environment")


def test_an_empty_variable_is_not_set():
    config = Config.load({"PYCOLL_TIMEOUT": "", "PYCOLL_RANK": " "})
    assert (config.timeout, config.rank) == (300, None)


@pytest.mark.parametrize(
    ("variable", "near"),
    [("PYCOLL_TIMEOUTS", "PYCOLL_TIMEOUT"), ("PYCOLL_ALGO", "PYCOLL_ALGORITHM")],
)
def test_an_unknown_variable_names_the_nearest(variable, near):
    with pytest.warns(
        UserWarning,
        match=rf"^{variable} is set, but is not a variable of pycoll; did you .*{near}\?$",
    ):
        assert Config.load({variable: "1"}) == Config.load({})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config.load({variable: "1"})  # once is enough


@pytest.mark.parametrize("path", ["x" * 5000, "a" * 300, "/".join(["a" * 200] * 22), "a\0b"])
def test_a_directory_that_the_system_cannot_have(path):
    with pytest.raises(UsageError, match=r"^PYCOLL_CACHE is .*want the path of a directory") as e:
        Config.load({"PYCOLL_CACHE": path})
    assert len(str(e.value)) < 300


def test_an_unknown_argument_names_the_nearest():
    with pytest.raises(UsageError, match=r"^time_out was given, .* did you mean timeout\?$"):
        Config.load({}, time_out=3)


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("PYCOLL_TIMEOUT", "soon", "seconds, more than 0 and at most 86400"),
        ("PYCOLL_LOG", "loud", "debug, info or warning"),
        ("PYCOLL_LOG", "info,", "debug, info or warning"),
        ("PYCOLL_LOG", "=info", "debug, info or warning"),
        ("PYCOLL_LOG", "nat=info", "of subjects one of bootstrap, transport, "),
        ("PYCOLL_LOG", "info,debug", "one level for all loggers"),
        ("PYCOLL_LOG", "net=info,net=debug", "one level for net"),
        ("PYCOLL_LOG", "info:", "behind the colon a file"),
        ("PYCOLL_LOG", "info:/tmp/%q", "behind the colon a file"),
        ("PYCOLL_LOG", "info:/tmp/%", "behind the colon a file"),
        ("PYCOLL_LOG", "info:/no/such", "a file in a directory that can be written, which /no"),
        ("PYCOLL_TIMEOUT", "0", "seconds, more than 0"),
        ("PYCOLL_TIMEOUT", "nan", "seconds, more than 0"),
        ("PYCOLL_TIMEOUT", "inf", "seconds, more than 0"),
        ("PYCOLL_RANK", "-1", f"an integer from 0 to {MOST_RANKS - 1}"),
        ("PYCOLL_RANK", str(MOST_RANKS), f"an integer from 0 to {MOST_RANKS - 1}"),
        ("PYCOLL_RANK", "1.5", "an integer from 0 to"),
        ("PYCOLL_SIZE", "0", f"an integer from 1 to {MOST_RANKS}"),
        ("PYCOLL_SIZE", str(MOST_RANKS + 1), f"an integer from 1 to {MOST_RANKS}"),
        ("PYCOLL_ADDRESS", "node7", "host:port of rank 0"),
        ("PYCOLL_ADDRESS", "node7:99999", "host:port of rank 0"),
        ("PYCOLL_ADDRESS", ":4", "host:port of rank 0"),
    ],
)
def test_a_bad_value_says_what_is_wanted(variable, value, wanted):
    with pytest.raises(UsageError, match=rf"^{variable} is '{value}', want {wanted}"):
        Config.load({variable: value})


def test_a_job_may_have_a_million_ranks():
    config = Config.load({"PYCOLL_RANK": str(MOST_RANKS - 1), "PYCOLL_SIZE": str(MOST_RANKS)})
    assert (config.rank, config.size) == (MOST_RANKS - 1, MOST_RANKS)
    assert MOST_RANKS >= 1_000_000


def test_a_bad_argument_says_what_is_wanted():
    with pytest.raises(UsageError, match=r"^timeout is \[\], want seconds$"):
        Config.load({}, timeout=[])
    with pytest.raises(UsageError, match=r"^algorithm is '  ', want a name that is not empty$"):
        Config.load({}, algorithm="  ")


@pytest.mark.parametrize("secret", ["xyz", "ab", "0" * 31])
def test_a_bad_secret_is_not_repeated_in_the_message(secret):
    with pytest.raises(UsageError, match=r"^PYCOLL_SECRET is a value that is not shown, want") as e:
        Config.load({"PYCOLL_SECRET": secret})
    assert secret not in str(e.value)


def test_a_secret_is_shown_nowhere():
    config = Config.load({"PYCOLL_SECRET": "5a" * 16})
    shown = repr(config) + repr(config.rows())
    assert "5a5a" not in shown
    assert "ZZ" not in shown
    assert "(16 bytes, not shown)" in shown


def test_there_is_one_row_and_one_reason_per_setting():
    rows = Config.load({"PYCOLL_TIMEOUT": "9"}).rows()
    assert len(rows) == len(SETTINGS) <= 24
    assert ("PYCOLL_TIMEOUT", "9", "environment") in [row[:3] for row in rows]
    assert all(why.endswith(".") for *_, why in rows)
    fields = {f.name for f in dataclasses.fields(Config)} - {"origins"}
    assert fields == {s.name for s in SETTINGS}


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config.load({}).timeout = 3  # type: ignore[misc]


def test_a_user_without_a_home_has_settings(monkeypatch):
    """As in a container that runs under any user number."""

    def nowhere(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nowhere)
    assert Config.load({}).cache == Path("/.cache/pycoll")
