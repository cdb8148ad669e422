/* A kernel: what each thread of a block runs. C++ (SIMT and CUDA); the target's header and
 * span.h come first.
 *
 * Between two barriers the threads of a block are independent. Who does what:
 *   the leader (thread 0)  waits, raises counts, and everything else that is done once
 *   the first warp         finds the operands' addresses, which depend on counts
 *   all threads            move the data, after a barrier behind those addresses
 * That barrier is in pc__move and separates any two REDUCE_COPYs; the others, before a count is
 * raised, are flags on instructions that the image's builder sets (barriers.c).
 *
 * A thread that cannot go on is `dead`. All threads learn that at the next barrier, and the call is
 * over. */
#ifndef PC_KERNEL_H
#define PC_KERNEL_H
#include "gpu/device.h"
#include "vm/steps.h"

/* Bytes of a package that are kept in shared memory. What is longer is read where it lies: Programs
 * of some algorithms from 20 ranks on. */
#if !defined(PC_PACKAGE_ROOM)
#define PC_PACKAGE_ROOM 12288u
#endif

/* The shared memory of a block: the call, copied from the image, so that no thread needs registers
 * for it; its package; and two tables of operands, used in turn. No thread is still reading the
 * table before last, as there was a barrier since. */
struct pc_shared {
    alignas(16) char room[PC_PACKAGE_ROOM];
    struct pc_block_image block;
    struct pc_fifo *fifos; /* the package's */
    struct pc_fifo *const *homes;
    const struct pc_device_image *image;
    char *in;
    char *out;
    uint64_t deadline;
    uint64_t salt;
    uint64_t launches; /* of this block before this one */
    uint32_t number;   /* of this block in the launch */
    uint32_t in_segment;
    uint32_t out_segment;
    uint32_t proxied;   /* of the launch, whose address takes registers as long as it is used */
    uint32_t in_place;  /* the package has no room here */
    uint64_t multicast; /* from this rank's heap to the multicast address; 0: not in this call */
    void *address[2][PC_MAX_OPERANDS];
    uint32_t flag[2][PC_MAX_OPERANDS]; /* of operands in LL packets */
};

#define PC_SPINS_PER_LOOK 64u /* the abort word is in host memory: read it seldom */
#define PC_LOOKS 16u          /* in a row, for what may only be late: a millisecond or so */

template <class F> struct pc_call {
    const struct pc_terms *terms; /* shared->block.terms */
    struct pc_shared *shared;
    uint32_t turn;
    uint32_t running;
    bool dead; /* this thread cannot go on */
    bool over; /* all threads know that the call is over */
#if defined(PC_PACE)
    uint64_t link_free; /* see pace.h */
#endif
};

#define PC_ROUTINE template <class F> PC_DEVICE_FN
#define PC_CALL struct pc_call<F>

typedef pc_tile pc_skip;

PC_ROUTINE pc_skip pc__skip(const PC_CALL *, pc_tile tile)
{
    return tile;
}

PC_ROUTINE uint64_t pc__skipped(const PC_CALL *call, pc_skip skip)
{
    return (uint64_t)skip * call->terms->tile;
}

/* Gives up. The first block of this rank writes the reason; the others only stop. */
PC_ROUTINE void pc__give_up(PC_CALL *call, const struct pc_vm_instruction *i, int code,
                            uint32_t peer, uint64_t want, uint64_t got)
{
    struct pc_device_error *error = &call->shared->image->control->error;
    bool first = false;
    call->dead = true;
    PC_ROLLED
    for (uint32_t b = 0; b < PC_MAX_BLOCKS;
         b++) /* the first is the one that claims the last block's state */
        first = pc__claim(&call->shared->image->states[b].dead, 1);
    if (!first)
        return;
    error->claimed = 1 + call->shared->number;
    error->block = call->shared->number;
    error->instruction = i ? (uint32_t)(i - call->terms->code) : PC_IN_READY;
    error->peer = peer;
    error->slot = want - 1;
    error->want = want;
    error->got = got;
    pc__store_release(&error->code, (uint64_t)-code);
}

/* Whether a thread may wait on: PC_OK. PC_BROKEN: another block has given the reason. */
PC_ROUTINE int pc__verdict(const PC_CALL *call)
{
    if (pc__load_relaxed32(&call->shared->block.state->dead))
        return PC_BROKEN;
    if (pc__load_relaxed32(&call->shared->image->control->abort))
        return PC_ABORTED;
    return pc__clock_ns() >= call->shared->deadline ? PC_TIMEDOUT : PC_OK;
}

/* Called after every poll in vain, which `spins` counts; true when waiting has no use any more. */
PC_ROUTINE bool pc__hopeless(PC_CALL *call, uint32_t *spins, const struct pc_vm_instruction *i,
                             uint32_t peer, uint64_t want, uint64_t got)
{
    if (++*spins % PC_SPINS_PER_LOOK != 0)
        return false;
    int code = pc__verdict(call);
    if (code == PC_OK)
        return false;
    call->dead = true;
    if (code != PC_BROKEN)
        pc__give_up(call, i, code, peer, want, got);
    return true;
}

PC_ROUTINE bool pc__leads(const PC_CALL *call)
{
    return pc__thread() == 0 && !call->dead;
}

PC_ROUTINE void pc__leave_multicast(const PC_CALL *call);

PC_ROUTINE bool pc__meet(PC_CALL *call, const struct pc_vm_instruction *i)
{
    if (i->flags & PC_FLAG_SYNC) {
        call->over = pc__barrier(call->shared, call->dead);
        pc__leave_multicast(call);
    }
    return !call->over;
}

PC_ROUTINE bool pc__over(const PC_CALL *call)
{
    return call->over;
}

/* ---- counts ---------------------------------------------------------------------------------- */

PC_DEVICE_FN uint64_t pc__count(const struct pc_line *line)
{
    return pc__load_acquire(&line->count);
}

PC_DEVICE_FN uint64_t pc__count_local(const struct pc_token *token)
{
    return pc__load_acquire_local(&token->sent);
}

PC_DEVICE_FN void pc__signal_local(struct pc_token *token, uint64_t count)
{
    pc__store_release_local(&token->sent, count);
}

/* Before the fence, for all messages that it stands before. A line is free once its message has
 * credit, which was waited for before the message's data was stored. */
PC_ROUTINE void pc__sign(const PC_CALL *call, const struct pc_vm_instruction *i, struct pc_line *)
{
    bool covered = i->flags & PC_FLAG_FENCE;
    PC_ROLLED
    while (covered) {
        if (i->step == PC_STEP_FILL) {
            struct pc_fifo *f = i->at.fifo;
            f->out_lines[f->sent & (PC_LINES - 1)].signature = call->terms->signature;
        }
        i++;
        covered = !(i->flags & PC_FLAG_FENCE) && i->step != PC_STEP_REDUCE_COPY
                  && i->step != PC_STEP_END_LOOP && i->step != PC_STEP_END;
    }
}

PC_ROUTINE void pc__publish(PC_CALL *call, const struct pc_vm_instruction *i, struct pc_line *line,
                            uint64_t count, uint32_t)
{
    if (i->flags & PC_FLAG_FENCE)
        pc__fence(call->shared);
    pc__store_published(call->shared, &line->count, count);
}

PC_ROUTINE void pc__acknowledge(PC_CALL *call, struct pc_line *line, uint64_t count, uint32_t)
{
    pc__store_acknowledged(call->shared, &line->count, count);
}

#include "gpu/kernel/packets.h"

/* ---- remote peers: the proxy does it ------------------------------------------------------------
 */

PC_ROUTINE int pc__put(PC_CALL *call, const struct pc_channel *channel,
                       const struct pc_vm_instruction *i)
{
    const struct pc_block_image *block = &call->shared->block;
    struct pc_block_state *state = block->state;
    bool message = i->step == PC_STEP_PUT_MESSAGE;
    struct pc_fifo *f = message ? i->at.operands->fifo : i->at.fifo;
    uint64_t n = state->head;
    uint32_t spins = 0;
    while (n - state->tail >= PC_PROXY_FIFO_ENTRIES) {
        state->tail = pc__load_acquire(block->tail);
        if (n - state->tail < PC_PROXY_FIFO_ENTRIES)
            break;
        if (pc__hopeless(call, &spins, i, f->peer, n - PC_PROXY_FIFO_ENTRIES + 1, state->tail))
            return PC_OK;
        pc__relax();
    }
    uint64_t entry = (uint64_t)!(n / PC_PROXY_FIFO_ENTRIES & 1) << 63
                     | (uint64_t)call->shared->image->plan << 48
                     | (uint64_t)(i - call->terms->code) << 24 | channel->tile;
    state->head = n + 1;
    if (message) /* the proxy runs later, and knows the plan but not the launch */
        f->out_lines[f->sent++ & (PC_LINES - 1)].signature = call->terms->signature;
    else
        f->received++;
    pc__store_release(&block->ring[n & (PC_PROXY_FIFO_ENTRIES - 1)], entry);
    return PC_OK;
}

/* ---- the direct form --------------------------------------------------------------------------
 */

PC_ROUTINE struct pc_arrays *pc__arrays(const PC_CALL *call, uint32_t peer)
{
    const struct pc_shared *shared = call->shared;
    return &shared->image->arrays[shared->number * shared->image->size + peer];
}

PC_ROUTINE char *pc__peer_in(const PC_CALL *call, uint32_t peer)
{
    return pc__arrays(call, peer)->in;
}

PC_ROUTINE char *pc__peer_out(const PC_CALL *call, uint32_t peer)
{
    return pc__arrays(call, peer)->out;
}

/* Where an array lies in a segment of this rank, as pc_where has it; 0 when it is not there. A
 * missing array (NULL) does not prevent the direct form. */
PC_DEVICE_FN uint64_t pc__registered(const struct pc_device_image *image, const char *message,
                                     uint32_t segment, uint32_t first, uint32_t count,
                                     uint64_t nbytes)
{
    if (count == 0)
        return 1;
    const struct pc_segment *s = &image->ipc_peers[image->rank].segments[segment];
    const uint64_t at = pc__load_acquire(&s->at), array = (uintptr_t)message + image->starts[first];
    const uint64_t room = s->nbytes; /* written before `at` */
    if (at == 0 || array < at || nbytes > room || array - at > room - nbytes)
        return 0;
    return (uint64_t)segment << PC_SEGMENT_SHIFT | (array - at + 1);
}

/* Where a peer's message would begin if its array held it all; NULL: out of range, or no array. */
PC_DEVICE_FN char *pc__message_of(const struct pc_device_image *image, uint32_t peer,
                                  uint64_t local, uint32_t first, uint32_t count)
{
    const uint32_t segment = (uint32_t)(local >> PC_SEGMENT_SHIFT);
    if (local == 0 || segment >= PC_SEGMENTS || first > image->nparts
        || count > image->nparts - first)
        return NULL;
    const struct pc_segment *s = &image->ipc_peers[peer].segments[segment];
    const uint64_t offset = (local & ((1ull << PC_SEGMENT_SHIFT) - 1)) - 1, room = s->nbytes;
    uint64_t at = count ? image->starts[first] : 0;
    uint64_t nbytes = count ? image->starts[first + count] - at : 0;
    if (s->at == 0 || nbytes > room || offset > room - nbytes)
        return NULL;
    return (char *)(uintptr_t)(s->at + offset - at);
}

PC_ROUTINE uint64_t pc__ready_signature(const PC_CALL *call)
{
    return call->shared->image->signature ^ call->shared->salt;
}

/* Sends READY to a peer. */
PC_ROUTINE void pc__tell_ready(const PC_CALL *call, uint32_t peer, uint64_t n,
                               const struct pc_where *mine)
{
    struct pc_line *line = &call->shared->image->ipc_peers[peer].out[n & 1];
    line->signature = pc__ready_signature(call);
    *(struct pc_where *)line->bytes = *mine;
    pc__store_release(&line->count, n);
}

/* Whether a peer has sent a message to this rank's first block, as in a call that has no direct
 * form: in one that has, its first block would have sent READY before. */
PC_ROUTINE bool pc__came_staged(const PC_CALL *call, uint32_t peer)
{
    const struct pc_device_image *image = call->shared->image;
    const struct pc_fifo *f = &image->fifos[peer * PC_MAX_BLOCKS + call->shared->number];
    return pc__came_in_slot(f) || pc__came_in_packets(f, image->slots);
}

/* Waits for a peer's READY: false when the direct form cannot run. */
PC_ROUTINE bool pc__hear_ready(PC_CALL *call, uint32_t peer, uint64_t n)
{
    const struct pc_device_image *image = call->shared->image;
    struct pc_line *line = &image->ipc_peers[peer].in[n & 1];
    uint32_t spins = 0, looks = 0;
    for (;;) {
        uint64_t count = pc__count(line);
        if (count >= n)
            break;
        if (pc__hopeless(call, &spins, (const struct pc_vm_instruction *)NULL, peer, n, count))
            return false;
        /* Seen so often, it is no READY that is only late. */
        if (call->shared->number == 0 && spins % PC_SPINS_PER_LOOK == 0
            && pc__came_staged(call, peer) && pc__count(line) < n && ++looks == PC_LOOKS) {
            pc__give_up(call, (const struct pc_vm_instruction *)NULL, PC_MISMATCH, peer, n, n);
            return false;
        }
        pc__relax();
    }
    if (line->signature != pc__ready_signature(call)) {
        pc__give_up(call, (const struct pc_vm_instruction *)NULL, PC_MISMATCH, peer, n, n);
        return false;
    }
    const struct pc_where theirs = *(const struct pc_where *)line->bytes;
    if (peer == image->rank) /* its table may be another by now */
        return theirs.in && theirs.out;
    struct pc_arrays *arrays = pc__arrays(call, peer);
    arrays->in = pc__message_of(image, peer, theirs.in, theirs.in_first, theirs.in_count);
    arrays->out = pc__message_of(image, peer, theirs.out, theirs.out_first, theirs.out_count);
    return arrays->in && arrays->out;
}

/* Run by the first warp of the first block: tells all ranks, this one too, where this one's arrays
 * lie. One thread finds out, as the table may change meanwhile. */
PC_ROUTINE void pc__tell_all(const PC_CALL *call, uint64_t n)
{
    struct pc_shared *shared = call->shared;
    const struct pc_device_image *image = shared->image;
    struct pc_where *mine = (struct pc_where *)shared->room; /* no package is there yet */
    if (pc__thread() == 0) {
        struct pc_where w = image->mine;
        w.in = pc__registered(image, shared->in, shared->in_segment, w.in_first, w.in_count, w.in);
        w.out = pc__registered(image, shared->out, shared->out_segment, w.out_first, w.out_count,
                               w.out);
        *mine = w;
    }
    pc__warp_barrier(shared);
    PC_ROLLED
    for (uint32_t p = pc__thread(); p < image->size; p += PC_WARP)
        pc__tell_ready(call, p, n, mine);
}

/* Run by the first warp: whether this thread saw an array that a rank's peers do not reach. All
 * ranks, and all their blocks, come to the same answer, as they hear the same. */
PC_ROUTINE bool pc__astray(PC_CALL *call)
{
    struct pc_shared *shared = call->shared;
    const struct pc_device_image *image = shared->image;
    struct pc_block_state *state = &image->states[shared->number];
    uint64_t n = state->ready + 1;
    bool direct = true;
    /* All are told before any is waited for: who waits in vain then waits for a rank that is not
     * there, not for one that waits itself. */
    if (shared->number == 0)
        pc__tell_all(call, n);
    PC_ROLLED
    for (uint32_t p = pc__thread(); p < image->size; p += PC_WARP)
        if (!pc__hear_ready(call, p, n))
            direct = false;
    pc__warp_barrier(shared);
    if (pc__thread() == 0) {
        state->ready = n;
        PC_ROLLED
        for (uint32_t b = shared->number ? PC_MAX_BLOCKS : image->nblocks; b < PC_MAX_BLOCKS; b++)
            image->states[b].ready = n; /* blocks that are not part of this launch keep count */
    }
    return !direct;
}

/* ---- data ------------------------------------------------------------------------------------ */

PC_ROUTINE char *pc__in(const PC_CALL *call)
{
    return call->shared->in;
}

PC_ROUTINE char *pc__out(const PC_CALL *call)
{
    return call->shared->out;
}

/* A communicator of GPUs has no small messages: its memory is pinned. */
PC_ROUTINE uint32_t pc__small_bytes(const PC_CALL *, const struct pc_fifo *)
{
    return 0;
}

PC_ROUTINE uint32_t pc__depth(const PC_CALL *call, const struct pc_fifo *)
{
    return call->terms->depth;
}

#include "vm/operands.h"

#include "gpu/kernel/multimem.h"

struct pc_store_mode {};

PC_ROUTINE void pc__store_mode(const PC_CALL *, const struct pc_vm_instruction *, pc_size,
                               struct pc_store_mode *)
{
}

PC_DEVICE_FN void pc__store_mode_end(const struct pc_vm_instruction *, pc_size,
                                     const struct pc_store_mode *)
{
}

/* Finds the addresses of an instruction's operands, in the table that is next in turn; false: the
 * call is over. */
PC_ROUTINE bool pc__find(PC_CALL *call, const struct pc_vm_instruction *i, uint32_t piece,
                         pc_skip skip, pc_size packed, pc_size total, uint32_t packets)
{
    uint32_t n = (uint32_t)i->nsrc + i->ndst, turn = call->turn ^= 1;
    void **address = call->shared->address[turn];
    uint32_t *flag = call->shared->flag[turn];
    if (pc__thread() < PC_WARP) {
        pc__warp_barrier(call->shared); /* after the leader has raised counts */
        PC_ROLLED
        for (uint32_t j = pc__thread(); j < n; j += PC_WARP) {
            const struct pc_vm_operand *p = &i->at.operands[j];
            address[j] = pc__address(call, p, piece, skip, packed, total);
            if (packets >> j & 1)
                flag[j] = pc__flag_of(p->receiving ? p->fifo->received : p->fifo->sent);
        }
    }
    call->over = pc__barrier(call->shared, call->dead);
    return !call->over;
}

PC_ROUTINE uint32_t pc__divisor(const PC_CALL *call, const struct pc_vm_instruction *i)
{
    return i->flags & PC_FLAG_SCALE ? call->terms->divisor : 0;
}

#include "gpu/kernel/pace.h"

PC_ROUTINE void pc__move(PC_CALL *call, const struct pc_vm_instruction *i, uint32_t piece,
                         pc_skip skip, pc_size packed, pc_size total, pc_size nbytes,
                         const struct pc_store_mode *)
{
    if (call->over || pc__done_for_all(call, i, piece, skip, nbytes)
        || !pc__find(call, i, piece, skip, packed, total, 0))
        return;
    void **address = call->shared->address[call->turn];
    const uint32_t divisor = pc__divisor(call, i);
    if (pc__move_of_all(call, i, piece, skip, address, nbytes, divisor))
        return;
    pc__span_gpu<F>(address + i->nsrc, i->ndst, (const void *const *)address, i->nsrc, nbytes,
                    divisor);
    pc__pace(call, i, nbytes);
}

PC_ROUTINE bool pc__by_ll(const PC_CALL *call, const struct pc_vm_instruction *i)
{
    return call->terms->packets && (i->target & PC_SLOTS) != 0;
}

/* What a REDUCE_COPY moves, for pc__span_ll. */
template <class F> struct pc_ll_move {
    PC_CALL *call;
    const struct pc_vm_instruction *i;
    pc_skip skip;
    uint32_t spins;

    PC_DEVICE_MEMBER uint32_t nsrc() const
    {
        return i->nsrc;
    }

    PC_DEVICE_MEMBER uint32_t ndst() const
    {
        return i->ndst;
    }

    PC_DEVICE_MEMBER uint32_t divisor() const
    {
        return pc__divisor(call, i);
    }

    PC_DEVICE_MEMBER bool packets(uint32_t operand) const
    {
        return i->target >> operand & 1;
    }

    PC_DEVICE_MEMBER uint32_t flag(uint32_t operand) const
    {
        return call->shared->flag[call->turn][operand];
    }

    PC_DEVICE_MEMBER void *address(uint32_t operand) const
    {
        return call->shared->address[call->turn][operand];
    }

    PC_DEVICE_MEMBER uint32_t seal() const
    {
        return pc__seal(call);
    }

    PC_DEVICE_MEMBER uint32_t plain() const
    {
        return i->target >> PC_PLAIN_BIT;
    }

    PC_DEVICE_MEMBER uint32_t count() const
    {
        return i->at.operands->nchunks;
    }

    PC_DEVICE_MEMBER uint32_t nbytes(uint32_t piece) const
    {
        return pc__tile_bytes(call, skip, i->at.operands->chunk + piece);
    }

    PC_DEVICE_MEMBER uint64_t offset(uint32_t operand, uint32_t piece) const
    {
        const struct pc_vm_operand *p = &i->at.operands[operand];
        if (piece == 0)
            return 0;
        if (p->space == PC_SPACE_SCRATCH)
            return (uint64_t)piece * call->terms->tile;
        const struct pc_chunk *first = &call->terms->chunks[p->place];
        return first[piece].at - first->at;
    }

    /* It gives up when the message belongs to another call, which never sends what is missing. */
    PC_DEVICE_MEMBER bool poll(uint32_t operand)
    {
        if (++spins % PC_SPINS_PER_LOOK != 0)
            return false;
        return pc__foreign(call, i->at.operands[operand].fifo) || pc__verdict(call) != PC_OK;
    }
};

PC_ROUTINE void pc__move_ll(PC_CALL *call, const struct pc_vm_instruction *i, pc_tile tile)
{
    struct pc_ll_move<F> move = {call, i, pc__skip(call, tile), 0};
    if (call->over || !pc__find(call, i, 0, move.skip, 0, 0, i->target & PC_SLOTS))
        return;
    const uint32_t missing = pc__span_ll<F>(move);
    if (missing)
        pc__gave_up(call, i, missing - 1);
    pc__pace_ll(move);
}

/* ---- waiting --------------------------------------------------------------------------------- */

PC_DEVICE_FN uint64_t pc__signature(const struct pc_channel *, const struct pc_vm_instruction *i)
{
    const struct pc_fifo *f = i->at.fifo;
    return f->in_lines[f->received & (PC_LINES - 1)].signature;
}

PC_ROUTINE int pc__mismatch(PC_CALL *call, const struct pc_channel *,
                            const struct pc_vm_instruction *i)
{
    const struct pc_fifo *f = i->at.fifo;
    pc__give_up(call, i, PC_MISMATCH, f->peer, f->received + 1, f->received + 1);
    return PC_OK; /* the other threads learn it at a barrier */
}

PC_ROUTINE bool pc__wait_here(PC_CALL *call, const struct pc_channel *,
                              const struct pc_vm_instruction *i);

#include "vm/interpreter.h"

PC_ROUTINE bool pc__wait_here(PC_CALL *call, const struct pc_channel *,
                              const struct pc_vm_instruction *i)
{
    struct pc_line *line;
    uint64_t want;
    uint32_t spins = 0;
    if (!pc__leads(call) || (i->step == PC_STEP_WAIT_MESSAGE && call->terms->packets))
        return true;
    while (!pc__passes(call, i, &line, &want)) {
        bool local = i->step == PC_STEP_WAIT_LOCAL, done = i->step == PC_STEP_WAIT_DONE;
        uint32_t peer = local ? PC_NOBODY : done ? i->at.token->peer : i->at.fifo->peer;
        uint64_t got = local ? pc__count_local(i->at.token) : pc__count(line);
        if (pc__hopeless(call, &spins, i, peer, want, got))
            break;
        if (i->step == PC_STEP_WAIT_MESSAGE && spins % PC_SPINS_PER_LOOK == 0
            && pc__came_in_packets(i->at.fifo, call->terms->slots)) {
            pc__give_up(call, i, PC_MISMATCH, peer, want, want);
            break;
        }
        pc__relax();
    }
    return true;
}

#include "gpu/kernel/block.h"
#endif
