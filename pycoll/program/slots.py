"""How many slots an edge has where a Program runs, and so with how many it is proved."""

from __future__ import annotations

#: One is filled while the other is read, and two more hide a late reader.
SLOTS = 4
