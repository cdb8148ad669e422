/* A frame: the wire format of one message or credit on a byte stream. The header is followed by the
 * message's bytes, if any. It names no address: where the bytes belong is arithmetic on the sender,
 * the channel and the count, so a peer has little to lie about, and each field of it is checked.
 *
 * Frames do not depend on one another: sent over several streams they may arrive in any order. */
#ifndef PC_FRAME_H
#define PC_FRAME_H
#include "core/target_cpu.h"

#define PC_FRAME_MAGIC 0x31464350u /* "PCF1"; tells a host of the other byte order */

enum pc_frame_kind { PC_FRAME_MESSAGE = 1, PC_FRAME_CREDIT = 2 };

struct pc_frame {
    uint32_t magic;
    uint8_t kind; /* enum pc_frame_kind */
    uint8_t channel;
    uint16_t zero;
    uint64_t nbytes;    /* MESSAGE: the bytes that follow */
    uint64_t count;     /* MESSAGE: the new count of its line; 0 in CREDIT */
    uint64_t credit;    /* messages consumed of the edge back on this channel */
    uint64_t signature; /* MESSAGE: from the line, as the next two */
    uint32_t place;
    uint32_t fragment;
};
_Static_assert(sizeof(struct pc_frame) == 48, "pc_frame is 48 bytes");

struct pc_frame pc__frame_message(const struct pc_net_edge *edge, uint64_t number, uint64_t nbytes);
struct pc_frame pc__frame_credit(const struct pc_net_edge *edge);

/* Checks a received header; `into`: where the message's bytes go, before pc__frame_land. */
int pc__frame_check(struct pc_net_peer *from, const struct pc_frame *frame, char **into,
                    struct pc_error *error);
/* Fills the line and raises the counts. `at`: where the bytes lie, if they may lie where the
 * message was expected. 1 when a thread sleeps on one. */
int pc__frame_land(struct pc_net_peer *from, const struct pc_frame *frame, const char *at,
                   struct pc_error *error);
#endif
