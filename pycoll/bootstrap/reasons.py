"""Reasons: why a rank is gone, as the ranks tell each other and `on_lost` is told."""

from __future__ import annotations

DIED = "died"  # its process has ended without a word, which is proved
EXITED = "exited"  # the process ended in good order, but without close()
CLOSED = "closed"  # the rank called close()
GARBLED = "garbled"  # the rank sent what no rank of this version sends
#: It ended its connection, and its process lives, or nobody can tell.
HUNG_UP = "hung up its control connection"
SILENT = "does not answer, and was given up"  # what it carries for the others does not go on
#: What came over its connection is not what it sent.
FORGED = "lost its control connection to somebody in between, who changed what passes there"
UNREACHABLE = "unreachable"  # the network, or the whole machine of the rank, is down
#: It lives, and will not serve this rank, which the others hold to be gone.
GAVE_UP = "has given this rank up"
#: How the farewell begins of a rank that had accepted a smaller communicator: who hears it from
#: others must not take the rank for dead, which may live on there.
WENT_ON = "went on without the ranks that were gone"
