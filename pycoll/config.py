"""Config: every setting of pycoll, and the only reader of ``PYCOLL_*`` variables."""

from __future__ import annotations

import errno
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pycoll.errors import UsageError, quoted
from pycoll.fabric import Fabric, Rails
from pycoll.order import FREE, ORDERS, OrderName
from pycoll.verbosity import Verbosity

PREFIX = "PYCOLL_"
#: Ranks of a job, whichever launcher counts them: a slip is refused, a large machine is not.
MOST_RANKS = 1 << 20


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a name that is not empty")
    return value.strip()


def _provider(value: str) -> str:
    name = value.strip()
    if not (0 < len(name) < 32 and name.isascii() and name.isprintable()):
        raise ValueError("the name of one, such as efa or tcp;ofi_rxm")
    return name


def _seconds(value: str | float) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    # A day is longer than any wait that is meant, and keeps timeouts inside what poll() takes.
    if not 0 < seconds <= 86400:
        raise ValueError("seconds, more than 0 and at most 86400")
    return seconds


def _integer(lowest: int, highest: int) -> Callable[[str | int], int]:
    def parse(value: str | int) -> int:
        try:
            number = int(value)
        except ValueError:
            number = lowest - 1
        if not lowest <= number <= highest:
            raise ValueError(f"an integer from {lowest} to {highest}")
        return number

    return parse


def _address(value: str) -> str:
    host, colon, port = value.strip().rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("host:port of rank 0, such as node7:29400 or [::1]:29400")
    return value.strip()


def _addresses(value: str) -> str:
    try:
        return ",".join(_address(one) for one in value.split(","))
    except (ValueError, TypeError, AttributeError):
        raise ValueError("host:port, or several with commas between them") from None


def join_address(what: str, value: object) -> str:
    """Return where a job and newcomers meet, checked; UsageError names ``what``."""
    try:
        return _addresses(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is {quoted(value)}, want {error}") from None


def _newcomer(value: str) -> str:
    word = value.strip().lower()
    if not re.fullmatch("no|yes|fd:[0-9]{1,9}:[0-9]{1,19}", word):
        raise ValueError("yes or no")
    return word


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return word

    return parse


def _order(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError
    return _one_of(*ORDERS)(value)


def _secret(value: str | bytes) -> bytes:
    try:
        secret = bytes.fromhex(value) if isinstance(value, str) else bytes(value)
    except ValueError:
        secret = b""
    if len(secret) < 16:
        raise ValueError("at least 32 hexadecimal digits, as `openssl rand -hex 32` prints")
    return secret


def _yes_or_no(value: str | bool) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError
    found = {"1": True, "yes": True, "0": False, "no": False}.get(value.strip().lower())
    if found is None:
        raise ValueError("yes or no")
    return found


#: Characters that the path of a directory may have, and leave room for the names of files.
_LONGEST_PATH = 3840


def _directory(value: str | Path) -> Path:
    path = Path(value)
    try:
        os.stat(path)
    except (OSError, ValueError) as error:  # that it is not there yet does not matter
        if getattr(error, "errno", errno.EINVAL) in (errno.ENAMETOOLONG, errno.EINVAL):
            raise ValueError("the path of a directory that the system can have") from None
    if len(str(path)) > _LONGEST_PATH:
        raise ValueError(f"the path of a directory, at most {_LONGEST_PATH} characters")
    return path


def _cache(environ: Mapping[str, str]) -> Path:
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base, "pycoll")
    try:
        home = Path(environ.get("HOME") or "~").expanduser()
    except RuntimeError:  # a container's user, of whom the system has never heard
        home = Path("/")
    return home / ".cache" / "pycoll"


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str  #: field of Config
    default: str  #: as `pycoll info` prints it
    type: str  #: what a value is, in words
    parse: Callable[[Any], Any]  #: ValueError says what is wanted
    why: str  #: why the library cannot decide itself

    @property
    def variable(self) -> str:
        """Environment variable that gives this setting."""
        return PREFIX + self.name.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "algorithm",
        "chosen by cost",
        "name",
        _text,
        "Comparing algorithms means running one that the cost model would not choose.",
    ),
    Setting(
        "order",
        FREE,
        "free or fixed",
        _order,
        "Whether equal bits, whatever runs and wherever, are worth their time is for users to say.",
    ),
    Setting(
        "timeout",
        "300",
        "seconds",
        _seconds,
        "How long another rank may rightly be late is known to the job, not to the library.",
    ),
    Setting(
        "cache",
        "$XDG_CACHE_HOME/pycoll",
        "directory",
        _directory,
        "Where a site wants files kept, and which of its disks all nodes share, is its own affair.",
    ),
    Setting(
        "rank",
        "from the launcher",
        "integer",
        _integer(0, MOST_RANKS - 1),
        "A process that no known launcher started cannot find its number.",
    ),
    Setting(
        "size",
        "from the launcher",
        "integer",
        _integer(1, MOST_RANKS),
        "A process that no known launcher started cannot count the others.",
    ),
    Setting(
        "address",
        "from the launcher",
        "host:port",
        _address,
        "Without a launcher nothing says where rank 0 is, or which port a firewall lets through.",
    ),
    Setting(
        "secret",
        "from the launcher",
        "hexadecimal digits",
        _secret,
        "Only the user has a private way to hand the ranks a key before they have met.",
    ),
    Setting(
        "join_address",
        "from pycoll run --elastic",
        "host:port,...",
        _addresses,
        "Where a job that grows finds newcomers, whoever of it still lives, only its user can fix.",
    ),
    Setting(
        "newcomer",
        "no",
        "yes or no",
        _newcomer,
        "Whether a process belongs to a job that runs already is known to whoever started it.",
    ),
    Setting(
        "iface",
        "the route to rank 0",
        "name or address",
        _text,
        "Which of a host's networks is fast, and which is meant for jobs, is known to its owner.",
    ),
    Setting(
        "transport",
        "auto",
        "auto, verbs, libfabric or tcp",
        _one_of("auto", "verbs", "libfabric", "tcp"),
        "Whether a job is worth running without RDMA, or with it, is not for a library to say.",
    ),
    Setting(
        "rails",
        "the nearest ports",
        "device[:port[:gid]],...",
        Rails.parse,
        "Which RDMA ports of a host are meant for jobs, and not for disks, is known to its owner.",
    ),
    Setting(
        "verbs",
        str(Fabric()),
        "key=value,...",
        Fabric.parse,
        "How a fabric marks, spreads and drops packets is set in its switches, unseen by ranks.",
    ),
    Setting(
        "fabric",
        "the best there is",
        "provider of libfabric",
        _provider,
        "Which of libfabric's providers reaches the other hosts is known to who built the cluster.",
    ),
    Setting(
        "cuda_blocks",
        "32",
        "blocks, at most",
        _integer(4, 32),
        "How many of a GPU's multiprocessors computation can spare is known to its owner.",
    ),
    Setting(
        "cuda_heap",
        "64",
        "MiB",
        _integer(0, 1 << 20),
        "How much of a GPU's memory a job spares for arrays of empty() is its own affair.",
    ),
    Setting(
        "cuda_multicast",
        "auto",
        "auto, on or off",
        _one_of("auto", "on", "off"),
        "Whether a switch may round sums of floats in its own order is for their user to say.",
    ),
    Setting(
        "cuda_register",
        "auto",
        "auto or off",
        _one_of("auto", "off"),
        "Whether freed GPU memory may stay taken for some calls is for its user to say.",
    ),
    Setting(
        "gpu_rdma",
        "auto",
        "auto, dmabuf, peermem or off",
        _one_of("auto", "dmabuf", "peermem", "off"),
        "Whether drivers that say they reach GPU memory do is for their user to say.",
    ),
    Setting(
        "unproved",
        "no",
        "yes or no",
        _yes_or_no,
        "Whether to run what takes too long to prove, rather than nothing, is for its user to say.",
    ),
    Setting(
        "record",
        "nowhere",
        "directory",
        _directory,
        "Whether the last calls shall be written down when a job fails, and where, its user knows.",
    ),
    Setting(
        "check",
        "0",
        "calls from one check to the next",
        _integer(0, 1 << 30),
        "How often a call may take far longer, to find flipped bits, is for its user to say.",
    ),
    Setting(
        "log",
        "nothing",
        "level,subject=level,...:file",
        Verbosity.parse,
        "Whether anybody reads what a job decides, while all goes well, is known to its user.",
    ),
)


@dataclass(frozen=True)
class Config:
    """Every setting, with where each value came from. Made by `Config.load`."""

    algorithm: str | None = None
    order: OrderName = FREE  #: in which reductions fold
    timeout: float = 300.0
    cache: Path = field(default_factory=lambda: _cache(os.environ))
    rank: int | None = None
    size: int | None = None
    address: str | None = None
    secret: bytes | None = field(default=None, repr=False)
    join_address: str | None = None  #: where `grow` and `join` meet
    #: "yes": `init` joins a job that runs; "fd:...": and says there that it has
    newcomer: str = "no"
    iface: str | None = None
    #: between hosts; "verbs", "libfabric": by nothing else; "tcp": never RDMA
    transport: str = "auto"
    rails: Rails | None = None
    verbs: Fabric = field(default_factory=Fabric)
    fabric: str | None = None
    cuda_blocks: int = 32  #: of a collective's kernel, at most
    cuda_heap: int = 64  #: MiB
    cuda_multicast: str = "auto"  #: "on": also where a switch rounds sums by itself
    cuda_register: str = "auto"  #: peers open the arrays of users, too
    gpu_rdma: str = "auto"  #: how NICs reach GPU memory; "dmabuf", "peermem": by nothing else
    unproved: bool = False  #: what takes too long to prove runs as it is
    record: Path | None = None  #: where records are written at an error, and on SIGUSR1
    check: int = 0  #: every so many calls one is checked for silent corruption; 0: none
    log: Verbosity | None = None  #: from which level on what is decided is shown, and where
    #: setting's name → "default", "environment" or "argument"
    origins: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({s.name: "default" for s in SETTINGS}),
        compare=False,
        repr=False,
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> Config:
        """Read the settings; an argument that is not None beats the environment.

        Args:
            environ: The variables to read; the process's own by default.
            **arguments: Settings by name, as a function's caller gave them.

        Raises:
            UsageError: An unknown argument or a bad value.
        """
        environ = os.environ if environ is None else environ
        given = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
        for text in _unknown(
            given, [s.variable for s in SETTINGS], "is set, but is not a variable"
        ):
            _warn(text)
        for text in _unknown(
            arguments, [s.name for s in SETTINGS], "was given, but is not a setting"
        ):
            raise UsageError(text)
        values: dict[str, Any] = {"cache": _cache(environ)}
        origins: dict[str, str] = {}
        for setting in SETTINGS:
            name, variable = setting.name, setting.variable
            if arguments.get(name) is not None:
                values[name] = _parse(setting, name, arguments[name])
                origins[name] = "argument"
            elif given.get(variable, "").strip():
                values[name] = _parse(setting, variable, given[variable])
                origins[name] = "environment"
            else:  # an empty variable is how shells and schedulers unset one
                origins[name] = "default"
        return cls(**values, origins=MappingProxyType(origins))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (variable, value, origin, why) per setting, for `pycoll info`."""
        return [(s.variable, self._shown(s), self.origins[s.name], s.why) for s in SETTINGS]

    def _shown(self, setting: Setting) -> str:
        value = getattr(self, setting.name)
        if value is None:
            return setting.default
        if isinstance(value, bytes):
            return f"({len(value)} bytes, not shown)"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:g}" if isinstance(value, float) else str(value)


def coloured() -> bool:
    """Tell whether texts for a terminal may have colours, see https://no-color.org."""
    return not os.environ.get("NO_COLOR")


def dumb() -> bool:
    """Tell whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "") in ("", "dumb")


def hand_on(**settings: str) -> None:
    """Have the processes that this one starts find settings, by name, in their environment."""
    for name, value in settings.items():
        os.environ[f"{PREFIX}{name.upper()}"] = value


def _parse(setting: Setting, source: str, value: object) -> Any:
    try:
        return setting.parse(value)
    except (TypeError, ValueError) as error:
        got = "a value that is not shown" if setting.name == "secret" else quoted(value)
        wanted = setting.type if isinstance(error, TypeError) else error
        raise UsageError(f"{source} is {got}, want {wanted}") from None


def _unknown(given: Mapping[str, Any], known: list[str], what: str) -> Iterator[str]:
    for name in given:
        if name not in known:
            import difflib  # only now: it is slow to load

            begun = [one for one in known if one.startswith(name)]
            near = difflib.get_close_matches(name, begun or known, n=1, cutoff=0)[0]
            yield f"{name} {what} of pycoll; did you mean {near}?"


_warned: set[str] = set()


def _warn(text: str) -> None:
    # Not an error: the modules of a site set PYCOLL_ROOT and the like for whatever it installs.
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=4)
