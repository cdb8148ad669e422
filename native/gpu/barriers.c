/* Places the barriers and fences of a block.
 *
 * Each REDUCE_COPY has a barrier of its own, between the addresses that its block's first warp
 * finds and the data that all threads move (kernel.h): so it comes after whatever the leader waited
 * for, and after the data of the REDUCE_COPY before it. What is left is the other direction: a
 * count says that data was written, or read, so a barrier must come before it is raised.
 *
 * A fence makes what all threads stored before that barrier visible to other GPUs before what the
 * leader stores next. So a count that says that data was written needs one, unless nothing was
 * stored since the last fence: then several messages go behind one fence. A count that says that
 * data was read needs none: a load whose value has been stored elsewhere has long been answered.
 * What the leader itself writes into lines, the signatures, comes before that fence, too
 * (pc__sign). What hands something over to the proxy, or to another channel, has a fence of its
 * own. */
#include "gpu/device_image.h"

static bool tells(const struct pc_vm_instruction *line, bool packets)
{
    switch ((enum pc_vm_step)line->step) {
    case PC_STEP_FILL:
        return !packets; /* each LL packet has its own flag */
    case PC_STEP_CONSUME:
    case PC_STEP_PUT_MESSAGE:
    case PC_STEP_PUT_CREDIT:
    case PC_STEP_SIGNAL_LOCAL:
    case PC_STEP_SIGNAL_DONE:
        return true;
    case PC_STEP_END: /* a kernel ends with a barrier */
    case PC_STEP_REDUCE_COPY:
    case PC_STEP_WAIT_CREDIT:
    case PC_STEP_WAIT_MESSAGE:
    case PC_STEP_WAIT_LOCAL:
    case PC_STEP_WAIT_DONE:
    case PC_STEP_LOOP:
    case PC_STEP_END_LOOP:
        break;
    }
    return false;
}

/* Whether a count says to a peer's kernel that data was written. */
static bool publishes(const struct pc_vm_instruction *line, bool packets)
{
    return line->step == PC_STEP_SIGNAL_DONE || (line->step == PC_STEP_FILL && !packets);
}

/* Flags each line that needs it since data was moved; `needs`: which lines do. */
static void place(struct pc_vm_instruction *code, uint32_t n, bool packets, uint8_t flag,
                  bool (*needs)(const struct pc_vm_instruction *, bool))
{
    bool moved = false; /* data was moved since the last flag */
    bool handed_over = false;
    for (int turn = 0; turn < 2; turn++, moved = false)
        for (uint32_t i = 0; i < n; i++) {
            if (code[i].step == PC_STEP_LOOP)
                moved |= handed_over; /* from before the loop, or from its last turn */
            else if (code[i].step == PC_STEP_END_LOOP)
                handed_over = moved;
            else if (code[i].step == PC_STEP_REDUCE_COPY)
                moved = true;
            else if (moved && needs(&code[i], packets)) {
                code[i].flags |= flag;
                moved = false;
            }
        }
}

void pc__place_barriers(struct pc_vm_instruction *code, uint32_t n, bool packets)
{
    place(code, n, packets, PC_FLAG_SYNC, tells);
    place(code, n, packets, PC_FLAG_FENCE, publishes);
}
