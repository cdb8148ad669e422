#!{PYTHON} -IS
"""A compiler that remembers: tests compile the same sources again for every mutant.

All mutants are in the same sources, so that what is compiled for one serves all. What a command
reads is told by its words, the files that they name, and the stamp of the planted tree; a command
of which that is not clear is left to the compiler, and so is one that said anything.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time

REAL, STATE = "{REAL}", "{STATE}"
TREE = os.path.dirname(STATE)


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def headers(folder: str) -> bytes:
    """Return a digest of what may be included from a folder that is not the tree's."""
    found = hashlib.sha256()
    for place, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            if name.endswith((".h", ".c", ".cc", ".cpp", ".cu")):
                path = os.path.join(place, name)
                found.update(os.path.relpath(path, folder).encode() + content(path))
    return found.digest()


def outside(path: str) -> bool:
    return not os.path.realpath(path).startswith((TREE + "/", "/usr/"))


def key(words: list[str]) -> tuple[str, str]:
    """Return what a command is remembered by, and what it makes; empty if it cannot be."""
    told = [REAL, os.getcwd() if not outside(".") else ""]
    with open(STATE + "/stamp") as file:
        told.append(file.read())
    output, rest = "", iter(words)
    for word in rest:
        if word in ("-", "-E", "-fsyntax-only", "-v", "--version") or word.startswith(("-M", "@")):
            return "", ""
        if word == "-o":
            output = next(rest, "")
        elif word in ("-include", "-isystem"):
            return "", ""
        elif word.startswith(("-I", "-L")):
            word += next(rest, "") if word in ("-I", "-L") else ""
            told.append(headers(word[2:]).hex() if outside(word[2:]) else word)
        elif os.path.isfile(word):
            told.append(os.path.basename(word) if outside(word) else os.path.realpath(word))
            told.append(content(word).hex())
            if outside(word) and not word.endswith((".o", ".so")):
                told.append(headers(os.path.dirname(os.path.abspath(word))).hex())
        else:
            told.append(word)
    return hashlib.sha256(repr(told).encode()).hexdigest(), output


def main() -> int:
    words = sys.argv[1:]
    # The compiler itself may be asked for its assembler by PATH, which a test may have cut short.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{os.defpath}".lstrip(":")
    name, output = key(words)
    if not output or output == os.devnull:
        os.execv(REAL, [REAL, *words])
    kept = f"{STATE}/cache/{name}"
    if os.path.exists(kept):
        shutil.copy(kept, output)
        return 0
    begun = time.monotonic()
    done = subprocess.run([REAL, *words], capture_output=True)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 and not done.stdout + done.stderr and os.path.isfile(output):
        part = f"{kept}.{os.getpid()}"
        shutil.copy(output, part)
        os.replace(part, kept)
        with open(STATE + "/compiled", "a") as file:
            file.write(f"{time.monotonic() - begun:.2f}\n")
    return done.returncode


sys.exit(main())
