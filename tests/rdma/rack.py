"""Hosts in a guest: network namespaces with NICs for RDMA, and a network of their own for TCP.

A host has its own hostname, interfaces and TCP; processes and disk are shared, and so are the RDMA
devices, as these cannot move: by agreement host i of h uses the NICs that `rails` says.
"""

from __future__ import annotations

from pathlib import Path

from guest import Guest
from nics import Nics

NETWORK = "10.81.0"
ON = str(Path(__file__).resolve().with_name("on"))
HOSTS = """
ip -batch - <<END
link add control type bridge forward_delay 0 mcast_snooping 0
addr add $1.254/24 dev control
link set control up
END
for host in $(seq 0 $(($2 - 1))); do
    touch /run/hosts/$host
    cat /proc/sys/kernel/random/uuid >/run/hosts/$host.boot
    unshare --uts=/run/hosts/$host hostname host$host
    ip netns add host$host
    ip link add c$host type veth peer name eth0 netns host$host
    ip link set c$host master control up
    ip -n host$host -batch - <<END
link set lo up
addr add $1.$((host + 1))/24 dev eth0
link set eth0 up
END
done
"""


class Rack:
    """`hosts` hosts and `nics` NICs in a guest that has none yet.

    Host i is host<i>, with the address `address(i)` on eth0, whose cable ends in c<i> on the bridge
    `control`. The guest itself is there too, at `front`.
    """

    def __init__(self, guest: Guest, hosts: int, nics: int) -> None:
        self.guest = guest
        self.count = hosts
        self._cut: set[str] = set()
        self.nics = Nics(guest, nics)
        if not hosts:
            return
        guest.run(["sh", "-ec", HOSTS, "hosts", NETWORK, str(hosts)])

    @staticmethod
    def address(host: int) -> str:
        """Return a host's address for TCP."""
        return f"{NETWORK}.{host + 1}"

    @property
    def front(self) -> str:
        """The guest's own address for TCP."""
        return f"{NETWORK}.254"

    @staticmethod
    def on(host: int, *, apart: bool = False) -> list[str]:
        """Return the command in front of one that is to run on a host.

        Args:
            host: Which.
            apart: Whether it has a boot id of its own. Without, pycoll knows that the hosts have
                their processors in common, and ranks leave them to each other while they wait.
        """
        return [ON, *(["--apart"] if apart else []), str(host)]

    @staticmethod
    def rails(host: int, rails: int) -> list[int]:
        """Return the NICs of a host in a job where every host has `rails`."""
        return list(range(host * rails, (host + 1) * rails))

    def cut(self, host: int) -> None:
        """Pull the cable of a host's TCP."""
        self._cut.add(f"c{host}")
        self.guest.run(["ip", "link", "set", f"c{host}", "down"])

    def heal(self) -> None:
        """Undo whatever was done to cables and NICs."""
        if self._cut:
            lines = "".join(f"link set {end} up\n" for end in self._cut)
            self.guest.run(["ip", "-batch", "-"], input=lines)
            self._cut.clear()
        self.nics.heal()
