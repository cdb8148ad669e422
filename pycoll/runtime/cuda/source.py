"""The sources of the kernels: shipped with the package, or where an in-place build has them.

``setup.py`` runs this file by its path, to learn what to ship: only the standard library is
imported on its own account.
"""

from __future__ import annotations

import re
from pathlib import Path

ENTRY = "gpu/kernel/kernel.cu"
#: Of the kernel that moves messages between two ranks.
TRANSFER_ENTRY = "gpu/kernel/transfer.cu"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_HERE = Path(__file__).resolve().parent


def folder() -> Path:
    """Return where the sources are; UnavailableError where the package was installed without."""
    for place in (_HERE / "native", _HERE.parents[2] / "native"):
        if (place / ENTRY).exists():
            return place
    from pycoll.errors import UnavailableError

    raise UnavailableError(
        f"the sources of the GPU's kernels are not in {_HERE / 'native'}, where pycoll's wheel has "
        "them: pip install --force-reinstall --no-deps pycoll"
    )


def closure(place: Path) -> dict[str, str]:
    """Return name and text of the kernels' sources and all that they include, in a fixed order."""
    found: dict[str, str] = {}
    wanted = [ENTRY, TRANSFER_ENTRY]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = (place / name).read_text(encoding="utf-8")
            wanted += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))
