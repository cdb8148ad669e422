/* A frame: what one remote transfer looks like on a byte stream. The header is followed by the
 * message's bytes, if any. It names no address: where the bytes belong is arithmetic on the sender,
 * the channel and the count, so a peer has little to lie about, and each field of it is checked.
 *
 * Frames do not depend on one another: sent over several streams they may arrive in any order. */
#ifndef PC_FRAME_H
#define PC_FRAME_H
#include "core/target_cpu.h"

#define PC_FRAME_MAGIC \
    0x31464350u /* "PCF1"; a host of the other byte order finds another number \
                 */

enum pc_frame_kind { PC_FRAME_MESSAGE = 1, PC_FRAME_CREDIT = 2 };

struct pc_frame {
    uint32_t magic;
    uint8_t kind; /* enum pc_frame_kind */
    uint8_t channel;
    uint16_t zero;
    uint64_t nbytes;    /* MESSAGE: that follow */
    uint64_t count;     /* MESSAGE: to which it raises its line; 0 in CREDIT */
    uint64_t credit;    /* messages consumed of the other direction of this channel */
    uint64_t signature; /* MESSAGE: what the line says, as are the next two */
    uint32_t place;
    uint32_t piece;
};
_Static_assert(sizeof(struct pc_frame) == 48, "pc_frame is 48 bytes");

struct pc_frame pc__frame_message(const struct pc_net_edge *edge, uint64_t number, uint64_t nbytes);
struct pc_frame pc__frame_credit(const struct pc_net_edge *edge);

/* Checks a header that has come; `into` is where its bytes go, all of which must come
 * before it lands. */
int pc__frame_check(struct pc_net_peer *from, const struct pc_frame *frame, char **into,
                    struct pc_error *error);
/* Raises the counts. 1 when somebody sleeps on one. */
int pc__frame_land(struct pc_net_peer *from, const struct pc_frame *frame, struct pc_error *error);
#endif
