"""What a machine or a cluster is made of, and where the ranks are on it."""

from pycoll.topology.clusters import BRIDGE, ETHERNET, INFINIBAND, MEMORY, PCIE, Wire, cluster
from pycoll.topology.document import load, save
from pycoll.topology.model import Device, Link, Nic, Node, Pci, Place, Socket, Switch
from pycoll.topology.probe import probe
from pycoll.topology.text import tree
from pycoll.topology.topology import Topology

__all__ = [
    "BRIDGE",
    "ETHERNET",
    "INFINIBAND",
    "MEMORY",
    "PCIE",
    "Device",
    "Link",
    "Nic",
    "Node",
    "Pci",
    "Place",
    "Socket",
    "Switch",
    "Topology",
    "Wire",
    "cluster",
    "load",
    "probe",
    "save",
    "tree",
]
