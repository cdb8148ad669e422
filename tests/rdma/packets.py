"""What NICs have sent to themselves: the kernel's own count of RDMA reads that flush.

A NIC's driver counts all that it sends. What goes to another NIC passes the interface below it,
where a filter counts it; what a queue pair sends to one of the same NIC does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nics import Nics

#: One packet of RoCE v2: UDP to this port, over either IP.
PORT = 4791
COUNT = "filter add dev r{nic} egress protocol {ip} flower ip_proto udp dst_port {port} action ok"


class Looped:
    """Counts of what NICs send to themselves, from now on.

    Args:
        nics: All of them.
        which: Those that are looked at.
    """

    def __init__(self, nics: Nics, which: Sequence[int]) -> None:
        self.nics = nics
        self.which = list(which)
        lines = []
        for nic in self.which:
            lines += [f"qdisc replace dev r{nic} clsact", f"filter del dev r{nic} egress"]
            lines += [COUNT.format(nic=nic, ip=ip, port=PORT) for ip in ("ip", "ipv6")]
        nics.guest.run(["tc", "-force", "-batch", "-"], input="\n".join(lines) + "\n", check=False)
        self.before = self._now()

    def packets(self) -> list[int]:
        """Return how many packets each NIC has sent to itself."""
        return [now - then for now, then in zip(self._now(), self.before, strict=True)]

    def _now(self) -> list[int]:
        found = []
        for nic in self.which:
            path = f"/sys/class/infiniband/{self.nics.device(nic)}/ports/1/hw_counters/sent_pkts"
            sent = int(self.nics.guest.run(["cat", path]).stdout)
            tell = ["tc", "-s", "-json", "filter", "show", "dev", f"r{nic}", "egress"]
            rows = json.loads(self.nics.guest.run(tell).stdout)
            passed = [
                action["stats"]["packets"]
                for row in rows
                for action in row.get("options", {}).get("actions", ())
            ]
            assert len(passed) == 2, rows  # one for each IP
            found.append(sent - sum(passed))
        return found
