"""What a mutant is, and how it is found again in a tree whose files and names have changed.

A *site* is a place in a source where one small change can be made. A *mutant* is a site that was
chosen. A mutant has no line number to be found by, only what stays when sources are moved: its
function, its text, its change, and which of several such places in the function it is.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

#: Stands in a site's text for the number of the mutant that is planted there.
NUMBER = "\0"
#: A folder of a planted tree, for all that is known of it.
STATE = ".mutation"

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Site:
    """A place where a change can be made."""

    file: str  #: from the tree's root
    function: str  #: with its classes and outer functions, dotted
    operator: str
    original: str
    mutated: str
    line: int
    start: int  #: in bytes, of what is replaced
    end: int
    planted: str  #: what replaces it, with `NUMBER`; as many lines as before
    ordinal: int = 0  #: among equal sites of the function

    @property
    def key(self) -> tuple[str, ...]:
        """What stays when the site is moved to another file."""
        parts = (self.function, self.operator, self.original, self.mutated)
        return (*("".join(part.split()) for part in parts), str(self.ordinal))


@dataclass(frozen=True)
class Mutant:
    """A site that was chosen, with the number that switches it on."""

    number: int  #: from 1 on
    area: str  #: what it is counted under
    file: str
    function: str
    operator: str
    original: str
    mutated: str
    line: int
    ordinal: int

    @property
    def key(self) -> tuple[str, ...]:
        """What equals the `Site.key` of the place where it is planted."""
        parts = (self.function, self.operator, self.original, self.mutated)
        return (*("".join(part.split()) for part in parts), str(self.ordinal))

    def renamed(self, files: Mapping[str, str], names: Mapping[str, str]) -> Mutant:
        """Return it as it is called where files and names have been changed."""

        def text(old: str) -> str:
            return _WORD.sub(lambda word: names.get(word[0], word[0]), old)

        return replace(
            self,
            file=files.get(self.file, self.file),
            function=text(self.function),
            original=text(self.original),
            mutated=text(self.mutated),
        )


def numbered(sites: Iterable[Site]) -> list[Site]:
    """Return sites, given in the order of the text, each with its ordinal."""
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for site in sites:
        key = (site.file, *site.key)
        found.append(replace(site, ordinal=seen[key]))
        seen[key] += 1
    return found


def locate(
    mutants: Sequence[Mutant], sites: Sequence[Site]
) -> tuple[dict[int, Site], list[Mutant], list[Mutant]]:
    """Find the mutants' places.

    Args:
        mutants: As they are called in the tree at hand.
        sites: All sites of that tree.

    Returns:
        The site of each number; the mutants that were found in another file than the one they
        name, where only one file has such a place; and the mutants that were not found.
    """
    by_key: defaultdict[tuple[str, ...], list[Site]] = defaultdict(list)
    for site in sites:
        by_key[site.key].append(site)
    found: dict[int, Site] = {}
    moved, lost = [], []
    for mutant in mutants:
        places = by_key[mutant.key]
        here = [site for site in places if site.file == mutant.file] or places
        if len(here) != 1:
            lost.append(mutant)
            continue
        found[mutant.number] = here[0]
        if here[0].file != mutant.file:
            moved.append(mutant)
    return found, moved, lost


def load(path: Path) -> list[Mutant]:
    """Read a file of mutants."""
    return [Mutant(**entry) for entry in json.loads(path.read_text())]


def save(path: Path, mutants: Iterable[Mutant]) -> None:
    """Write a file of mutants."""
    path.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n")
