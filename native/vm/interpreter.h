/* The interpreter: control flow, addressing and synchronisation of a Program.
 *
 * In the common part of C11 and CUDA C++, so that each target compiles it with its own counts and
 * its own loop over elements. Nothing here is atomic, or knows how memory is moved and by how many
 * threads. On a GPU all threads of a block run it in parallel: they take the same branches, and one
 * of them, the leader, does what must be done once.
 *
 * A target includes it after its own definitions of these (interpreter_cpu.h, kernel.h):
 *   PC_ROUTINE, PC_CALL         before a function; the type of a call, which has terms
 *   pc__leads(call)             this thread is the leader
 *   pc__meet(call, i)           before an instruction; false: the call is over
 *   pc__over(call)              after an instruction: all threads know that the call is over
 *   pc__wait_here(call, channel, i)   at a WAIT that does not pass; false: the step ends
 *   pc__count(line), pc__count_local(token)                           a count, acquired
 *   pc__sign(call, i, line)     writes the signature of the message of a FILL, before
 *   pc__publish(call, i, line, count, peer)   raises a count that says that data was written
 *   pc__acknowledge(call, line, count, peer)  raises one that says that data was read
 *   pc__signal_local(token, n)                raises a token's count, released
 *   pc__uses_ll(call)           messages are LL packets; pc__ll_slot(): where
 *   pc__by_ll(call, i)          a REDUCE_COPY has LL packets among its operands;
 *   pc__move_ll(call, i, tile)  moves it, all parts and by all threads, be they empty
 *   pc__taken(call, fifo)       before the credit for message fifo->received
 *   pc__put(call, channel, i)   sends a message or a credit to a remote peer; a code ends the call
 *   pc__depth(call, fifo)       how many messages may be in flight
 *   pc__small_bytes(call, fifo) of the longest message that lies in a small slot
 *   pc__signature(channel, i)   of the message that a WAIT has waited for
 *   pc__mismatch(call, channel, i)   the message belongs to another call; likewise
 *   pc__in, pc__out(call)       where the message would begin if the array held all of it
 *   pc__peer_in, pc__peer_out(call, peer)  where that of a peer would
 *   pc_skip, pc__skip(call, tile), pc__skipped(call, skip)   bytes of each chunk in earlier tiles,
 *                               in the target's own form
 *   PC_ROLLED                   before a loop that seldom runs more than once or twice
 *   pc__store_mode(...), pc__store_mode_end(...)   around a REDUCE_COPY: how to store
 *   pc__move(...)               moves one part of each operand, by all threads */
#ifndef PC_INTERPRETER_H
#define PC_INTERPRETER_H
#include "vm/operands.h"

/* Whether a WAIT would pass now; if not, the line that it waits for, and the count. */
PC_ROUTINE bool pc__passes(PC_CALL *call, const struct pc_vm_instruction *i, struct pc_line **line,
                           uint64_t *want)
{
    switch ((enum pc_vm_step)i->step) {
    case PC_STEP_WAIT_CREDIT: {
        struct pc_fifo *f = i->at.fifo;
        uint32_t depth = pc__depth(call, f);
        if (f->sent - f->credit < depth)
            return true;
        f->credit = pc__count(f->out_credit);
        *line = f->out_credit;
        *want = f->sent - depth + 1;
        return f->credit >= *want;
    }
    case PC_STEP_WAIT_MESSAGE: {
        struct pc_fifo *f = i->at.fifo;
        *line = &f->in_lines[f->received & (PC_LINES - 1)];
        *want = f->received + 1;
        return pc__count(*line) >= *want;
    }
    case PC_STEP_WAIT_DONE:
        *line = i->at.token->in;
        *want = i->at.token->received + 1;
        return pc__count(*line) >= *want;
    case PC_STEP_WAIT_LOCAL:
        *line = NULL; /* another channel of this rank: nothing to sleep on */
        *want = i->at.token->received + 1;
        return pc__count_local(i->at.token) >= *want;
    case PC_STEP_END:
    case PC_STEP_REDUCE_COPY:
    case PC_STEP_FILL:
    case PC_STEP_CONSUME:
    case PC_STEP_PUT_MESSAGE:
    case PC_STEP_PUT_CREDIT:
    case PC_STEP_SIGNAL_LOCAL:
    case PC_STEP_SIGNAL_DONE:
    case PC_STEP_LOOP:
    case PC_STEP_END_LOOP:
        break;
    }
    return true;
}

PC_ROUTINE void pc__reduce_copy(PC_CALL *call, const struct pc_channel *channel,
                                const struct pc_vm_instruction *i)
{
    if (pc__by_ll(call, i)) {
        pc__move_ll(call, i, channel->tile);
        return;
    }
    const struct pc_terms *terms = call->terms;
    const struct pc_vm_operand *operands = i->at.operands;
    uint32_t first = operands[0].chunk, width = operands[0].nchunks;
    pc_skip skip = pc__skip(call, channel->tile);
    pc_size total = 0;
    if (terms->spans && !(i->flags & PC_FLAG_PIECEWISE)) {
        const struct pc_chunk *last = &terms->chunks[first + width - 1];
        total = (pc_size)(last->at + last->nbytes - terms->chunks[first].at);
        width = 1;
    } else {
        PC_ROLLED
        for (uint32_t k = 0; k < width; k++)
            total += pc__tile_bytes(call, skip, first + k);
    }
    if (total == 0)
        return;
    struct pc_store_mode manner;
    pc__store_mode(call, i, total, &manner);
    pc_size packed = 0, nbytes = total;
    PC_ROLLED
    for (uint32_t k = 0; k < width; k++) {
        if (width > 1)
            nbytes = pc__tile_bytes(call, skip, first + k);
        if (nbytes == 0)
            continue;
        pc__move(call, i, k, skip, packed, total, nbytes, &manner);
        packed += nbytes;
    }
    pc__store_mode_end(i, total, &manner);
}

/* Runs a channel until it waits, has finished a tile, or is done. 1 when it moved, 0 when it still
 * waits, or a code. */
PC_ROUTINE int pc__step(PC_CALL *call, struct pc_channel *channel)
{
    const struct pc_vm_instruction *i = channel->pc, *from = i;
    for (;; i++) {
        if (!pc__meet(call, i))
            return PC_BROKEN;
        switch ((enum pc_vm_step)i->step) {
        case PC_STEP_REDUCE_COPY:
            pc__reduce_copy(call, channel, i);
            if (pc__over(call))
                return PC_BROKEN;
            break;
        case PC_STEP_FILL:
            if (pc__leads(call)) {
                struct pc_fifo *f = i->at.fifo;
                if (pc__uses_ll(call)) { /* each packet says itself that it is there */
                    f->sent++;
                    break;
                }
                struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
                pc__sign(call, i, line);
                pc__publish(call, i, line, ++f->sent, f->peer);
            }
            break;
        case PC_STEP_CONSUME:
            if (pc__leads(call)) {
                struct pc_fifo *f = i->at.fifo;
                pc__taken(call, f);
                pc__acknowledge(call, f->in_credit, ++f->received, f->peer);
            }
            break;
        case PC_STEP_PUT_MESSAGE:
        case PC_STEP_PUT_CREDIT:
            if (pc__leads(call)) {
                int rc = pc__put(call, channel, i);
                if (rc != PC_OK) {
                    channel->pc = i;
                    return rc;
                }
            }
            break;
        case PC_STEP_SIGNAL_LOCAL:
            if (pc__leads(call))
                pc__signal_local(i->at.token, i->at.token->sent + 1);
            break;
        case PC_STEP_SIGNAL_DONE:
            if (pc__leads(call)) {
                struct pc_token *token = i->at.token;
                pc__publish(call, i, token->out, ++token->sent, token->peer);
            }
            break;
        case PC_STEP_WAIT_CREDIT:
        case PC_STEP_WAIT_MESSAGE:
        case PC_STEP_WAIT_LOCAL:
        case PC_STEP_WAIT_DONE:
            if (!pc__wait_here(call, channel, i)) {
                channel->pc = i;
                return i != from;
            }
            if (!pc__leads(call))
                break;
            if (i->step == PC_STEP_WAIT_MESSAGE && !pc__uses_ll(call)
                && pc__signature(channel, i) != call->terms->signature) {
                int rc = pc__mismatch(call, channel, i);
                if (rc != PC_OK) {
                    channel->pc = i;
                    return rc;
                }
            }
            if (i->step == PC_STEP_WAIT_LOCAL || i->step == PC_STEP_WAIT_DONE)
                i->at.token->received++;
            break;
        case PC_STEP_LOOP:
            break;
        case PC_STEP_END_LOOP:
            if (++channel->tile < call->terms->ntiles) {
                i = call->terms->code + i->target;
                if (call->terms->nchannels > 1) { /* tile by tile, so that channels overlap */
                    channel->pc = i + 1;
                    return 1;
                }
            }
            break;
        case PC_STEP_END:
            channel->pc = i;
            channel->finished = true;
            call->running--;
            return 1;
        }
    }
}
#endif
