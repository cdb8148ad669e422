/* Runs collectives as GPUs would, all ranks in one process, each thread of each block a thread.
 *
 *   driver run FILE               every case of the file (test_simt.py writes it)
 *   driver counted FILE           the same, and how much went by multicast addresses
 *   driver count FILE             how many lines of each kind a rank's image has at most, in the
 *                                 first case
 *   driver mutate FILE KIND N     the first case without the N-th of them, on every rank; of kind
 *                                 `rotation`: with all messages in slot 0
 *   driver abort FILE             the first case without rank 0, until the others are told to stop
 *   driver alone FILE             the same, but nobody tells them
 *
 * The launches of a rank follow one another as on a stream; nothing else orders the ranks. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>
#include "simt.h"
#include "gpu/kernel/span.h"
#include "gpu/kernel/kernel.h"
#include "world.h"

#define MARGIN 64u
#define POISON 0xa5

static std::map<std::pair<uint32_t, uint32_t>, simt_kernel> &kernels()
{
    static std::map<std::pair<uint32_t, uint32_t>, simt_kernel> all;
    return all;
}

simt_entry::simt_entry(uint32_t dtype, uint32_t op, simt_kernel run)
{
    kernels()[{dtype, op}] = run;
}

/* ---- the file -------------------------------------------------------------------------------- */

struct reader {
    std::vector<unsigned char> bytes;
    size_t at = 0;

    explicit reader(const char *path)
    {
        FILE *file = fopen(path, "rb");
        unsigned char part[65536];
        if (file == nullptr) {
            perror(path);
            exit(2);
        }
        for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;)
            bytes.insert(bytes.end(), part, part + n);
        fclose(file);
    }

    const unsigned char *take(size_t n)
    {
        const unsigned char *p = bytes.data() + at;
        at += (n + 7) / 8 * 8;
        if (at > bytes.size()) {
            fprintf(stderr, "the file ends early\n");
            exit(2);
        }
        return p;
    }

    uint64_t number()
    {
        uint64_t x;
        memcpy(&x, take(8), 8);
        return x;
    }
};

struct blob {
    const unsigned char *at;
    uint64_t nbytes;
};

struct rank_part {
    plan_text text;
    uint64_t salt;
    uint64_t shift, uneven; /* by which its arrays lie further on in the heap, and its output */
    uint64_t
        registered; /* 1: its arrays lie in the heap; 2, 3: in a segment, which comes and goes */
    std::vector<blob> inputs, outputs; /* of each launch */
};

struct sim_case {
    std::string name;
    uint64_t size, slots, slot_bytes, first, launches, threads, in_place, offset, in_graph,
        timeout_ns;
    std::vector<uint64_t> blocks;
    std::vector<rank_part> ranks;
};

static blob read_blob(reader &in)
{
    uint64_t nbytes = in.number();
    return {in.take(nbytes), nbytes};
}

static sim_case read_case(reader &in)
{
    sim_case c;
    blob name = read_blob(in);
    c.name.assign((const char *)name.at, name.nbytes);
    c.size = in.number(), c.slots = in.number(), c.slot_bytes = in.number();
    c.first = in.number(), c.launches = in.number(), c.threads = in.number();
    c.in_place = in.number(), c.offset = in.number();
    c.in_graph = in.number(), c.timeout_ns = in.number();
    plan_text text = {};
    text.dtype = (uint32_t)in.number(), text.op = (uint32_t)in.number();
    text.tile = (uint32_t)in.number(), text.root = (uint32_t)in.number();
    text.instances = (uint32_t)in.number(), text.packets = (uint32_t)in.number();
    text.multicast = (uint32_t)in.number();
    c.blocks.resize(in.number());
    for (uint64_t &nbytes : c.blocks)
        nbytes = in.number();
    text.nblocks = (uint32_t)c.blocks.size();
    for (uint64_t r = 0; r < c.size; r++) {
        rank_part part;
        part.text = text;
        part.text.signature = in.number();
        part.text.packets ^= (uint32_t)in.number();
        part.salt = in.number();
        for (uint32_t k = 0; k < 2; k++)
            part.text.input[k] = (uint32_t)in.number();
        for (uint32_t k = 0; k < 2; k++)
            part.text.output[k] = (uint32_t)in.number();
        blob program = read_blob(in);
        part.text.program = program.at;
        part.text.program_bytes = program.nbytes;
        blob direct = read_blob(in);
        part.text.direct = direct.nbytes ? direct.at : nullptr;
        part.text.direct_bytes = direct.nbytes;
        part.registered = in.number();
        part.shift = in.number(), part.uneven = in.number();
        for (uint64_t l = 0; l < c.launches; l++) {
            part.inputs.push_back(read_blob(in));
            part.outputs.push_back(read_blob(in));
        }
        c.ranks.push_back(part);
    }
    return c;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A part of a message, with poison around it, so many bytes off alignment: somewhere, or in the
 * heap from `heap` on. */
struct array {
    std::vector<unsigned char> own;
    unsigned char *memory = nullptr, *data = nullptr;
    uint64_t size = 0, nbytes = 0;

    void make(uint64_t n, uint64_t offset, char **heap)
    {
        nbytes = n;
        size = (n + offset + 2 * MARGIN + 64 + 63) / 64 * 64;
        if (heap == nullptr) {
            own.resize(size + 64);
            memory = own.data() + (64 - (uintptr_t)own.data() % 64) % 64;
        } else {
            memory = (unsigned char *)*heap;
            *heap += size;
        }
        data = memory + MARGIN + offset;
        clear();
    }

    void clear()
    {
        memset(memory, POISON, size);
    }

    bool margins() const
    {
        for (const unsigned char *p = memory; p < memory + size; p++)
            if ((p < data || p >= data + nbytes) && *p != POISON)
                return false;
        return true;
    }
};

struct rank_run {
    const sim_case *c;
    const rank_part *part;
    uint32_t rank;
    pc_device_image *image;
    pc_host_control *control;
    array in, out; /* in place: only `out`, all of the message */
    pc_kernel_args launch;
    world *w;
    std::vector<unsigned char> segment;
    uint64_t direct; /* launches in the direct form, before this case */
    unsigned char *input, *result;
    std::vector<std::unique_ptr<pc_simt_block>> blocks;
    std::vector<pc_shared> shared;
    std::unique_ptr<pc_simt_barrier> stream; /* one kernel after the other */
    bool wrong = false;

    void make(const sim_case &of, uint32_t r, world *of_world);
    void fill(uint64_t number);
    void check(uint64_t number);
};

void rank_run::make(const sim_case &of, uint32_t r, world *of_world)
{
    c = &of;
    part = &of.ranks[r];
    rank = r;
    plan_text text = part->text;
    text.blocks = of.blocks.data();
    image = world_image(of_world, r, &text);
    control = world_control(of_world, r);
    w = of_world;
    direct = image->states[0].direct;
    std::vector<uint64_t> starts = {0};
    for (uint64_t nbytes : of.blocks)
        starts.push_back(starts.back() + nbytes);
    uint64_t in_at = starts[text.input[0]], out_at = starts[text.output[0]];
    char *heap = world_heap(w, r), **into = part->registered ? &heap : nullptr;
    if (part->registered > 1) {
        segment.resize(HEAP + 64);
        heap = (char *)segment.data() + (64 - (uintptr_t)segment.data() % 64) % 64;
        world_register(w, r, heap);
    }
    const char *const end = heap + HEAP;
    heap += part->shift;
    char *from, *to;
    if (of.in_place) {
        out.make(starts.back(), of.offset, into);
        from = to = (char *)out.data;
    } else {
        in.make(part->inputs[0].nbytes, of.offset, into);
        out.make(part->outputs[0].nbytes, of.offset + part->uneven, into);
        from = (char *)in.data - in_at;
        to = (char *)out.data - out_at;
    }
    if (heap > end) {
        fprintf(stderr, "%s: the heap is too small\n", of.name.c_str());
        exit(2);
    }
    input = (unsigned char *)from + in_at;
    result = (unsigned char *)to + out_at;
    image->states[0].salt = part->salt;
    launch = {};
    launch.image = image;
    launch.packages = image->packages;
    launch.nblocks = image->nblocks;
    launch.form = image->form;
    launch.in = from;
    launch.out = to;
    launch.timeout_ns = of.timeout_ns;
    launch.salt = of.in_graph ? ~part->salt : part->salt;
    launch.in_graph = (uint32_t)of.in_graph;
    launch.in_segment = launch.out_segment = part->registered > 1;
    for (uint32_t b = 0; b < image->nblocks; b++)
        blocks.emplace_back(new pc_simt_block((uint32_t)of.threads));
    shared.resize(image->nblocks);
    stream.reset(new pc_simt_barrier(image->nblocks * (uint32_t)of.threads));
}

/* What a user's kernels do, before and behind the call. */
void rank_run::fill(uint64_t number)
{
    out.clear();
    memcpy(input, part->inputs[number].at, part->inputs[number].nbytes);
}

void rank_run::check(uint64_t number)
{
    const blob &want = part->outputs[number];
    for (uint64_t i = 0; !wrong && i < want.nbytes; i++)
        if (result[i] != want.at[i]) {
            wrong = true;
            fprintf(stderr, "%s: rank %u, launch %lu, byte %lu of %lu: got %#x, want %#x\n",
                    c->name.c_str(), rank, number, i, want.nbytes, result[i], want.at[i]);
        }
    if (!wrong && (!out.margins() || (!c->in_place && !in.margins()))) {
        wrong = true;
        fprintf(stderr, "%s: rank %u, launch %lu wrote beside its arrays\n", c->name.c_str(), rank,
                number);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

struct simulation {
    const sim_case &c;
    world *w;
    std::vector<rank_run> ranks;
    std::vector<std::thread> threads, hosts;
    std::atomic<uint64_t> over{0};

    simulation(const sim_case &c, world *w) : c(c), w(w), ranks(c.size)
    {
        for (uint32_t r = 0; r < c.size; r++)
            ranks[r].make(c, r, w);
    }

    ~simulation()
    {
        for (rank_run &r : ranks)
            free(r.image);
    }

    void start(uint32_t r)
    {
        auto found = kernels().find({c.ranks[r].text.dtype, c.ranks[r].text.op});
        if (found == kernels().end()) {
            fprintf(stderr, "%s: no kernel of dtype %u, op %u\n", c.name.c_str(),
                    c.ranks[r].text.dtype, c.ranks[r].text.op);
            exit(2);
        }
        simt_kernel kernel = found->second;
        rank_run *run = &ranks[r];
        for (uint32_t b = 0; b < run->image->nblocks; b++)
            for (uint32_t t = 0; t < c.threads; t++)
                threads.emplace_back([=] {
                    const bool user = b == 0 && t == 0;
                    pc_simt_enter(run->blocks[b].get(), t);
                    for (uint64_t l = 0; l < run->c->launches; l++) {
                        if (user)
                            run->fill(l);
                        run->stream->meet(false);
                        kernel(&run->launch, b, &run->shared[b]);
                        run->stream->meet(false);
                        if (user && !run->control->error.claimed)
                            run->check(l);
                    }
                });
    }

    /* The host of a rank takes its segment from the table and puts it there again. */
    void change(uint32_t r)
    {
        if (c.ranks[r].registered == 3)
            hosts.emplace_back([=, this] {
                for (bool there = false; over == 0; there = !there) {
                    world_show(w, r, there);
                    std::this_thread::yield();
                }
                world_show(w, r, true);
            });
    }

    void join()
    {
        for (std::thread &t : threads)
            t.join();
        threads.clear();
        over = 1;
        for (std::thread &t : hosts)
            t.join();
        hosts.clear();
    }

    /* How many launches of a rank were direct. */
    uint64_t direct(uint32_t r) const
    {
        return ranks[r].image->states[0].direct - ranks[r].direct;
    }

    /* Whether all ranks had the same form in each launch; the direct one if all arrays stayed in
     * segments. */
    bool alike() const
    {
        uint64_t steady = 0;
        for (uint32_t r = 0; r < c.size; r++)
            steady += c.ranks[r].registered == 2;
        for (uint32_t r = 0; r < c.size; r++)
            if (direct(r) != direct(0) || (steady == c.size && direct(r) != c.launches)) {
                fprintf(stderr, "%s: rank %u: %lu launches were direct, %lu of rank 0\n",
                        c.name.c_str(), r, direct(r), direct(0));
                return false;
            }
        return true;
    }

    bool trouble(FILE *to) const
    {
        bool any = false;
        for (uint32_t r = 0; r < c.size; r++) {
            const pc_device_error &t = ranks[r].control->error;
            if (!t.claimed)
                continue;
            any = true;
            fprintf(
                to,
                "rank %u: code -%lu block %u instruction %u peer %d slot %lu want %lu got %lu\n", r,
                t.code, t.block, t.instruction, (int)t.peer, t.slot, t.want, t.got);
        }
        return any;
    }

    bool right() const
    {
        bool well = !trouble(stderr);
        for (uint32_t r = 0; well && r < c.size; r++)
            well = !ranks[r].wrong;
        for (uint32_t r = 0; well && r < c.size; r++)
            for (uint32_t b = 0; b < ranks[r].image->nblocks; b++)
                if (ranks[r].control->finished[b][0]
                    != image_block(ranks[r].image, 0, b)->state->launches) {
                    fprintf(stderr, "%s: rank %u block %u did not say that it ended\n",
                            c.name.c_str(), r, b);
                    return false;
                }
        return well && alike();
    }
};

static enum line_kind kind_of(const std::string &name)
{
    return name == "sync"      ? LINE_SYNC
           : name == "fence"   ? LINE_FENCE
           : name == "message" ? LINE_WAIT_MESSAGE
           : name == "credit"  ? LINE_WAIT_CREDIT
           : name == "local"   ? LINE_WAIT_LOCAL
           : name == "move"    ? LINE_REDUCE_COPY
                               : LINE_WAIT_DONE;
}

static world *opened(const sim_case &c)
{
    world *w = world_open((uint32_t)c.size, (uint32_t)c.slots, (uint32_t)c.slot_bytes, c.first);
    pc_simt_multicast *m = new pc_simt_multicast(); /* for ever: its list is never cut */
    m->at = world_multicast(w);
    m->nbytes = HEAP;
    m->nmembers = (uint32_t)c.size;
    for (uint32_t r = 0; r < c.size; r++)
        m->members[r] = world_heap(w, r);
    m->next = pc_simt_multicasts;
    pc_simt_multicasts = m;
    return w;
}

static int run_all(reader &in, bool counted)
{
    typedef std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> key;
    std::map<key, world *> worlds; /* cases follow one another on the same edges */
    uint64_t n = in.number();
    for (uint64_t i = 0; i < n; i++) {
        sim_case c = read_case(in);
        world *&w = worlds[{c.size, c.slots, c.slot_bytes, c.first}];
        if (w == nullptr)
            w = opened(c);
        simulation s(c, w);
        for (uint32_t r = 0; r < c.size; r++) {
            s.start(r);
            s.change(r);
        }
        s.join();
        if (!s.right()) {
            fprintf(stderr, "%s: wrong\n", c.name.c_str());
            return 1;
        }
    }
    for (auto &w : worlds)
        world_close(w.second);
    printf("%lu cases\n", n);
    if (counted)
        printf("%lu folded\n%lu stored\n", pc_simt_folded.load(), pc_simt_stored.load());
    return 0;
}

int main(int argc, char **argv)
{
    std::string verb = argc > 2 ? argv[1] : "";
    if (verb == "")
        return 2;
    reader in(argv[2]);
    if (verb == "run" || verb == "counted")
        return run_all(in, verb == "counted");
    in.number();
    sim_case c = read_case(in);
    world *w = opened(c);
    int result = 0;
    {
        simulation s(c, w);
        if (verb == "count") {
            for (const char *kind :
                 {"sync", "fence", "message", "credit", "local", "done", "move"}) {
                uint32_t most = 0;
                for (const rank_run &r : s.ranks)
                    most = std::max(most, image_lines(r.image, kind_of(kind)));
                printf("%s %u\n", kind, most);
            }
        } else if (verb == "mutate") {
            const std::string kind = argc > 4 ? argv[3] : "";
            const uint32_t n = argc > 4 ? (uint32_t)atoi(argv[4]) : 0;
            for (rank_run &r : s.ranks) {
                if (kind == "rotation")
                    for (uint32_t b = 0; b < r.image->nblocks; b++)
                        image_block(r.image, 0, b)->terms.slots = 1;
                else if (n < image_lines(r.image, kind_of(kind)))
                    image_mutate(r.image, kind_of(kind), n);
            }
            for (uint32_t r = 0; r < c.size; r++)
                s.start(r);
            s.join();
            result = s.right() ? 0 : 1;
        } else if (verb == "abort" || verb == "alone") {
            for (uint32_t r = 1; r < c.size; r++)
                s.start(r);
            if (verb == "abort") { /* while they spin, which they do for all their timeout */
                while (__atomic_load_n(&pc_simt_spins, __ATOMIC_RELAXED) < 10000)
                    std::this_thread::yield();
                for (uint32_t r = 1; r < c.size; r++)
                    __atomic_store_n(&s.ranks[r].control->abort, 1, __ATOMIC_RELAXED);
            }
            s.join();
            s.trouble(stdout);
        } else {
            result = 2;
        }
    }
    world_close(w);
    return result;
}
