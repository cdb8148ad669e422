"""``pycoll topology``: what this machine is made of, or what a saved description says."""

from __future__ import annotations

import argparse
import platform
from typing import Any

from pycoll.topology import Topology, load, probe, save, tree


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "topology",
        help="this machine's sockets, network interfaces and GPUs, as a tree",
        description="Print what /sys tells of this machine: sockets and cores, network interfaces, "
        "RDMA devices and GPUs with their PCI links. Latencies in the file are typical ones, to be "
        "edited; more nodes and the links between them can be added by hand.",
    )
    parser.add_argument("--json", metavar="FILE", help="save the description")
    parser.add_argument("--load", metavar="FILE", help="print a saved description instead")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the tree and save it if asked to."""
    if options.load is not None:
        topology = load(options.load)
    else:
        topology = Topology((probe(name=platform.node().replace("/", "-") or "localhost"),))
    print(tree(topology))
    if options.json is not None:
        save(topology, options.json)
    return 0
