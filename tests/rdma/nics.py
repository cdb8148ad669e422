"""RDMA NICs made of software: rxe devices, each cabled to a port of one switch.

NIC i is the device rxe<i> on the interface r<i>, whose cable ends in port p<i> of the bridge
`switch`. All are in the first network namespace, as rxe routes in no other (Linux 6.1); processes
on any host may use them all the same. Packets really cross the switch, and every cable can be bent
and cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from guest import Guest

NETWORK = "10.80.0"
MTU = 4500  #: bytes; enough for RDMA packets of 4096
#: Every NIC answers for itself only, and takes packets from its own machine; a new address can be
#: used at once.
SETTINGS = (
    "net.ipv6.conf.default.accept_dad=0",
    *(
        f"net.ipv4.conf.{which}.{setting}"
        for which in ("all", "default")
        for setting in ("accept_local=1", "rp_filter=0", "arp_ignore=1", "arp_announce=2")
    ),
)
#: Waits until the devices named in pairs with their address (as in a GID) can be used. Nothing but
#: the shell's own commands: a process costs the guest more than the whole question.
USABLE = """
usable() {
    read -r state <$port/state
    case $state in *ACTIVE) ;; *) return 1 ;; esac
    for index in 0 1 2 3; do
        read -r gid <$port/gids/$index
        case $gid in *$1) return 0 ;; esac
    done
    return 1
}
turns=300
while [ $# -gt 0 ]; do
    port=/sys/class/infiniband/$1/ports/1
    until usable $2; do
        turns=$((turns - 1))
        [ $turns -gt 0 ] || { echo "$1 is $(cat $port/state $port/gids/[0-3])"; exit 1; }
        sleep 0.1
    done
    shift 2
done
"""


class Nics:
    """`count` NICs in a guest, which has none yet."""

    def __init__(self, guest: Guest, count: int) -> None:
        self.guest = guest
        self.count = count
        self._bent: set[str] = set()
        self._down: set[str] = set()
        self._resized: set[int] = set()
        self._moved: dict[int, str] = {}  #: by NIC: the address that it has instead
        guest.run(["sysctl", "-qw", *SETTINGS])
        lines = [
            f"link add switch mtu {MTU} type bridge forward_delay 0 mcast_snooping 0",
            "link set switch up",
        ]
        for nic in range(count):
            lines += [
                f"link add p{nic} mtu {MTU} type veth "
                f"peer name r{nic} mtu {MTU} address 02:00:00:00:00:{nic + 1:02x}",
                f"link set p{nic} master switch up",
                f"addr add {self.address(nic)}/24 dev r{nic}",
                f"link set r{nic} up",
            ]
        guest.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n")
        links = "".join(f"link add rxe{nic} type rxe netdev r{nic}\n" for nic in range(count))
        guest.run(["rdma", "--batch", "-"], input=links)
        self._wait(range(count))

    @staticmethod
    def device(nic: int) -> str:
        """Return a NIC's RDMA device, whose only port is 1."""
        return f"rxe{nic}"

    @staticmethod
    def address(nic: int) -> str:
        """Return a NIC's IPv4 address, which is its GID 1; GID 0 is link-local."""
        return f"{NETWORK}.{nic + 1}"

    def objects(self) -> list[str]:
        """Return the queue pairs and regions of processes; the kernel's own have no process."""
        kinds = ("qp", "mr")
        said = [self.guest.run(["rdma", "resource", "show", kind]).stdout for kind in kinds]
        return [line for text in said for line in text.splitlines() if " pid " in line]

    def cut(self, nic: int) -> None:
        """Pull a NIC's cable: the NIC sees its port go down, its peers see nothing but silence."""
        self._down.add(f"p{nic}")
        self._ip(f"link set p{nic} down")

    def mend(self, nic: int) -> None:
        """Plug a NIC's cable in again; returns when the port is active."""
        self._down.discard(f"p{nic}")
        self._ip(f"link set p{nic} up")
        self._wait([nic])

    def disable(self, nic: int) -> None:
        """Take a NIC's interface down."""
        self._down.add(f"r{nic}")
        self._ip(f"link set r{nic} down")

    def enable(self, nic: int) -> None:
        """Take a NIC's interface up again; returns when the port is active."""
        self._down.discard(f"r{nic}")
        self._ip(f"link set r{nic} up")
        self._wait([nic])

    def shape(
        self,
        nic: int,
        *,
        delay: float = 0.0,
        loss: float = 0.0,
        duplicate: float = 0.0,
        corrupt: float = 0.0,
        reorder: float = 0.0,
        rate: float = 0.0,
    ) -> None:
        """Bend a NIC's cable, both ways; everything else about it is as it was before.

        Args:
            nic: Whose cable.
            delay: Seconds that every packet takes.
            loss: Share of the packets that get lost; with 1 the port stays active all the same.
            duplicate: Share of the packets that come twice.
            corrupt: Share of the packets that have one bit wrong.
            reorder: Share of the packets that overtake those before; needs a delay.
            rate: Bytes per second that get through; 0: as many as can.
        """
        shares = {"loss": loss, "duplicate": duplicate, "corrupt": corrupt, "reorder": reorder}
        bend = [f"delay {delay * 1e6:.0f}us"] if delay or reorder else []
        bend += [f"{name} {share:.4%}" for name, share in shares.items() if share]
        bend += [f"rate {rate * 8:.0f}bit"] if rate else []
        for end in (f"p{nic}", f"r{nic}"):
            if bend:
                self._bent.add(end)
                self._tc(f"qdisc replace dev {end} root netem limit 100000 {' '.join(bend)}")
            elif end in self._bent:
                self._bent.discard(end)
                self._tc(f"qdisc del dev {end} root")

    def resize(self, nic: int, mtu: int) -> None:
        """Change how long a packet may be on a NIC's cable, in bytes of Ethernet; MTU as it was."""
        self._resized.add(nic)
        self._ip(f"link set r{nic} mtu {mtu}", f"link set p{nic} mtu {mtu}")
        if mtu == MTU:
            self._resized.discard(nic)

    def readdress(self, nic: int, host: int) -> None:
        """Give a NIC the address NETWORK.host instead of its own; returns when it has its GID."""
        old = self._moved.get(nic, self.address(nic))
        new = self._moved[nic] = f"{NETWORK}.{host}"
        self._ip(f"addr del {old}/24 dev r{nic}", f"addr add {new}/24 dev r{nic}")
        self._wait([nic])

    def heal(self) -> None:
        """Undo whatever was done to the NICs and their cables; returns when all are active."""
        if self._bent:
            self._tc(*(f"qdisc del dev {end} root" for end in self._bent))
            self._bent.clear()
        if self._down:
            self._ip(*(f"link set {end} up" for end in self._down))
            self._down.clear()
            self._wait(range(self.count))
        for nic in list(self._resized):
            self.resize(nic, MTU)
        for nic in list(self._moved):
            self.readdress(nic, nic + 1)
            del self._moved[nic]

    def _wait(self, nics: Sequence[int]) -> None:
        """Wait until NICs are active and have their GIDs."""
        pairs: list[str] = []
        for nic in nics:
            address = self._moved.get(nic, self.address(nic))
            octets = [int(octet) for octet in address.split(".")]
            gid = "ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
            pairs += [self.device(nic), gid]
        self.guest.run(["sh", "-c", USABLE, "usable", *pairs])

    def _ip(self, *commands: str) -> None:
        self.guest.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n")

    def _tc(self, *commands: str) -> None:
        self.guest.run(["tc", "-batch", "-"], input="\n".join(commands) + "\n")
