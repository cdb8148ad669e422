/* The loader of programs: checks every instruction against its regions once, so that the
 * interpreter need not.
 *
 * A loaded program may be wrong (that is the verifier's task), but it cannot leave its buffers, run
 * off its end or name a peer that is not there. */
#include <stdlib.h>
#include <string.h>
#include "core/internal.h"
#include "core/probe.h"

#define PC_MAX_RECORDS (1u << 24)

struct blob {
    struct pc_comm *comm;
    uint32_t root;
    uint32_t destinations; /* of a REDUCE_COPY, at most */
    struct pc_header header;
    const unsigned char *starts, *edges, *instructions, *operands;
};

#define BAD(b, ...) pc__fail(&(b)->comm->error, PC_INVALID, -1, "program: " __VA_ARGS__)

static struct pc_edge edge_at(const struct blob *b, uint32_t i)
{
    struct pc_edge e;
    memcpy(&e, b->edges + (size_t)i * sizeof e, sizeof e);
    return e;
}

static struct pc_instruction instruction_at(const struct blob *b, uint32_t i)
{
    struct pc_instruction e;
    memcpy(&e, b->instructions + (size_t)i * sizeof e, sizeof e);
    return e;
}

static struct pc_operand operand_at(const struct blob *b, uint32_t i)
{
    struct pc_operand o;
    memcpy(&o, b->operands + (size_t)i * sizeof o, sizeof o);
    return o;
}

/* Programs of rooted collectives are written for root 0: rotates a rank number. */
static uint32_t real_rank(const struct blob *b, uint32_t rank)
{
    return (uint32_t)(((uint64_t)rank + b->root) % b->header.size);
}

static int open_blob(struct blob *b, const unsigned char *bytes, size_t nbytes)
{
    struct pc_header *h = &b->header;
    if (nbytes < sizeof *h)
        return BAD(b, "%zu bytes, want at least %zu", nbytes, sizeof *h);
    memcpy(h, bytes, sizeof *h);
    if (h->magic != PC_MAGIC || h->version != PC_VERSION)
        return BAD(b, "magic %#x version %u, want %#x version %u", h->magic, h->version, PC_MAGIC,
                   PC_VERSION);
    const struct pc_options *o = &b->comm->options;
    if (h->size != o->size || b->root >= o->size || h->rank >= o->size
        || real_rank(b, h->rank) != o->rank)
        return BAD(b, "for rank %u of %u with root %u, this is rank %u of %u", h->rank, h->size,
                   b->root, o->rank, o->size);
    if (h->nchannels == 0 || h->nchannels > PC_MAX_CHANNELS || h->nedges > PC_MAX_RECORDS
        || h->ninstructions > PC_MAX_RECORDS || h->noperands > PC_MAX_RECORDS || h->nchunks == 0
        || h->nchunks > PC_MAX_RECORDS || h->nscratch > PC_MAX_RECORDS || h->widest > h->nchunks
        || (h->flags & ~(uint32_t)PC_PROGRAM_DIRECT))
        return BAD(b,
                   "%u channels, %u edges, %u instructions, %u operands, %u chunks: out of range",
                   h->nchannels, h->nedges, h->ninstructions, h->noperands, h->nchunks);
    size_t want = sizeof *h;
    b->starts = bytes + want;
    want += (size_t)h->nchannels * sizeof(uint32_t);
    b->edges = bytes + want;
    want += (size_t)h->nedges * sizeof(struct pc_edge);
    b->instructions = bytes + want;
    want += (size_t)h->ninstructions * sizeof(struct pc_instruction);
    b->operands = bytes + want;
    want += (size_t)h->noperands * sizeof(struct pc_operand);
    return nbytes == want ? PC_OK : BAD(b, "%zu bytes, want %zu by its header", nbytes, want);
}

static int check_edge(const struct blob *b, uint32_t i)
{
    struct pc_edge e = edge_at(b, i);
    uint32_t rank = b->header.rank;
    bool fits = e.peer < b->header.size && e.channel < PC_MAX_CHANNELS
                && e.direction <= PC_DIRECTION_RECV;
    if (e.kind == PC_EDGE_LOCAL)
        fits = fits && e.peer == rank && e.other < PC_MAX_CHANNELS;
    else
        fits = fits && e.kind <= PC_EDGE_DONE && e.peer != rank
               && pc__resolved(b->comm, real_rank(b, e.peer))
               && !(e.kind == PC_EDGE_DONE && !pc__mapped(b->comm, real_rank(b, e.peer)));
    return fits ? PC_OK
                : BAD(b, "edge %u: kind %u, peer %u, channel %u, direction %u", i, e.kind, e.peer,
                      e.channel, e.direction);
}

static int check_operand(const struct blob *b, uint32_t at, const struct pc_operand *o,
                         const struct pc_operand *first, bool destination)
{
    const struct pc_header *h = &b->header;
    bool fits = o->nchunks > 0 && o->nchunks <= h->nchunks && o->chunk <= h->nchunks - o->nchunks
                && o->chunk == first->chunk && o->nchunks == first->nchunks;
    bool placed = o->nchunks <= h->nchunks && o->place <= h->nchunks - o->nchunks;
    switch ((enum pc_space)o->space) { /* only the plan knows the extent of an array */
    case PC_SPACE_IN:
        fits = fits && placed && !destination;
        break;
    case PC_SPACE_OUT:
        fits = fits && placed;
        break;
    case PC_SPACE_SCRATCH:
        fits = fits && o->nchunks <= h->nscratch && o->place <= h->nscratch - o->nchunks;
        break;
    case PC_SPACE_SLOT: {
        fits = fits && o->edge < h->nedges && o->nchunks <= h->widest;
        struct pc_edge e = fits ? edge_at(b, o->edge) : (struct pc_edge){0};
        fits = fits && e.kind == PC_EDGE_DATA
               && e.direction == (destination ? PC_DIRECTION_SEND : PC_DIRECTION_RECV);
        break;
    }
    case PC_SPACE_PEER_IN:
    case PC_SPACE_PEER_OUT:
        fits = fits && placed && (h->flags & PC_PROGRAM_DIRECT) && o->edge < h->size
               && o->edge != h->rank && !(destination && o->space == PC_SPACE_PEER_IN);
        break;
    default:
        fits = false;
    }
    return fits ? PC_OK
                : BAD(b, "instruction %u: operand in space %u, edge %u, place %u, chunks %u + %u",
                      at, o->space, o->edge, o->place, o->chunk, o->nchunks);
}

/* A fold reads and writes element by element: a destination may be a source, not overlap one. */
static bool partly_overlap(const struct pc_operand *a, const struct pc_operand *b)
{
    return a->space == b->space && a->space <= PC_SPACE_SCRATCH && a->place != b->place
           && a->place < b->place + b->nchunks && b->place < a->place + a->nchunks;
}

/* Whether a value moves to another offset of the message: then in place, where IN and OUT are one
 * memory, it would overwrite what is still to be read. */
static bool turns(const struct blob *b, const struct pc_instruction *i)
{
    for (uint32_t k = 0; i->op == PC_OP_REDUCE_COPY && k < i->nsrc; k++)
        for (uint32_t j = i->nsrc; j < (uint32_t)i->nsrc + i->ndst; j++) {
            struct pc_operand from = operand_at(b, i->operand + k);
            struct pc_operand to = operand_at(b, i->operand + j);
            if (from.space == PC_SPACE_IN && to.space == PC_SPACE_OUT && from.place != to.place)
                return true;
        }
    return false;
}

static int check_reduce_copy(const struct blob *b, uint32_t at, const struct pc_instruction *i)
{
    uint32_t n = (uint32_t)i->nsrc + i->ndst;
    if (i->nsrc == 0 || i->nsrc > PC_MAX_SOURCES || i->ndst == 0 || i->ndst > b->destinations
        || i->operand > b->header.noperands || n > b->header.noperands - i->operand
        || (i->flags & ~(uint32_t)PC_FLAG_SCALE))
        return BAD(b, "instruction %u: %u sources, %u destinations, operand %u, flags %u", at,
                   i->nsrc, i->ndst, i->operand, i->flags);
    struct pc_operand first = operand_at(b, i->operand);
    for (uint32_t k = 0; k < n; k++) {
        struct pc_operand o = operand_at(b, i->operand + k);
        int rc = check_operand(b, at, &o, &first, k >= i->nsrc);
        if (rc != PC_OK)
            return rc;
        for (uint32_t j = i->nsrc; j < k + 1; j++) {
            struct pc_operand other = operand_at(b, i->operand + j);
            if (j != k && partly_overlap(&o, &other))
                return BAD(b, "instruction %u: operands overlap", at);
        }
        for (uint32_t j = 0; k >= i->nsrc && j < i->nsrc; j++) {
            struct pc_operand source = operand_at(b, i->operand + j);
            if (partly_overlap(&o, &source))
                return BAD(b, "instruction %u: operands overlap", at);
        }
    }
    return PC_OK;
}

/* Channel c is instructions [first, end): at most one LOOP, closed, and END as the last. No two
 * instructions share operands, which `lend` permutes: those before `*operand` are taken. */
static int check_channel(const struct blob *b, uint32_t first, uint32_t end, uint32_t *operand)
{
    uint32_t loop = UINT32_MAX;
    bool looped = false;
    for (uint32_t at = first; at < end; at++) {
        struct pc_instruction i = instruction_at(b, at);
        int rc = PC_OK;
        bool last = at + 1 == end;
        if ((i.op == PC_OP_END) != last)
            return BAD(b, "instruction %u: END must be the last of its channel, and only that", at);
        switch ((enum pc_opcode)i.op) {
        case PC_OP_REDUCE_COPY:
            rc = check_reduce_copy(b, at, &i);
            if (rc == PC_OK && i.operand < *operand)
                return BAD(b, "instruction %u: operand %u is of an earlier one, want %u or later",
                           at, i.operand, *operand);
            *operand = i.operand + i.nsrc + i.ndst;
            break;
        case PC_OP_SIGNAL:
        case PC_OP_WAIT: {
            if (i.edge >= b->header.nedges)
                return BAD(b, "instruction %u: edge %u of %u", at, i.edge, b->header.nedges);
            struct pc_edge e = edge_at(b, i.edge);
            bool sends = e.direction == PC_DIRECTION_SEND;
            if (e.kind != PC_EDGE_DATA && sends != (i.op == PC_OP_SIGNAL))
                return BAD(b, "instruction %u: the wrong end of a count", at);
            break;
        }
        case PC_OP_LOOP:
            if (looped)
                return BAD(b, "instruction %u: a second LOOP in its channel", at);
            loop = at;
            looped = true;
            break;
        case PC_OP_END_LOOP:
            if (loop == UINT32_MAX || i.target != loop)
                return BAD(b, "instruction %u: END_LOOP of %u, want its LOOP", at, i.target);
            loop = UINT32_MAX;
            break;
        case PC_OP_END:
            break;
        default:
            return BAD(b, "instruction %u: opcode %u", at, i.op);
        }
        if (rc != PC_OK)
            return rc;
    }
    return loop == UINT32_MAX ? PC_OK : BAD(b, "instruction %u: LOOP without END_LOOP", loop);
}

static uint32_t start_of(const struct blob *b, uint32_t channel)
{
    uint32_t start = b->header.ninstructions;
    if (channel < b->header.nchannels)
        memcpy(&start, b->starts + (size_t)channel * sizeof start, sizeof start);
    return start;
}

/* Also of an operand that no instruction names: a plan looks up the bytes of all of them. */
static int check_range(const struct blob *b, uint32_t i)
{
    struct pc_operand o = operand_at(b, i);
    uint32_t n = b->header.nchunks;
    bool message = o.space != PC_SPACE_SCRATCH && o.space != PC_SPACE_SLOT;
    if (o.space > UINT8_MAX || o.nchunks > n || o.chunk > n - o.nchunks
        || (message && o.place > n - o.nchunks))
        return BAD(b, "operand %u: space %u, place %u, chunks %u + %u of %u", i, o.space, o.place,
                   o.chunk, o.nchunks, n);
    return PC_OK;
}

static int check(const struct blob *b)
{
    int rc = PC_OK;
    for (uint32_t i = 0; i < b->header.noperands && rc == PC_OK; i++)
        rc = check_range(b, i);
    for (uint32_t i = 0; i < b->header.nedges && rc == PC_OK; i++)
        rc = check_edge(b, i);
    if (rc == PC_OK && start_of(b, 0) != 0)
        return BAD(b, "channel 0 starts at instruction %u", start_of(b, 0));
    uint32_t operand = 0;
    for (uint32_t c = 0; c < b->header.nchannels && rc == PC_OK; c++) {
        uint32_t first = start_of(b, c), end = start_of(b, c + 1);
        if (first >= end || end > b->header.ninstructions)
            return BAD(b, "channel %u is instructions %u to %u of %u", c, first, end,
                       b->header.ninstructions);
        rc = check_channel(b, first, end, &operand);
    }
    return rc;
}

static struct pc_fifo *fifo_of(const struct blob *b, const struct pc_edge *e)
{
    return &b->comm->fifos[(size_t)real_rank(b, e->peer) * PC_EDGE_CHANNELS + e->channel];
}

static void resolve_operands(const struct blob *b, struct pc_program *program)
{
    for (uint32_t k = 0; k < b->header.noperands; k++) {
        struct pc_operand o = operand_at(b, k);
        struct pc_vm_operand *p = &program->operands[k];
        *p = (struct pc_vm_operand){
            .space = (uint8_t)o.space, .place = o.place, .chunk = o.chunk, .nchunks = o.nchunks};
        if (o.space == PC_SPACE_SLOT && o.edge < b->header.nedges) {
            struct pc_edge e = edge_at(b, o.edge);
            p->fifo = fifo_of(b, &e);
            p->receiving = e.direction == PC_DIRECTION_RECV;
        } else if (o.space == PC_SPACE_PEER_IN || o.space == PC_SPACE_PEER_OUT) {
            p->peer = real_rank(b, o.edge);
        }
    }
}

/* The destination that last filled the slot before a SIGNAL: the length of its message. */
static const struct pc_vm_operand *filled(const struct blob *b, const struct pc_program *program,
                                          uint32_t at, const struct pc_fifo *fifo)
{
    for (; at-- > 0;) {
        struct pc_instruction i = instruction_at(b, at);
        if (i.op == PC_OP_END)
            break; /* an instruction of the channel before */
        for (uint32_t k = 0; i.op == PC_OP_REDUCE_COPY && k < i.ndst; k++) {
            const struct pc_vm_operand *p = &program->operands[i.operand + i.nsrc + k];
            if (p->space == PC_SPACE_SLOT && p->fifo == fifo)
                return p;
        }
    }
    return NULL;
}

/* Binds a signal to the edge of a remote peer. */
static void put(const struct blob *b, const struct pc_program *program, uint32_t at,
                struct pc_vm_instruction *line)
{
    if (line->step == PC_STEP_CONSUME) {
        line->step = PC_STEP_PUT_CREDIT;
    } else if (line->step == PC_STEP_FILL) {
        line->step = PC_STEP_PUT_MESSAGE;
        line->at.operands = filled(b, program, at, line->at.fifo);
    }
}

static struct pc_vm_instruction decode(const struct blob *b, const struct pc_program *program,
                                       uint32_t at)
{
    struct pc_instruction i = instruction_at(b, at);
    struct pc_vm_instruction line = {.flags = i.flags, .nsrc = i.nsrc, .ndst = i.ndst};
    switch ((enum pc_opcode)i.op) {
    case PC_OP_END:
        line.step = PC_STEP_END;
        break;
    case PC_OP_LOOP:
        line.step = PC_STEP_LOOP;
        break;
    case PC_OP_END_LOOP:
        line.step = PC_STEP_END_LOOP;
        line.target = i.target;
        break;
    case PC_OP_REDUCE_COPY:
        line.step = PC_STEP_REDUCE_COPY;
        line.at.operands = program->operands + i.operand;
        for (uint32_t k = 0; k < (uint32_t)i.nsrc + i.ndst; k++)
            if (line.at.operands[k].space == PC_SPACE_SCRATCH && line.at.operands[k].nchunks > 1)
                line.flags |= PC_FLAG_PIECEWISE;
        break;
    case PC_OP_SIGNAL:
    case PC_OP_WAIT: {
        struct pc_edge e = edge_at(b, i.edge);
        bool signal = i.op == PC_OP_SIGNAL, sends = e.direction == PC_DIRECTION_SEND;
        if (e.kind == PC_EDGE_DATA) {
            line.at.fifo = fifo_of(b, &e);
            line.step = signal ? (sends ? PC_STEP_FILL : PC_STEP_CONSUME)
                               : (sends ? PC_STEP_WAIT_CREDIT : PC_STEP_WAIT_MESSAGE);
            if (!pc__edge_mapped(line.at.fifo))
                put(b, program, at, &line);
        } else if (e.kind == PC_EDGE_LOCAL) {
            line.at.token = &b->comm->locals[e.channel][e.other];
            line.step = signal ? PC_STEP_SIGNAL_LOCAL : PC_STEP_WAIT_LOCAL;
        } else {
            line.at.token = &b->comm->dones[real_rank(b, e.peer)];
            line.step = signal ? PC_STEP_SIGNAL_DONE : PC_STEP_WAIT_DONE;
        }
        break;
    }
    }
    return line;
}

/* Memory of this rank that holds, once the instruction has run, what it puts into slots: a message
 * may be sent from there. NULL: only the slots hold it. */
static const struct pc_vm_operand *lender_of(const struct pc_vm_instruction *i)
{
    bool copies = i->nsrc == 1 && !(i->flags & PC_FLAG_SCALE);
    for (uint32_t k = copies ? 0 : i->nsrc; k < (uint32_t)i->nsrc + i->ndst; k++) {
        const struct pc_vm_operand *p = &i->at.operands[k];
        bool piecewise = p->space == PC_SPACE_SCRATCH && p->nchunks > 1;
        if (p->space <= PC_SPACE_SCRATCH && !piecewise)
            return p;
    }
    return NULL;
}

static bool lends_to(const struct pc_vm_instruction *signal)
{
    return signal->step == PC_STEP_PUT_MESSAGE
           && signal->at.operands->fifo->edge->peer->net->ops->lend_from != 0;
}

/* Moves destination k behind those that are kept, and has the signals that name either follow. */
static void put_last(struct pc_vm_instruction *i, struct pc_vm_operand *operands, uint32_t k,
                     uint32_t last)
{
    struct pc_vm_operand moved = operands[k];
    operands[k] = operands[last];
    operands[last] = moved;
    for (i++; i->step != PC_STEP_END; i++) {
        if (i->step != PC_STEP_PUT_MESSAGE)
            continue;
        if (i->at.operands == operands + k)
            i->at.operands = operands + last;
        else if (i->at.operands == operands + last)
            i->at.operands = operands + k;
    }
}

/* Lets the messages that a REDUCE_COPY fills be sent from their lender, where nothing runs between
 * the two but signals to other ranks. Their slots become its last destinations. */
static void lend(struct pc_program *program, struct pc_vm_instruction *i)
{
    struct pc_vm_operand *operands = program->operands + (i->at.operands - program->operands);
    uint32_t n = (uint32_t)i->nsrc + i->ndst, kept = n;
    if (lender_of(i) == NULL)
        return;
    const struct pc_vm_instruction *end = i + 1;
    for (; end->step >= PC_STEP_FILL && end->step <= PC_STEP_PUT_CREDIT; end++)
        if (lends_to(end) && end->at.operands >= operands + i->nsrc
            && end->at.operands < operands + kept)
            put_last(i, operands, (uint32_t)(end->at.operands - operands), --kept);
    uint32_t lender = (uint32_t)(lender_of(i) - program->operands);
    for (struct pc_vm_instruction *s = i + 1; s < end; s++)
        if (s->step == PC_STEP_PUT_MESSAGE && s->at.operands >= operands + kept
            && s->at.operands < operands + n)
            s->target = 1 + lender;
    i->target = n - kept;
}

/* Whether an instruction fills a slot that another core reads; none reads a shadow. */
static bool fills_slot(const struct pc_vm_instruction *i)
{
    for (uint32_t k = i->nsrc; i->step == PC_STEP_REDUCE_COPY && k < (uint32_t)i->nsrc + i->ndst;
         k++)
        if (i->at.operands[k].space == PC_SPACE_SLOT && pc__edge_mapped(i->at.operands[k].fifo))
            return true;
    return false;
}

/* Gives a probe to each instruction that fills a slot; false: no memory. */
static bool give_probes(struct pc_program *program)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->ninstructions; i++)
        n += fills_slot(&program->code[i]);
    program->probes = calloc(n + (size_t)1, sizeof *program->probes);
    struct pc_probe *next = program->probes;
    for (uint32_t i = 0; next != NULL && i < program->ninstructions; i++)
        if (fills_slot(&program->code[i]))
            program->code[i].probe = next++;
    return next != NULL;
}

int pc_program_load(struct pc_comm *comm, const void *bytes, size_t nbytes, uint32_t root,
                    uint32_t destinations, struct pc_program **out)
{
    struct blob b = {.comm = comm, .root = root, .destinations = destinations};
    *out = NULL;
    if (destinations > PC_MAX_DESTINATIONS)
        return BAD(&b, "%u destinations of one instruction, want at most %u", destinations,
                   PC_MAX_DESTINATIONS);
    int rc = open_blob(&b, bytes, nbytes);
    if (rc == PC_OK)
        rc = check(&b);
    if (rc != PC_OK)
        return rc;
    struct pc_program *program = calloc(1, sizeof *program);
    if (program == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a program");
    *program = (struct pc_program){.references = 1,
                                   .root = root,
                                   .noperands = b.header.noperands,
                                   .ninstructions = b.header.ninstructions,
                                   .flags = b.header.flags,
                                   .nchunks = b.header.nchunks,
                                   .nscratch = b.header.nscratch,
                                   .widest = b.header.widest,
                                   .nchannels = b.header.nchannels};
    program->code = calloc(b.header.ninstructions, sizeof *program->code);
    program->operands = calloc(b.header.noperands + 1, sizeof *program->operands);
    if (program->code == NULL || program->operands == NULL) {
        pc_program_free(program);
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a program");
    }
    for (uint32_t c = 0; c < program->nchannels; c++)
        program->starts[c] = start_of(&b, c);
    resolve_operands(&b, program);
    for (uint32_t i = 0; i < b.header.ninstructions; i++) {
        struct pc_instruction instruction = instruction_at(&b, i);
        program->apart |= turns(&b, &instruction);
        program->code[i] = decode(&b, program, i);
    }
    if (!give_probes(program)) {
        pc_program_free(program);
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a program");
    }
    for (uint32_t i = 0; i < b.header.ninstructions; i++)
        if (program->code[i].step == PC_STEP_PUT_MESSAGE && program->code[i].at.operands == NULL) {
            pc_program_free(program);
            return BAD(&b, "instruction %u: signals a slot that nothing before it fills", i);
        }
    for (uint32_t i = 0; i < b.header.ninstructions; i++)
        if (program->code[i].step == PC_STEP_REDUCE_COPY)
            lend(program, &program->code[i]);
    *out = program;
    return PC_OK;
}

void pc_program_free(struct pc_program *program)
{
    if (program == NULL || atomic_fetch_sub(&program->references, 1) != 1)
        return;
    free(program->code);
    free(program->operands);
    free(program->probes);
    free(program);
}
