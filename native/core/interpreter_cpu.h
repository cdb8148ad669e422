/* The interpreter on the CPU: one thread steps the channels of a call in turns, and a WAIT that
 * does not pass sends it back to the progress loop. See vm/interpreter.h. */
#ifndef PC_INTERPRETER_CPU_H
#define PC_INTERPRETER_CPU_H
#include "core/probe.h"
#include "core/target_cpu.h"

#define PC_ROUTINE static inline
#define PC_CALL struct pc_call
#define PC_ROLLED

typedef uint64_t pc_skip;

static inline pc_skip pc__skip(const struct pc_call *call, pc_tile tile)
{
    return tile * call->terms->tile;
}

static inline uint64_t pc__skipped(const struct pc_call *call, pc_skip skip)
{
    (void)call;
    return skip;
}

static inline bool pc__leads(const struct pc_call *call)
{
    (void)call;
    return true;
}

static inline bool pc__meet(const struct pc_call *call, const struct pc_vm_instruction *i)
{
    (void)call, (void)i;
    return true;
}

static inline bool pc__over(const struct pc_call *call)
{
    (void)call;
    return false;
}

static inline bool pc__uses_ll(const struct pc_call *call)
{
    (void)call;
    return false;
}

static inline char *pc__ll_slot(struct pc_call *call, struct pc_fifo *f, bool receiving, uint64_t n)
{
    (void)call, (void)receiving, (void)n;
    return f->in_packets;
}

static inline bool pc__by_ll(const struct pc_call *call, const struct pc_vm_instruction *i)
{
    (void)call, (void)i;
    return false;
}

static inline void pc__move_ll(struct pc_call *call, const struct pc_vm_instruction *i,
                               pc_tile tile)
{
    (void)call, (void)i, (void)tile;
}

static inline void pc__taken(struct pc_call *call, struct pc_fifo *f)
{
    (void)call, (void)f;
}

static inline char *pc__in(const struct pc_call *call)
{
    return call->in;
}

static inline char *pc__out(const struct pc_call *call)
{
    return call->out;
}

static inline char *pc__peer_in(const struct pc_call *call, uint32_t peer)
{
    return (char *)call->comm->peers[peer].in;
}

static inline char *pc__peer_out(const struct pc_call *call, uint32_t peer)
{
    return call->comm->peers[peer].out;
}

static inline uint32_t pc__depth(const struct pc_call *call, const struct pc_fifo *f)
{
    return call->terms->longest <= f->small_bytes ? PC_LINES : call->terms->slots;
}

static inline uint32_t pc__small_bytes(const struct pc_call *call, const struct pc_fifo *f)
{
    (void)call;
    return f->small_bytes;
}

/* One thread runs both channels. */
static inline uint64_t pc__count_local(const struct pc_token *token)
{
    return token->sent;
}

static inline void pc__signal_local(struct pc_token *token, uint64_t count)
{
    token->sent = count;
}

/* Written or read: x86 and Arm release a store at the same price. */
static inline void pc__acknowledge(struct pc_call *call, struct pc_line *line, uint64_t count,
                                   uint32_t peer)
{
    if (pc__raise(line, count))
        pc__wakeup_signal(call->comm, peer);
}

static inline void pc__sign(const struct pc_call *call, const struct pc_vm_instruction *i,
                            struct pc_line *line)
{
    (void)i;
    line->signature = call->terms->signature;
}

static inline void pc__publish(struct pc_call *call, const struct pc_vm_instruction *i,
                               struct pc_line *line, uint64_t count, uint32_t peer)
{
    (void)i;
    pc__acknowledge(call, line, count, peer);
}

struct pc_store_mode {
    uint64_t ticks;
    uint32_t stream; /* bit j: non-temporal stores to destination j */
    enum pc_form form;
};

static inline void pc__store_mode(const struct pc_call *call, const struct pc_vm_instruction *i,
                                  uint64_t total, struct pc_store_mode *manner)
{
    /* In place the lines are in the cache already. */
    bool stream_out = call->terms->stream_out && call->in != call->out;
    bool stream_slot;
    manner->form = pc__probe_begin(i->probe, total, &stream_slot, &manner->ticks);
    manner->stream = 0;
    if (stream_out || stream_slot)
        for (uint32_t k = 0; k < i->ndst; k++) {
            enum pc_space space = (enum pc_space)i->at.operands[i->nsrc + k].space;
            bool slot = space == PC_SPACE_SLOT, own = space == PC_SPACE_SCRATCH;
            manner->stream |= (uint32_t)(slot ? stream_slot : stream_out && !own) << k;
        }
}

static inline void pc__store_mode_end(const struct pc_vm_instruction *i, uint64_t total,
                                      const struct pc_store_mode *manner)
{
    pc__probe_end(i->probe, manner->form, total, manner->ticks);
}

#include "vm/operands.h"

/* Whether a message is sent from where its data also lie (its lender, which the loader found), and
 * its slot in the shadow is left as it is: its network copies messages of this length anyway. */
static inline bool pc__lent(const struct pc_call *call, const struct pc_vm_operand *lender,
                            uint64_t nbytes)
{
    return nbytes >= call->comm->net->ops->lend_from
           && (lender->nchunks == 1 || call->terms->spans);
}

/* How many destinations are written; the last ones are slots of messages that may be lent. */
static inline uint32_t pc__kept(const struct pc_call *call, const struct pc_vm_instruction *i,
                                uint64_t total)
{
    return i->target != 0 && pc__lent(call, i->at.operands, total) ? i->ndst - i->target : i->ndst;
}

/* The edge whose message a REDUCE_COPY copies, from a peer that is remote; else NULL. */
static inline struct pc_net_edge *pc__copied(const struct pc_vm_instruction *i)
{
    const struct pc_vm_operand *source = i->at.operands;
    if (i->nsrc != 1 || source->space != PC_SPACE_SLOT || !source->receiving
        || i->flags & PC_FLAG_SCALE)
        return NULL;
    return source->fifo->edge;
}

/* Whether the network has received the message where it would be copied to, see expect.c. */
static inline bool pc__has_landed(const struct pc_vm_instruction *i)
{
    const struct pc_net_edge *edge = pc__copied(i);
    return edge != NULL && edge->landed == edge->fifo->received + 1;
}

static inline void pc__move(struct pc_call *call, const struct pc_vm_instruction *i, uint32_t piece,
                            pc_skip skip, pc_size packed, pc_size total, pc_size nbytes,
                            const struct pc_store_mode *manner)
{
    const struct pc_plan *plan = call->plan;
    uint32_t ndst = pc__kept(call, i, total);
    if (ndst == 0 || pc__has_landed(i))
        return;
    uint32_t n = i->nsrc + ndst;
    uint32_t divisor = i->flags & PC_FLAG_SCALE ? call->terms->divisor : 0;
    void *address[PC_MAX_OPERANDS];
    for (uint32_t j = 0; j < n; j++)
        address[j] = pc__address(call, &i->at.operands[j], piece, skip, packed, total);
    plan->fold(address + i->nsrc, ndst, (const void *const *)address, i->nsrc,
               nbytes >> plan->itemsize_log2, divisor, manner->stream);
}

/* Hands a message (data in the shadow or at `lender`, signature in the line) or a credit to the
 * network. */
static inline int pc__hand_over(struct pc_call *call, const struct pc_channel *channel,
                                const struct pc_vm_instruction *i,
                                const struct pc_vm_operand *lender)
{
    if (i->step == PC_STEP_PUT_CREDIT) {
        pc__net_credit(i->at.fifo->edge, ++i->at.fifo->received);
        return PC_OK;
    }
    struct pc_fifo *f = i->at.operands->fifo;
    uint64_t nbytes = pc__message_bytes(call, channel->tile, i->at.operands);
    char *slot = pc__address(call, i->at.operands, 0, 0, 0, nbytes);
    const char *lent = NULL;
    if (lender != NULL && pc__lent(call, lender, nbytes))
        lent = pc__address(call, lender, 0, pc__skip(call, channel->tile), 0, nbytes);
    return pc__net_message(f->edge, slot, lent, nbytes, &call->error);
}

static inline int pc__put(struct pc_call *call, const struct pc_channel *channel,
                          const struct pc_vm_instruction *i)
{
    const struct pc_vm_operand *lender = NULL;
    if (i->step == PC_STEP_PUT_MESSAGE) {
        struct pc_fifo *f = i->at.operands->fifo;
        f->out_lines[f->sent & (PC_LINES - 1)].signature = call->terms->signature;
        if (i->target != 0)
            lender = call->program->operands + i->target - 1;
    }
    return pc__hand_over(call, channel, i, lender);
}

static inline uint64_t pc__signature(const struct pc_channel *channel,
                                     const struct pc_vm_instruction *i)
{
    (void)i;
    return channel->line->signature;
}

static inline int pc__mismatch(struct pc_call *call, const struct pc_channel *channel,
                               const struct pc_vm_instruction *i)
{
    (void)channel;
    return pc__fail(&call->error, PC_MISMATCH, (int)i->at.fifo->peer,
                    "message %llu from rank %u belongs to another call",
                    (unsigned long long)i->at.fifo->received, i->at.fifo->peer);
}

static inline bool pc__wait_here(struct pc_call *call, struct pc_channel *channel,
                                 const struct pc_vm_instruction *i);

#include "vm/interpreter.h"

static inline bool pc__wait_here(struct pc_call *call, struct pc_channel *channel,
                                 const struct pc_vm_instruction *i)
{
    return pc__passes(call, i, &channel->line, &channel->want);
}

static inline bool pc__waits(const struct pc_vm_instruction *i)
{
    return i->step >= PC_STEP_WAIT_CREDIT && i->step <= PC_STEP_WAIT_DONE;
}

/* The rank that raises the count of a WAIT; not for WAIT_LOCAL. */
static inline uint32_t pc__awaited(const struct pc_vm_instruction *i)
{
    return i->step == PC_STEP_WAIT_DONE ? i->at.token->peer : i->at.fifo->peer;
}
#endif
