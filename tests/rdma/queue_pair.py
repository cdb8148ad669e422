"""Queue pairs and memory of a rank that is no pycoll, through pyverbs."""

from __future__ import annotations

import ctypes
import ipaddress
import mmap
import socket

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
from wireup import LINE, End, Immediate, Key

WRITABLE = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
READABLE = enums.IBV_ACCESS_REMOTE_READ
RECEIVES = 256
STAGE = (4 << 20) + 4096  #: bytes of the memory from which is written
PORT = 1
#: Numbers of requests.
RECEIVE, OWN, ATTEMPT = 0, 1, 2


class Rail:
    """A device, and the peer's memory as it sees it."""

    def __init__(self, device: str, memory: mmap.mmap, lines: int) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        both = WRITABLE | READABLE
        self.lines = self.region(memory, both, 0, lines)
        self.slots = self.region(memory, both, lines, len(memory) - lines)
        self.stage = MR(self.pd, STAGE, both)
        table = self.context.query_gid_table(64)
        best = [e for e in table if e.gid_type == 2 and _ipv4(e.gid_str())] or table
        self.gid, self.gid_index, self.gid_type = (
            best[0].gid_str(),
            best[0].gid_index,
            best[0].gid_type,
        )
        port = self.context.query_port(PORT)
        self.lid, self.mtu, self.layer = port.lid, port.active_mtu, port.link_layer

    def region(
        self, memory: mmap.mmap, access: int, begin: int = 0, nbytes: int | None = None
    ) -> MR:
        """Let the device use a part of some memory."""
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + begin
        return MR(self.pd, len(memory) if nbytes is None else nbytes, access, address=at)

    def key(self) -> Key:
        """Return what lets its memory be written."""
        return Key(self.lines.rkey, self.slots.rkey, 1 << 30)


def _ipv4(text: str) -> bool:
    return ipaddress.IPv6Address(text).ipv4_mapped is not None


class Connection:
    """A queue pair."""

    def __init__(self, rail: Rail, turn: int) -> None:
        self.rail, self.turn = rail, turn
        self.tried = False  #: the other end has written by it
        self.fenced = False  #: it is gone at the other end
        self.owned = 0  #: requests on their way
        self.cq = CQ(rail.context, 2 * RECEIVES)
        cap = QPCap(64, RECEIVES, 1, 1, LINE)
        self.qp = QP(rail.pd, QPInitAttr(enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        attributes = QPAttr(port_num=PORT)
        attributes.qp_access_flags = WRITABLE | READABLE
        self.qp.to_init(attributes)

    def end(self) -> End:
        """Return what the other end must know."""
        rail = self.rail
        gids = [ipaddress.IPv6Address(rail.gid).packed, bytes(16)]
        ipv4, ipv6 = gids if _ipv4(rail.gid) else gids[::-1]
        number = self.qp.qp_num
        address = rail.lid, 0, 0, rail.mtu, rail.layer  # no partition key is told
        return End(number, number, *address, ipv4, ipv6, rail.gid_type, 1)

    def connect(self, other: End) -> None:
        """Make it ready for both directions."""
        attributes = QPAttr(port_num=PORT, cur_qp_state=enums.IBV_QPS_INIT)
        attributes.path_mtu = min(self.rail.mtu, other.mtu)
        attributes.dest_qp_num, attributes.rq_psn = other.number, other.psn
        attributes.max_dest_rd_atomic, attributes.min_rnr_timer = 1, 12
        there = other.ipv4 if _ipv4(self.rail.gid) else other.ipv6
        gid = GID(ipaddress.IPv6Address(there).exploded)
        route = GlobalRoute(dgid=gid, sgid_index=self.rail.gid_index, hop_limit=64)
        attributes.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=route, dlid=other.lid)
        self.qp.to_rtr(attributes)
        attributes = QPAttr(port_num=PORT, cur_qp_state=enums.IBV_QPS_RTR)
        # As patient as the rank at the other end: see test_played.py.
        attributes.sq_psn, attributes.timeout, attributes.retry_cnt = self.qp.qp_num, 19, 6
        attributes.rnr_retry, attributes.max_rd_atomic = 7, 1
        self.qp.to_rts(attributes)
        for _ in range(RECEIVES):
            self.expect()

    def expect(self) -> None:
        """Be ready for one immediate more."""
        stage = self.rail.stage  # pyverbs wants a place; an immediate writes nothing there
        sg = [SGE(stage.buf, 1, stage.lkey)]
        self.qp.post_recv(RecvWR(wr_id=RECEIVE, num_sge=1, sg=sg))

    def post(
        self,
        opcode: int,
        address: int,
        key: int,
        data: bytes,
        immediate: Immediate | None = None,
        *,
        number: int = OWN,
        at: int = 0,
    ) -> None:
        """Write data that lie so far in the stage until the request has ended, or read into it."""
        stage = self.rail.stage
        if data:
            stage.write(data, len(data), at)
        request = SendWR(
            wr_id=number,
            opcode=opcode,
            num_sge=1,
            sg=[SGE(stage.buf + at, len(data), stage.lkey)],
            send_flags=enums.IBV_SEND_SIGNALED | (enums.IBV_SEND_SOLICITED if immediate else 0),
            imm_data=socket.htonl(immediate.pack()) if immediate else 0,
        )
        if opcode == enums.IBV_WR_ATOMIC_FETCH_AND_ADD:
            request.set_wr_atomic(key, address, 1, 0)
        else:
            request.set_wr_rdma(key, address)
        self.owned += number == OWN
        self.qp.post_send(request)

    def close(self) -> None:
        """Destroy it: from now on nothing comes by it."""
        self.qp.close()
        self.cq.close()
