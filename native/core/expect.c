/* Expected messages: what a call waits for only to copy it, a network may receive where the copy
 * would go.
 *
 * That memory is free to be written once all that the copy waits for has happened but the message:
 * the steps before it have run, and other channels that use it have signalled. */
#include "core/interpreter_cpu.h"

#define PC_EXPECT_FROM 4096u /* bytes: shorter ones are copied sooner than they are announced */

/* What follows a row of WAITs, or NULL where another channel must move first. */
static const struct pc_vm_instruction *behind(struct pc_call *call,
                                              const struct pc_vm_instruction *i)
{
    struct pc_line *line;
    uint64_t want;
    for (; pc__waits(i); i++)
        if ((i->step == PC_STEP_WAIT_LOCAL || i->step == PC_STEP_WAIT_DONE)
            && !pc__passes(call, i, &line, &want))
            return NULL;
    return i;
}

/* Where a copy of the edge's next message goes, if that is one range of memory; else NULL. */
static char *target(struct pc_call *call, const struct pc_channel *channel,
                    const struct pc_vm_instruction *i, uint64_t *nbytes)
{
    const struct pc_terms *terms = call->terms;
    const struct pc_vm_operand *into = &i->at.operands[1];
    if (i->step != PC_STEP_REDUCE_COPY || pc__copied(i) != channel->pc->at.fifo->edge)
        return NULL;
    bool spans = terms->spans && !(i->flags & PC_FLAG_PIECEWISE);
    *nbytes = pc__message_bytes(call, channel->tile, i->at.operands);
    if (*nbytes < PC_EXPECT_FROM || (!spans && into->nchunks != 1)
        || pc__kept(call, i, *nbytes) != 1
        || (into->space != PC_SPACE_OUT && into->space != PC_SPACE_SCRATCH))
        return NULL;
    return pc__address(call, into, 0, pc__skip(call, channel->tile), 0, *nbytes);
}

void pc__expect(struct pc_call *call, const struct pc_channel *channel)
{
    const struct pc_vm_instruction *i = channel->pc;
    if (channel->finished || channel->line == NULL || i->step != PC_STEP_WAIT_MESSAGE)
        return;
    struct pc_net_edge *edge = i->at.fifo->edge;
    if (edge == NULL || edge->expected.count == channel->want)
        return;
    const struct pc_vm_instruction *copy = behind(call, i);
    if (copy == NULL)
        return; /* later, perhaps */
    struct pc_net_expected expected = {.signature = call->terms->signature, .count = channel->want};
    expected.into = target(call, channel, copy, &expected.nbytes);
    pc__net_expect(edge, &expected);
}
