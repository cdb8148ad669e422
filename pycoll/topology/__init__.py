"""What a machine or a cluster is made of, and where the ranks are on it."""

from pycoll.topology.clusters import (
    BRIDGE,
    ETHERNET,
    HOP,
    INFINIBAND,
    MEMORY,
    NDR,
    PCIE,
    ROCE,
    Wire,
    cluster,
    fabric,
)
from pycoll.topology.document import load, save
from pycoll.topology.model import Device, Link, Nic, Node, Pci, Place, Socket, Switch
from pycoll.topology.probe import probe
from pycoll.topology.routing import Route
from pycoll.topology.text import tree
from pycoll.topology.topology import Topology

__all__ = [
    "BRIDGE",
    "ETHERNET",
    "HOP",
    "INFINIBAND",
    "MEMORY",
    "NDR",
    "PCIE",
    "ROCE",
    "Device",
    "Link",
    "Nic",
    "Node",
    "Pci",
    "Place",
    "Route",
    "Socket",
    "Switch",
    "Topology",
    "Wire",
    "cluster",
    "fabric",
    "load",
    "probe",
    "save",
    "tree",
]
