"""Records what every TCP client says first, off the wire: `recorder.py INTERFACE`.

Prints `recording`, then, when its input ends, a JSON list of hexadecimal texts.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys

LIMIT = 600  #: bytes of each client: more than a handshake
IPV4, TCP, SYN = 0x0800, 6, 0x02
Stream = tuple[bytes, bytes]


def segment(frame: bytes) -> tuple[Stream, int, int, bytes] | None:
    """Return a segment's two ends, flags, sequence number and data; None for anything else."""
    if len(frame) < 54 or struct.unpack_from("!H", frame, 12)[0] != IPV4 or frame[23] != TCP:
        return None
    size = struct.unpack_from("!H", frame, 16)[0] or len(frame) - 14  # 0: cut by the card, later
    packet = frame[14 : 14 + size]
    head = 4 * (packet[0] & 15)
    number = struct.unpack_from("!I", packet, head + 4)[0]
    data = packet[head + 4 * (packet[head + 12] >> 4) :]
    ends = (packet[12:16] + packet[head : head + 2], packet[16:20] + packet[head + 2 : head + 4])
    return ends, packet[head + 13], number, data


def main() -> None:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    wire.bind((sys.argv[1], 0))
    first: dict[Stream, int] = {}  #: a client's first sequence number
    said: dict[Stream, bytearray] = {}
    print("recording", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin, wire], [], [])
        if sys.stdin in ready:
            break
        found = segment(wire.recv(1 << 17))
        if found is None:
            continue
        ends, flags, number, data = found
        if flags & 0x12 == SYN:  # without ACK: a client's
            first[ends] = (number + 1) % 2**32
            said[ends] = bytearray()
        elif ends in said and data:
            at = (number - first[ends]) % 2**32
            if at == len(said[ends]) < LIMIT:
                said[ends] += data
    print(json.dumps([bytes(text[:LIMIT]).hex() for text in said.values() if text]))


if __name__ == "__main__":
    main()
