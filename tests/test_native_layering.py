"""The engine's folders: which may include which, as native/README.md draws it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1] / "native"

#: What the files of a folder may include beside their own folder; "" is native/ itself.
MAY_INCLUDE: dict[str, set[str]] = {
    "": set(),
    "vm": {""},
    "reduce": {""},
    "core": {"", "vm", "reduce"},
    "net": {"core"},
    "p2p": {"core", "net"},
    "shm": {"core"},
    "tcp": {"core", "net"},
    "gpu/driver": {"", "core"},
    "memory": {"", "core", "gpu/driver"},
    "verbs": {"", "core", "net", "memory"},
    "libfabric": {"core", "net", "memory"},
    "gpu": {"core", "vm", "p2p", "gpu/driver"},
    "gpu/kernel": {"vm", "gpu"},
    "python": {"core"},
}
#: Single files that include more.
ALSO: dict[str, set[str]] = {
    # the loop that moves everything calls what moves transfers
    "core/progress.c": {"p2p"},
    "core/work.c": {"p2p"},
}
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def folder(path: str) -> str:
    return path.rpartition("/")[0]


def included() -> Iterator[tuple[str, str]]:
    """Yield every file with each file that it includes, by their paths below native/."""
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix in (".c", ".h", ".cu"):
            for name in _INCLUDE.findall(path.read_text()):
                yield path.relative_to(NATIVE).as_posix(), name


def breaches() -> Iterator[str]:
    for path, name in included():
        here = folder(path)
        allowed = MAY_INCLUDE[here] | {here} | ALSO.get(path, set())
        if not (NATIVE / name).is_file():
            yield f"{path}: {name} is not named from native/"
        elif folder(name) not in allowed:
            yield f"{path}: includes {name}, and {here}/ may include {sorted(allowed)}"


def test_folders_include_what_they_may() -> None:
    assert list(breaches()) == []


def test_no_folder_may_include_one_that_may_include_it() -> None:
    left = {name: set(others) for name, others in MAY_INCLUDE.items()}
    while free := [name for name, others in left.items() if not others]:
        for name in free:
            del left[name]
        for others in left.values():
            others.difference_update(free)
    assert left == {}


def test_every_exception_is_needed() -> None:
    used = {(path, folder(name)) for path, name in included()}
    assert [(p, f) for p, fs in ALSO.items() for f in fs if (p, f) not in used] == []


def test_every_folder_says_what_it_is() -> None:
    for name in MAY_INCLUDE:
        assert (NATIVE / name / "README.md").read_text().startswith(f"# {name or 'native'}/\n")


#: What only a network's own folder, and net/, may name: in code, not in comments.
NETWORKS = ("shm", "tcp", "verbs", "libfabric", "net")
_NAMES_ONE = re.compile(r"\b(?:remote|wire|\w*tcp|\w*tcp_\w+|\w*(?:verbs|fabric)\w*|n?rails?)\b")
_COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
#: Lines that do, in files of no network.
NAMES: dict[str, int] = {
    "gpu/device_comm.c": 1,  # a count in the public state of a GPU's communicator
}


def code(path: Path) -> list[str]:
    """Return the lines of a source without comments, texts and directives."""
    text = _COMMENT.sub(lambda m: "\n" * m[0].count("\n"), path.read_text())
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def test_general_code_names_no_network() -> None:
    found = {}
    for path in sorted(NATIVE.rglob("*.[ch]")):
        name = path.relative_to(NATIVE).as_posix()
        # pycoll.h is what users of the engine ask for, by name
        if folder(name).split("/")[0] not in NETWORKS and name != "pycoll.h":
            n = sum(bool(_NAMES_ONE.search(line)) for line in code(path))
            if n:
                found[name] = n
    assert found == NAMES


#: The questions that general C may ask, and who asks: nothing else there tells a peer that is
#: mapped from one that is not, or whether there is a network.
QUESTIONS = {
    # is a signal on this edge a store or a message
    "pc__edge_mapped": {"net/edge.h", "core/program.c", "p2p/p2p.c"},
    # may this rank's memory be loaded and stored
    "pc__mapped": {
        *("core/comm.c", "core/program.c", "p2p/batch.c"),
        *("gpu/device_comm.c", "gpu/ipc.c"),
    },
    # is there more to poll, and to sleep on, than memory
    "pc__has_net": {"core/progress.c", "core/trace.h", "core/wait.c", "core/wakeup.c", "p2p/p2p.c"},
}
#: Where the answers are: once each, in the functions of these names.
_ANSWERS = re.compile(r"(?:->|\.)(?:edge|net) *[!=]= *NULL|!\w+->(?:net|edge)\b|(?:->|\.)mapped\b")
_OWN = {"core/internal.h": 3, "core/comm.c": 2}  # the latter writes `mapped`


def test_general_code_asks_few_questions_about_networks() -> None:
    asked: dict[str, set[str]] = {question: set() for question in QUESTIONS}
    answers = {}
    for path in sorted(NATIVE.rglob("*.[ch]")):
        name = path.relative_to(NATIVE).as_posix()
        if folder(name) in NETWORKS and name != "net/edge.h":
            continue
        lines = code(path)
        for question in QUESTIONS:
            if name != "core/internal.h" and re.search(rf"\b{question}\(", "\n".join(lines)):
                asked[question].add(name)
        # a GPU's communicator has a word of its own: memory that the driver has opened
        n = 0 if folder(name) == "gpu" else sum(bool(_ANSWERS.search(line)) for line in lines)
        if n:
            answers[name] = n
    assert asked == QUESTIONS
    assert answers == _OWN


#: The files of a network; one calls only what stands left of it. The rest stands beside them.
ORDER = {
    "verbs": ("wireup", "memory", "wr", "connection", "rndv", "peer", "events", "net"),
    "libfabric": (
        *("libfabric", "endpoint", "wireup", "memory", "packet", "peer", "rndv", "events", "net"),
    ),
}
_DEFINES = re.compile(r"^\w[\w *]*?\b(pc__\w+)\([^;]*?\)\n\{", re.M)


def upward(network: str) -> set[tuple[str, str]]:
    order = ORDER[network]
    texts = {name: "\n".join(code(NATIVE / network / f"{name}.c")) for name in order}
    home = {f: name for name, text in texts.items() for f in _DEFINES.findall(text)}
    return {
        (name, f)
        for name, text in texts.items()
        for f in set(re.findall(r"\bpc__\w+(?=\()", text)) & home.keys()
        if order.index(home[f]) > order.index(name)
    }


@pytest.mark.parametrize("network", ORDER)
def test_files_of_a_network_call_in_one_direction(network: str) -> None:
    assert upward(network) == set()
