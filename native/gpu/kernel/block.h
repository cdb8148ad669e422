/* A block's life: it takes its package into shared memory, runs it, and puts the FIFOs' counts
 * back; part of kernel.h. */
#ifndef PC_KERNEL_BLOCK_H
#define PC_KERNEL_BLOCK_H

typedef pc__unit<8>::type pc_word; /* any bits */

/* Copies by all threads; a multiple of 8 bytes. */
PC_DEVICE_FN void pc__copy_words(void *to, const void *from, uint32_t nbytes)
{
    PC_ROLLED
    for (uint32_t k = pc__thread(); k < nbytes / 8; k += pc__threads())
        ((pc_word *)to)[k] = ((const pc_word *)from)[k];
}

/* An address in a package, after the package has moved. */
template <class T> PC_DEVICE_FN T *pc__moved(T *at, uint64_t from, uint64_t to)
{
    return (T *)((uintptr_t)at - from + to);
}

/* Has the block's package in shared memory, if there is room, so that the interpreter waits for no
 * memory but that of data and counts; and the FIFOs' counts in the package. Returns where the code
 * begins, or NULL. */
PC_ROUTINE const struct pc_vm_instruction *
pc__take_package(PC_CALL *call, const struct pc_kernel_args *launch, uint32_t form, uint32_t number)
{
    struct pc_shared *shared = call->shared;
    const uint32_t nbytes = launch->packages.nbytes[form];
    const char *home = launch->packages.at[form] + (uint64_t)number * nbytes;
    const bool local = nbytes <= PC_PACKAGE_ROOM;
    pc__copy_words(&shared->block, home, sizeof shared->block);
    if (local)
        pc__copy_words(shared->room, home, nbytes);
    pc__barrier(shared, false);
    struct pc_block_image *block = &shared->block;
    const uint64_t from = (uintptr_t)home, to = local ? (uintptr_t)shared->room : from;
    struct pc_fifo *const *homes = pc__moved(block->homes, from, to);
    struct pc_fifo *fifos = pc__moved(block->fifos, from, to);
    struct pc_vm_operand *operands = pc__moved(block->operands, from, to);
    struct pc_vm_instruction *code
        = block->start ? pc__moved((struct pc_vm_instruction *)block->start, from, to) : NULL;
    const uint32_t words = sizeof(struct pc_fifo) / 8;
    const uint32_t noperands = local ? block->noperands : 0;
    const uint32_t ninstructions = local ? block->ninstructions : 0;
    PC_ROLLED
    for (uint32_t k = pc__thread(); k < block->nfifos * words; k += pc__threads())
        ((pc_word *)fifos)[k] = ((const pc_word *)homes[k / words])[k % words];
    PC_ROLLED
    for (uint32_t k = pc__thread(); k < noperands; k += pc__threads())
        if (operands[k].space == PC_SPACE_SLOT)
            operands[k].fifo = pc__moved(operands[k].fifo, from, to);
    PC_ROLLED
    for (uint32_t k = pc__thread(); k < ninstructions; k += pc__threads())
        if (code[k].step == PC_STEP_REDUCE_COPY || code[k].step == PC_STEP_PUT_MESSAGE)
            code[k].at.operands = pc__moved(code[k].at.operands, from, to);
        else if (pc__has_fifo(&code[k]))
            code[k].at.fifo = pc__moved(code[k].at.fifo, from, to);
    if (pc__thread() == 0) {
        shared->fifos = fifos;
        shared->homes = homes;
        shared->in_place = !local;
        block->terms.signature ^= shared->salt;
        block->terms.code = pc__moved(block->terms.code, from, to);
        block->terms.chunks = pc__moved(block->terms.chunks, from, to);
    }
    call->over = pc__barrier(shared, call->dead || call->over);
    return code;
}

/* Puts the FIFOs' counts back, which only the leader has raised. */
PC_ROUTINE void pc__give_package(const PC_CALL *call)
{
    const struct pc_shared *shared = call->shared;
    PC_ROLLED
    for (uint32_t k = pc__thread(); k < shared->block.nfifos; k += pc__threads()) {
        struct pc_fifo *home = shared->homes[k];
        const struct pc_fifo *f = &shared->fifos[k];
        home->sent = f->sent;
        home->credit = f->credit;
        home->received = f->received;
    }
}

/* Block `number` of a launch. `shared` is uninitialised memory of the block. */
template <class F>
PC_DEVICE_FN void pc__kernel(const struct pc_kernel_args *launch, uint32_t number,
                             struct pc_shared *shared)
{
    const struct pc_device_image *image = launch->image;
    if (number >= launch->nblocks)
        return;
    struct pc_call<F> call = {};
    call.shared = shared;
    if (pc__thread() == 0) {
        uint64_t now = pc__clock_ns(), deadline = now + launch->timeout_ns;
        shared->image = image;
        shared->in = launch->in;
        shared->out = launch->out;
        shared->salt = launch->in_graph ? pc__load_relaxed64(&image->states[0].salt) : launch->salt;
        shared->deadline = deadline < now ? ~(uint64_t)0 : deadline;
        shared->number = number;
        shared->in_segment = launch->in_segment;
        shared->out_segment = launch->out_segment;
        shared->proxied = launch->proxied;
        shared->multicast = 0;
        if (launch->form)
            shared->block.state = &image->states[number];
        shared->launches = image->states[number].launches;
        call.dead = pc__load_relaxed32(&image->states[number].dead);
    }
    uint32_t form = 0;
    if (launch->form) {
        call.over = pc__barrier(shared, call.dead);
        bool astray = !call.over && pc__thread() < PC_WARP && pc__astray(&call);
        call.over = pc__barrier(shared, call.dead || call.over);
        form = !pc__barrier(shared, astray);
        if (form && number == 0 && pc__thread() == 0 && !call.over)
            image->states[0].direct++;
        pc__begin_multicast(&call, form);
    }
    struct pc_channel channel = {};
    channel.pc = pc__take_package(&call, launch, form, number);
    call.terms = &shared->block.terms;
    channel.finished = call.over || channel.pc == NULL; /* this form may have fewer blocks */
    while (!channel.finished && pc__step(&call, &channel) >= 0)
        continue;
    /* Behind the last counts, and the stores of all threads. */
    const bool failed = pc__barrier(shared, call.dead || call.over);
    pc__give_package(&call);
    const bool in_place = shared->in_place;
    if (in_place) /* the package, which the host may free, is read up to here */
        pc__barrier(shared, false);
    if (pc__thread() != 0)
        return;
    uint64_t launches = shared->launches + 1;
    shared->block.state->launches = launches;
    /* What the next kernel finds is ordered by the stream. The proxy must find what was pushed, and
     * the host the reason of a failure. */
    if (failed || in_place || shared->proxied)
        pc__store_release(shared->block.finished, launches);
    else
        pc__store_relaxed64(shared->block.finished, launches);
}
#endif
