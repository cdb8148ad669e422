/* The ring of packets that a slot receives: any NIC puts, the slot's own NIC takes. */
#ifndef FV_RING_H
#define FV_RING_H
#include "fabric.h"

enum {
    FV_FIRST = 1, /* of its message */
    FV_LAST = 2,
    FV_IMM = 4,
    FV_SOLICITED = 8,
    FV_ACK_PLEASE = 16,
};

/* What an FV_ACK says. */
enum { FV_GOOD, FV_NAK_SEQUENCE, FV_NAK_INVALID, FV_NAK_ACCESS, FV_NAK_OPERATION, FV_NAK_RNR };

struct fv_packet {
    uint32_t bytes; /* of the record: this and the payload, rounded up to 8 */
    uint8_t kind;   /* 0: the rest of the ring is skipped */
    uint8_t flags;
    uint8_t code;      /* of an FV_ACK */
    uint8_t timer;     /* of an FV_NAK_RNR: as ibv_qp_attr.min_rnr_timer */
    uint32_t from, to; /* QP numbers */
    uint32_t psn;      /* of an FV_ACK: the last that was executed; of a NAK: the one refused */
    uint32_t imm, rkey;
    uint64_t addr;
    uint32_t total;  /* bytes of the message */
    uint32_t length; /* bytes of payload, which follows this */
    uint64_t unused[2];
};
_Static_assert(sizeof(struct fv_packet) == 64, "a packet's head is a line");

/* Room for a packet with `length` bytes of payload in the ring of `slot`, or NULL when there is
 * none now; the payload goes behind the head. Commit or cancel must follow at once. */
struct fv_packet *fv_ring_begin(struct fv_fabric *, uint32_t slot, uint32_t length);
uint64_t fv_ring_commit(struct fv_fabric *, uint32_t slot, struct fv_packet *);
void fv_ring_cancel(struct fv_fabric *, uint32_t slot);

/* The oldest packet in the ring of `slot`, or NULL. It stays there until it is taken. */
struct fv_packet *fv_ring_peek(struct fv_fabric *, uint32_t slot);
void fv_ring_take(struct fv_fabric *, uint32_t slot, const struct fv_packet *);

/* Whether the packet for which fv_ring_commit gave `end` has been taken. */
bool fv_ring_taken(struct fv_fabric *, uint32_t slot, uint64_t end);
#endif
