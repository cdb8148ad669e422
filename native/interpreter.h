/* The interpreter: control flow, addressing and synchronisation of a Program.
 *
 * It is a header so that each target compiles it with its own counts and element loop; nothing
 * here is atomic or knows how memory is moved. */
#ifndef PC_INTERPRETER_H
#define PC_INTERPRETER_H
#include "target_cpu.h"

#define PC_FLAG_PIECEWISE 0x80 /* set by the loader: a range of SCRATCH is not one span */
#define PC_MAX_OPERANDS (PC_MAX_SOURCES + PC_MAX_DESTINATIONS)

/* Whether a WAIT would pass now; if not, which count it needs to reach what. */
static inline bool pc__passes(struct pc_call *call, const struct pc_code_line *i,
                              struct pc_line **line, uint64_t *want)
{
    switch ((enum pc_step)i->step) {
    case PC_STEP_WAIT_CREDIT: {
        struct pc_fifo *f = i->at.fifo;
        uint32_t depth = call->plan->depth;
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
        return i->at.token->sent >= *want;
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

static inline bool pc__waits(const struct pc_code_line *i)
{
    return i->step >= PC_STEP_WAIT_CREDIT && i->step <= PC_STEP_WAIT_DONE;
}

/* The rank that raises the count of a WAIT; not of WAIT_LOCAL. */
static inline uint32_t pc__awaited(const struct pc_code_line *i)
{
    return i->step == PC_STEP_WAIT_DONE ? i->at.token->peer : i->at.fifo->peer;
}

/* Where the bytes of an operand begin. `skip` is what earlier tiles held of the chunk, `packed` the
 * offset in a slot; a slot of at most PC_INLINE_BYTES in all lies in its count's line. */
static inline char *pc__address(struct pc_call *call, const struct pc_place *p, uint32_t piece,
                                uint64_t skip, uint64_t packed, uint64_t total)
{
    const struct pc_layout *layout = &call->comm->layout;
    uint32_t place = p->place + piece;
    switch ((enum pc_space)p->space) {
    case PC_SPACE_IN:
        return call->in + call->chunks[place].at + skip;
    case PC_SPACE_OUT:
        return call->out + call->chunks[place].at + skip;
    case PC_SPACE_SCRATCH:
        return call->plan->scratch + (uint64_t)place * call->plan->spec.tile;
    case PC_SPACE_PEER_IN:
        return (char *)call->comm->peers[p->peer].in + call->chunks[place].at + skip;
    case PC_SPACE_PEER_OUT:
        return call->comm->peers[p->peer].out + call->chunks[place].at + skip;
    case PC_SPACE_SLOT:
        break;
    }
    struct pc_fifo *f = p->fifo;
    uint64_t n = p->receiving ? f->received : f->sent;
    if (total <= PC_INLINE_BYTES)
        return (char *)(p->receiving ? f->in_lines : f->out_lines)[n & (PC_LINES - 1)].bytes
               + packed;
    return (p->receiving ? f->in_data : f->out_data)
           + (n & (layout->slots - 1)) * layout->slot_bytes + packed;
}

/* How many bytes of chunk c belong to the tile that begins `skip` bytes into every chunk. */
static inline uint64_t pc__piece(const struct pc_call *call, uint64_t skip, uint32_t c)
{
    uint64_t size = call->plan->spec.tile, nbytes = call->chunks[c].nbytes;
    if (skip >= nbytes)
        return 0;
    return nbytes - skip < size ? nbytes - skip : size;
}

/* The bytes of a range in the present tile: as long as a message of it is. */
static inline uint64_t pc__message_bytes(const struct pc_call *call, uint64_t tile,
                                         const struct pc_place *p)
{
    uint64_t skip = tile * call->plan->spec.tile, total = 0;
    for (uint32_t k = 0; k < p->nchunks; k++)
        total += pc__piece(call, skip, p->chunk + k);
    return total;
}

static inline void pc__reduce_copy(struct pc_call *call, const struct pc_channel *channel,
                                   const struct pc_code_line *i)
{
    const struct pc_place *places = i->at.places;
    uint32_t n = (uint32_t)i->nsrc + i->ndst, first = places[0].chunk, width = places[0].nchunks;
    uint64_t skip = channel->tile * call->plan->spec.tile, total = 0;
    void *address[PC_MAX_OPERANDS];
    if (call->spans && !(i->flags & PC_FLAG_PIECEWISE)) {
        const struct pc_chunk *last = &call->chunks[first + width - 1];
        total = last->at + last->nbytes - call->chunks[first].at;
        width = 1;
    } else {
        for (uint32_t k = 0; k < width; k++)
            total += pc__piece(call, skip, first + k);
    }
    if (total == 0)
        return;
    /* In place the lines are in the cache anyway. */
    bool direct = call->program->flags & PC_PROGRAM_DIRECT;
    bool stream_out = (call->plan->spec.stream >> direct & 1) && call->in != call->out;
    bool stream_slot;
    uint64_t ticks = 0, packed = 0, nbytes = total;
    enum pc_form form = pc__probe_begin(i->probe, total, &stream_slot, &ticks);
    uint32_t stream = 0;
    if (stream_out || stream_slot)
        for (uint32_t k = 0; k < i->ndst; k++) {
            enum pc_space space = places[i->nsrc + k].space;
            bool slot = space == PC_SPACE_SLOT, own = space == PC_SPACE_SCRATCH;
            stream |= (uint32_t)(slot ? stream_slot : stream_out && !own) << k;
        }
    for (uint32_t k = 0; k < width; k++) {
        if (width > 1)
            nbytes = pc__piece(call, skip, first + k);
        if (nbytes == 0)
            continue;
        for (uint32_t j = 0; j < n; j++)
            address[j] = pc__address(call, &places[j], k, skip, packed, total);
        pc__span(call->plan, address + i->nsrc, i->ndst, (const void *const *)address, i->nsrc,
                 nbytes, i->flags, stream);
        packed += nbytes;
    }
    pc__probe_end(i->probe, form, total, ticks);
}

/* Runs a channel until it waits, has finished a tile, or is done. Returns 1 when it moved, 0 when
 * it still waits, or a code. */
static inline int pc__step(struct pc_call *call, struct pc_channel *channel)
{
    const struct pc_code_line *i = channel->pc, *code = call->program->code;
    const struct pc_code_line *from = i;
    for (;; i++) {
        switch ((enum pc_step)i->step) {
        case PC_STEP_REDUCE_COPY:
            pc__reduce_copy(call, channel, i);
            break;
        case PC_STEP_FILL: {
            struct pc_fifo *f = i->at.fifo;
            struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
            line->signature = call->plan->spec.signature;
            if (pc__raise(line, ++f->sent))
                pc__ring(call->comm, f->peer);
            break;
        }
        case PC_STEP_CONSUME: {
            struct pc_fifo *f = i->at.fifo;
            if (pc__raise(f->in_credit, ++f->received))
                pc__ring(call->comm, f->peer);
            break;
        }
        case PC_STEP_PUT_MESSAGE: {
            struct pc_fifo *f = i->at.places->fifo;
            uint64_t nbytes = pc__message_bytes(call, channel->tile, i->at.places);
            const char *data = pc__address(call, i->at.places, 0, 0, 0, nbytes);
            f->out_lines[f->sent & (PC_LINES - 1)].signature = call->plan->spec.signature;
            int rc = pc__put_message(call, f, data, nbytes);
            if (rc != PC_OK) {
                channel->pc = i;
                return rc;
            }
            break;
        }
        case PC_STEP_PUT_CREDIT:
            pc__put_credit(call, i->at.fifo, ++i->at.fifo->received);
            break;
        case PC_STEP_SIGNAL_LOCAL:
            i->at.token->sent++;
            break;
        case PC_STEP_SIGNAL_DONE:
            if (pc__raise(i->at.token->out, ++i->at.token->sent))
                pc__ring(call->comm, i->at.token->peer);
            break;
        case PC_STEP_WAIT_CREDIT:
        case PC_STEP_WAIT_MESSAGE:
        case PC_STEP_WAIT_LOCAL:
        case PC_STEP_WAIT_DONE:
            if (!pc__passes(call, i, &channel->line, &channel->want)) {
                channel->pc = i;
                return i != from;
            }
            if (i->step == PC_STEP_WAIT_MESSAGE
                && channel->line->signature != call->plan->spec.signature) {
                channel->pc = i;
                return pc__fail(&call->error, PC_MISMATCH, (int)i->at.fifo->peer,
                                "message %llu from rank %u belongs to another call",
                                (unsigned long long)i->at.fifo->received, i->at.fifo->peer);
            }
            if (i->step == PC_STEP_WAIT_LOCAL || i->step == PC_STEP_WAIT_DONE)
                i->at.token->received++;
            break;
        case PC_STEP_LOOP:
            break;
        case PC_STEP_END_LOOP:
            if (++channel->tile < call->ntiles) {
                i = code + i->target;
                if (call->program->nchannels > 1) { /* tile by tile, so that channels overlap */
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
