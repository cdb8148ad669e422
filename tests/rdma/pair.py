"""Two queue pairs, of rxe0 and rxe1, and what becomes of writes from the second to the first.

Reads a line for each thing to do: `connect` makes new pairs, `write` posts two writes and says how
they ended, `states` says how the ports and the queue pairs are.
"""

from __future__ import annotations

import sys
import time

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ACCESS = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
NBYTES = 4096
PATIENCE = 30  #: seconds
NAMES = {
    getattr(enums, f"IBV_WC_{name}"): name
    for name in ("SUCCESS", "LOC_QP_OP_ERR", "WR_FLUSH_ERR", "REM_ACCESS_ERR", "RETRY_EXC_ERR")
}
STATES = {enums.IBV_QPS_RTS: "RTS", enums.IBV_QPS_ERR: "ERR"}


class End:
    """A queue pair with its memory."""

    def __init__(self, device: str) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.mr = MR(self.pd, NBYTES, ACCESS)
        self.gid = str(self.context.query_gid(1, 1))
        self.renew()

    def renew(self) -> None:
        what = QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(8, 8, 1, 1))
        self.qp = QP(self.pd, what)

    def connect(self, other: End) -> None:
        """Gives up after about 4 s without an answer: a busy guest may be late with one."""
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = ACCESS
        self.qp.to_init(attributes)
        attributes = QPAttr(port_num=1, cur_qp_state=enums.IBV_QPS_INIT)
        attributes.path_mtu = enums.IBV_MTU_4096
        attributes.dest_qp_num, attributes.rq_psn = other.qp.qp_num, 1
        route = GlobalRoute(dgid=GID(other.gid), sgid_index=1, hop_limit=64)
        attributes.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rtr(attributes)
        attributes = QPAttr(port_num=1, cur_qp_state=enums.IBV_QPS_RTR)
        attributes.sq_psn, attributes.timeout, attributes.retry_cnt = 1, 17, 6
        self.qp.to_rts(attributes)

    def write(self, other: End) -> str:
        """Post two writes; returns how they ended."""
        for number in (1, 2):
            request = SendWR(
                wr_id=number,
                opcode=enums.IBV_WR_RDMA_WRITE,
                num_sge=1,
                sg=[SGE(self.mr.buf, NBYTES, self.mr.lkey)],
                send_flags=enums.IBV_SEND_SIGNALED,
            )
            request.set_wr_rdma(other.mr.rkey, other.mr.buf)
            self.qp.post_send(request)
        ended: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while len(ended) < 2 and time.monotonic() < deadline:
            ended += [NAMES.get(done.status, str(done.status)) for done in self.cq.poll(2)[1]]
        return " ".join(ended) or "nothing"

    def state(self) -> str:
        port = self.context.query_port(1).state
        pair = self.qp.query(enums.IBV_QP_STATE)[0].qp_state
        return f"{'ACTIVE' if port == enums.IBV_PORT_ACTIVE else port} {STATES.get(pair, pair)}"


def main() -> None:
    first, second = End("rxe0"), End("rxe1")
    for line in sys.stdin:
        if line == "connect\n":
            for end in (first, second):
                end.renew()
            first.connect(second)
            second.connect(first)
            print("connected", flush=True)
        elif line == "write\n":
            print(f"ended {second.write(first)}", flush=True)
        elif line == "states\n":
            print(f"states {first.state()}, {second.state()}", flush=True)


if __name__ == "__main__":
    main()
