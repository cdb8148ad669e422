/* Runs the transfer kernel as GPUs would, all ranks in one process, each thread of each block a
 * thread, and proxies that play the network.
 *
 *   transfers run SEED CASES      cases drawn by chance: what arrives is compared with what was
 * sent transfers HOW SEED            one case that ends badly, and what each rank says of it: alone
 * rank 0 does not come abort                       the same, and the others are told to stop gone
 * the same, and the others know that it is gone length, dtype, refused, call   rank 0 sends
 * something else than the others expect packets, ready              rank 0 is in a collective whose
 * messages do not come by lines */
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>
#include "gpu/kernel/target_simt.h"
#include "gpu/kernel/span.h"
#include "gpu/kernel/transfer.h"
#include "gpu/proxy_fifo.h"

#define MARGIN 64u
#define POISON 0xa5

typedef std::vector<unsigned char> bytes;

static uint64_t signature_of(uint32_t dtype, uint64_t nbytes)
{
    return (uint64_t)1 << 63 | (uint64_t)dtype << PC_NBYTES_BITS | nbytes;
}

struct message { /* from one rank to another */
    uint32_t from, to;
    uint32_t lanes_log2;
    bytes data;
};

struct setup {
    uint32_t size, nblocks, threads, slots, slot_bytes;
    uint64_t first; /* messages that seem to have passed */
    bool in_graph;
    uint64_t timeout_ns;
    std::vector<std::vector<bool>> remote; /* [rank][peer] */
};

struct edge { /* one direction from a rank to another, on a lane */
    std::vector<pc_line> lines, shadow_lines;
    bytes data, shadow_data;
    pc_line credit = {};
    std::vector<uint64_t> packets;
    uint64_t carried = 0, returned = 0; /* messages and credits that a proxy has carried */
};

struct array {
    bytes memory;
    unsigned char *at;

    array(uint64_t nbytes, uint32_t offset) : memory(nbytes + 2 * MARGIN + 64, POISON)
    {
        at = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64 + MARGIN / 2 + offset;
    }

    bool margins(uint64_t nbytes) const
    {
        for (const unsigned char &p : memory)
            if ((&p < at || &p >= at + nbytes) && p != POISON)
                return false;
        return true;
    }
};

struct rank_run {
    std::vector<pc_fifo> fifos;
    std::vector<pc_block_state> states;
    std::unique_ptr<pc_host_control> control;
    std::vector<pc_host_peer> peers;
    std::vector<pc_ipc_peer> ipc_peers;
    std::vector<pc_line> ready; /* [peer][2] */
    pc_transfer_args args;
    std::vector<std::unique_ptr<pc_simt_block>> blocks;
    std::vector<pc_transfer_shared> shared;
    std::deque<array> arrays;
    uint64_t tails[PC_MAX_BLOCKS] = {};
};

struct world {
    const setup s;
    std::vector<edge> edges; /* [from][to][lane] */
    std::vector<rank_run> ranks;
    std::atomic<bool> over{false};

    explicit world(const setup &of) : s(of), edges(s.size * s.size * s.nblocks), ranks(s.size)
    {
        for (edge &e : edges) {
            e.lines.resize(PC_LINES);
            e.shadow_lines.resize(PC_LINES);
            e.data.resize((uint64_t)s.slots * s.slot_bytes);
            e.shadow_data.resize(e.data.size());
            e.credit.count = s.first;
            e.carried = e.returned = s.first;
            for (uint64_t n = 0; s.first && n < PC_LINES; n++)
                e.lines[(s.first - 1 - n) % PC_LINES].count = s.first - n;
            e.packets.resize(s.slots * (PC_LL_SLOT_BYTES / 8), s.first ? 0xbad : 0);
        }
        for (uint32_t r = 0; r < s.size; r++)
            make(r);
        for (uint32_t r = 0; r < s.size; r++)
            for (uint32_t p = 0; p < s.size; p++)
                ranks[r].ipc_peers[p] = {&ranks[p].ready[2 * r], &ranks[r].ready[2 * p], {}};
    }

    edge &at(uint32_t from, uint32_t to, uint32_t lane)
    {
        return edges[(from * s.size + to) * s.nblocks + lane];
    }

    void make(uint32_t r)
    {
        rank_run &run = ranks[r];
        run.fifos.resize(s.size * PC_MAX_BLOCKS);
        run.states.resize(PC_MAX_BLOCKS);
        run.control.reset(new pc_host_control());
        run.peers.resize(s.size);
        run.ipc_peers.resize(s.size);
        run.ready.resize(2 * s.size);
        for (uint32_t p = 0; p < s.size; p++)
            for (uint32_t b = 0; b < s.nblocks; b++) {
                edge &out = at(r, p, b), &in = at(p, r, b);
                const bool remote = s.remote[r][p];
                pc_fifo &f = run.fifos[p * PC_MAX_BLOCKS + b];
                f.sent = f.credit = f.received = s.first;
                f.out_lines = remote ? out.shadow_lines.data() : out.lines.data();
                f.out_data = (char *)(remote ? out.shadow_data.data() : out.data.data());
                f.out_credit = &out.credit;
                f.in_lines = in.lines.data();
                f.in_data = (char *)in.data.data();
                f.in_credit = remote ? nullptr : &in.credit;
                f.in_packets = remote ? nullptr : (char *)in.packets.data();
                f.peer = p;
            }
        for (uint32_t b = 0; b < s.nblocks; b++)
            run.blocks.emplace_back(new pc_simt_block(s.threads));
        run.shared.resize(s.nblocks);
    }

    /* The proxy of a rank, with a network that writes into the peer's memory. */
    void carry(uint32_t r)
    {
        rank_run &run = ranks[r];
        while (!over) {
            bool moved = false;
            for (uint32_t b = 0; b < s.nblocks; b++) {
                pc_proxy_entry entry;
                if (!pc__proxy_fifo_read(run.control->ring[b], run.tails[b], &entry))
                    continue;
                moved = true;
                hand_over(r, entry);
                __atomic_store_n(&run.control->tail[b][0], ++run.tails[b], __ATOMIC_RELEASE);
            }
            /* Whoever waits for a rank that has failed is told, as by a control plane. */
            if (__atomic_load_n(&run.control->error.code, __ATOMIC_ACQUIRE))
                for (rank_run &other : ranks)
                    __atomic_store_n(&other.control->abort, 1, __ATOMIC_RELAXED);
            if (!moved)
                std::this_thread::yield();
        }
    }

    void hand_over(uint32_t r, const pc_proxy_entry &entry)
    {
        const uint32_t peer = entry.instruction, lane = entry.tile >> 1;
        if (entry.plan != PC_TRANSFER_ENTRY || peer >= s.size || lane >= s.nblocks) {
            fprintf(stderr, "an entry of plan %u, rank %u, lane %u\n", entry.plan, peer, lane);
            exit(1);
        }
        if (entry.tile & 1) {
            edge &e = at(peer, r, lane);
            __atomic_store_n(&e.credit.count, ++e.returned, __ATOMIC_RELEASE);
            return;
        }
        edge &e = at(r, peer, lane);
        const uint64_t n = e.carried++;
        pc_line &from = e.shadow_lines[n % PC_LINES], &to = e.lines[n % PC_LINES];
        const uint64_t slot = n % s.slots * s.slot_bytes;
        to.signature = from.signature, to.place = from.place, to.nbytes = from.nbytes;
        if (from.nbytes <= PC_INLINE_BYTES)
            memcpy(to.bytes, from.bytes, from.nbytes);
        else
            memcpy(&e.data[slot], &e.shadow_data[slot], from.nbytes);
        __atomic_store_n(&to.count, n + 1, __ATOMIC_RELEASE);
    }
};

/* What a launch of a rank moves; the order of its jobs, and their first blocks, are its own. */
static void prepare(world &w, uint32_t r, const std::vector<message> &messages, std::mt19937 &draw)
{
    rank_run &run = w.ranks[r];
    pc_transfer_args &a = run.args;
    a = {};
    a.fifos = run.fifos.data();
    a.states = run.states.data();
    a.control = run.control.get();
    a.peers = run.peers.data();
    a.ipc_peers = run.ipc_peers.data();
    a.timeout_ns = w.s.timeout_ns;
    a.in_graph = w.s.in_graph;
    a.slots = w.s.slots;
    a.slot_bytes = w.s.slot_bytes;
    a.nblocks = w.s.nblocks;
    run.arrays.clear();
    std::vector<std::pair<uint32_t, uint8_t>> jobs;
    for (uint32_t p = 0; p < w.s.size; p++)
        for (uint8_t d = 0; d < 2; d++)
            if (p != r)
                jobs.push_back({p, d});
    std::shuffle(jobs.begin(), jobs.end(), draw);
    for (const auto &job : jobs) {
        const bool sends = job.second == PC_DIRECTION_SEND, remote = w.s.remote[r][job.first];
        const uint8_t block = remote ? 0 : (uint8_t)(draw() % w.s.nblocks);
        for (const message &m : messages) {
            if ((sends ? m.from : m.to) != r || (sends ? m.to : m.from) != job.first)
                continue;
            run.arrays.emplace_back(m.data.size(), draw() % 17);
            unsigned char *at = run.arrays.back().at;
            if (sends)
                std::copy(m.data.begin(), m.data.end(), at);
            pc_kernel_transfer &t = a.transfers[a.n++];
            t.at = (char *)at;
            t.signature = signature_of(5, m.data.size());
            t.refused = w.s.in_graph ? ~0u : run.peers[job.first].refused[job.second];
            t.peer = job.first;
            t.direction = job.second;
            t.lanes_log2 = (uint8_t)m.lanes_log2;
            t.block = block;
            t.by_proxy = remote;
        }
    }
}

static void launch(world &w, std::vector<std::thread> &threads, uint32_t r)
{
    for (uint32_t b = 0; b < w.s.nblocks; b++)
        for (uint32_t t = 0; t < w.s.threads; t++)
            threads.emplace_back([&w, r, b, t] {
                rank_run &run = w.ranks[r];
                pc_simt_enter(run.blocks[b].get(), t);
                pc__transfers(&run.args, b, &run.shared[b]);
            });
}

static void join(std::vector<std::thread> &threads)
{
    for (std::thread &t : threads)
        t.join();
    threads.clear();
}

static bool right(world &w, const std::vector<message> &messages, uint64_t launches)
{
    for (uint32_t r = 0; r < w.s.size; r++) {
        rank_run &run = w.ranks[r];
        if (run.control->error.claimed) {
            fprintf(stderr, "rank %u: code -%lu\n", r, run.control->error.code);
            return false;
        }
        for (uint32_t b = 0; b < w.s.nblocks; b++)
            if (run.control->finished[b][0] != launches) {
                fprintf(stderr, "rank %u block %u did not say that it ended\n", r, b);
                return false;
            }
        std::vector<uint32_t> next(w.s.size); /* messages of a peer keep their order */
        for (uint32_t i = 0; i < run.args.n; i++) {
            const pc_kernel_transfer &t = run.args.transfers[i];
            const uint64_t nbytes = t.signature & (((uint64_t)1 << PC_NBYTES_BITS) - 1);
            if (!run.arrays[i].margins(nbytes)) {
                fprintf(stderr, "rank %u wrote beside an array\n", r);
                return false;
            }
            if (t.direction == PC_DIRECTION_SEND)
                continue;
            uint32_t k = next[t.peer]++;
            for (const message &m : messages)
                if (m.from == t.peer && m.to == r && k-- == 0
                    && !std::equal(m.data.begin(), m.data.end(), run.arrays[i].at)) {
                    fprintf(stderr, "rank %u: wrong bytes of rank %u\n", r, t.peer);
                    return false;
                }
        }
    }
    for (uint32_t r = 0; r < w.s.size; r++)
        for (uint32_t p = 0; p < w.s.size; p++)
            for (uint32_t b = 0; b < w.s.nblocks; b++) {
                const pc_fifo &f = w.ranks[r].fifos[p * PC_MAX_BLOCKS + b];
                /* Every slot was used in the last round before flags begin again. */
                const uint64_t again = 2 * PC_LL_FLAG_PERIOD;
                if (w.s.first == 0 || w.s.first + w.s.slots > again || !f.in_packets
                    || f.received < again)
                    continue;
                for (uint64_t word : w.at(p, r, b).packets)
                    if (word != 0) {
                        fprintf(stderr, "rank %u left packets of rank %u\n", r, p);
                        return false;
                    }
            }
    return true;
}

static std::vector<message> drawn_messages(const setup &s, std::mt19937 &draw)
{
    const uint32_t lengths[] = {0, 1, 3, 40, 41, 255, 256, 257, 1000, 2049, 5000};
    std::vector<message> messages;
    uint32_t most = 0;
    while (2u << most <= s.nblocks)
        most++;
    std::vector<uint32_t> jobs(s.size);
    for (uint32_t a = 0; a < s.size; a++)
        for (uint32_t b = 0; b < s.size; b++)
            for (uint32_t k = a == b ? 0 : draw() % 4; k-- > 0;) {
                if (++jobs[a] > PC_KERNEL_TRANSFERS / 2 || ++jobs[b] > PC_KERNEL_TRANSFERS / 2)
                    continue;
                message m = {a, b, draw() % (most + 1), bytes(lengths[draw() % 11])};
                for (unsigned char &byte : m.data)
                    byte = (unsigned char)draw();
                messages.push_back(m);
            }
    return messages;
}

static int run(uint32_t seed, uint32_t cases)
{
    for (uint32_t i = 0; i < cases; i++) {
        std::mt19937 draw(seed * 1000 + i);
        setup s = {};
        s.size = 2 + draw() % 4;
        s.nblocks = (uint32_t[]){1, 1, 2, 4}[draw() % 4];
        s.threads = (uint32_t[]){1, 2, 4}[draw() % 3];
        s.slots = 2 << draw() % 2;
        s.slot_bytes = 256;
        s.first = draw() % 3 ? 0 : 2 * PC_LL_FLAG_PERIOD - draw() % 8;
        s.in_graph = draw() % 2;
        s.timeout_ns = 60u * 1000000000ull;
        s.remote.assign(s.size, std::vector<bool>(s.size));
        for (uint32_t a = 0; a < s.size; a++)
            for (uint32_t b = 0; b < a; b++)
                s.remote[a][b] = s.remote[b][a] = draw() % 3 == 0;
        world w(s);
        std::vector<std::thread> threads, proxies;
        for (uint32_t r = 0; r < s.size; r++)
            proxies.emplace_back([&w, r] { w.carry(r); });
        bool well = true;
        for (uint64_t l = 1; well && l <= 3; l++) {
            std::vector<message> messages = drawn_messages(s, draw);
            const uint32_t refused = draw() % 2; /* by both ends */
            for (uint32_t r = 0; r < s.size; r++)
                for (uint32_t p = 0; p < s.size; p++) {
                    w.ranks[r].peers[p].refused[r < p] += refused;
                    w.ranks[p].peers[r].refused[!(r < p)] += refused;
                }
            for (uint32_t r = 0; r < s.size; r++)
                prepare(w, r, messages, draw);
            for (uint32_t r = 0; r < s.size; r++)
                launch(w, threads, r);
            join(threads);
            well = right(w, messages, l);
        }
        w.over = true;
        join(proxies);
        if (!well) {
            fprintf(stderr, "seed %u, case %u: wrong\n", seed, i);
            return 1;
        }
    }
    printf("%u cases\n", cases);
    return 0;
}

/* Rank 0 sends to the others, and they to it, more than there are slots for. */
static int fail(const std::string &how, uint32_t seed)
{
    std::mt19937 draw(seed);
    setup s = {};
    s.size = 3, s.nblocks = 2, s.threads = 4, s.slots = 2, s.slot_bytes = 256;
    const bool waits = how == "alone";
    s.timeout_ns = waits ? 500000000u : 60u * 1000000000ull;
    s.remote.assign(s.size, std::vector<bool>(s.size));
    world w(s);
    std::vector<message> messages;
    for (uint32_t p = 1; p < s.size; p++)
        for (uint32_t back = 0; back < 2; back++)
            messages.push_back({back ? p : 0, back ? 0 : p, 1, bytes(5000)});
    for (uint32_t r = 0; r < s.size; r++)
        prepare(w, r, messages, draw);
    const bool comes = how == "length" || how == "dtype" || how == "refused" || how == "call";
    for (uint32_t i = 0; i < w.ranks[0].args.n; i++) {
        pc_kernel_transfer &t = w.ranks[0].args.transfers[i];
        if (t.direction != PC_DIRECTION_SEND)
            continue;
        if (how == "length")
            t.signature = signature_of(5, 4999);
        else if (how == "dtype")
            t.signature = signature_of(6, 5000);
        else if (how == "refused")
            t.refused = 1;
    }
    if (how == "call")
        w.ranks[0].args.call = 7;
    for (uint32_t p = 1; p < s.size; p++) {
        if (how == "packets") { /* the first packet of message 0: flag 1 */
            w.at(0, p, 0).packets[1] = (uint64_t)1 << 32 | 99;
        } else if (how == "ready") {
            w.ranks[p].ready[1].count = 1; /* of rank 0, launch 1 */
        }
    }
    std::vector<std::thread> threads;
    for (uint32_t r = comes ? 0 : 1; r < s.size; r++)
        launch(w, threads, r);
    if (how == "abort" || how == "gone") { /* while they spin */
        while (__atomic_load_n(&pc_simt_spins, __ATOMIC_RELAXED) < 2000)
            std::this_thread::yield();
        for (uint32_t r = 1; r < s.size; r++) {
            if (how == "abort")
                __atomic_store_n(&w.ranks[r].control->abort, 1, __ATOMIC_RELAXED);
            else
                __atomic_store_n(&w.ranks[r].peers[0].gone, 1, __ATOMIC_RELAXED);
        }
    }
    if (comes) { /* rank 0, which has nothing to complain of but that it waits, is told to stop */
        while (!__atomic_load_n(&w.ranks[1].control->error.code, __ATOMIC_ACQUIRE)
               || !__atomic_load_n(&w.ranks[2].control->error.code, __ATOMIC_ACQUIRE))
            std::this_thread::yield();
        __atomic_store_n(&w.ranks[0].control->abort, 1, __ATOMIC_RELAXED);
    }
    join(threads);
    for (uint32_t r = 1; r < s.size; r++) {
        const pc_device_error &e = w.ranks[r].control->error;
        printf("rank %u: code -%lu peer %u direction %u transfer %lx theirs %lx tag %lx\n", r,
               e.code, e.peer, e.direction, e.transfer, e.theirs, e.tag);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const std::string verb = argc > 2 ? argv[1] : "";
    if (verb == "run" && argc > 3)
        return run((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]));
    return verb == "" ? 2 : fail(verb, (uint32_t)atoi(argv[2]));
}
