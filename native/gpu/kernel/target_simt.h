/* The SIMT target of the interpreter: host threads emulate the threads and barriers of a block, in
 * C++. For tests: ThreadSanitizer sees the races of a block.
 *
 * Data is accessed by plain loads and stores, so a race is a race; counts and LL packets are
 * atomic. */
#ifndef PC_TARGET_SIMT_H
#define PC_TARGET_SIMT_H
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <vector>

/* Of functions, and of static members. */
#define PC_DEVICE_FN static inline __attribute__((always_inline))
#define PC_DEVICE_MEMBER inline __attribute__((always_inline)) /* of members of an object */

/* Threads of a warp. A block has a multiple of it, or less. */
#define PC_WARP 2u

struct alignas(16) pc_vector {
    uint64_t x, y;
} __attribute__((may_alias));

/* A barrier of threads. */
class pc_simt_barrier
{
  public:
    explicit pc_simt_barrier(uint32_t threads = 1) : threads(threads)
    {
    }

    /* True for all if any passed `dead`. */
    bool meet(bool dead)
    {
        std::unique_lock<std::mutex> hold(lock);
        dying |= dead;
        if (++come == threads) {
            died = dying;
            dying = false;
            come = 0;
            turn++;
            moved.notify_all();
        } else {
            const uint64_t mine = turn;
            moved.wait(hold, [&] { return turn != mine; });
        }
        return died;
    }

  private:
    std::mutex lock;
    std::condition_variable moved;
    const uint32_t threads;
    uint32_t come = 0;
    uint64_t turn = 0;
    bool dying = false, died = false;
};

struct pc_simt_store {
    char *to; /* a multicast address */
    pc_vector x;
};

/* A running block; the test starts its threads, and each sets its index. */
struct pc_simt_block {
    explicit pc_simt_block(uint32_t threads)
        : threads(threads), all(threads), warp(threads < PC_WARP ? threads : PC_WARP), held(threads)
    {
    }

    const uint32_t threads;
    pc_simt_barrier all, warp;                    /* barriers: of the block, of its first warp */
    std::vector<std::vector<pc_simt_store>> held; /* of each thread: what no fence has let go */
    std::atomic<bool> fenced{false};
};

struct pc_simt_thread {
    pc_simt_block *block;
    uint32_t index;
    uint32_t spins;
    bool fenced; /* by a fence since the last barrier */
};

inline thread_local pc_simt_thread pc_simt_self;

static inline void pc_simt_enter(pc_simt_block *block, uint32_t index)
{
    pc_simt_self = pc_simt_thread{block, index, 0, false};
}

PC_DEVICE_FN uint32_t pc__thread(void)
{
    return pc_simt_self.index;
}

PC_DEVICE_FN uint32_t pc__threads(void)
{
    return pc_simt_self.block->threads;
}

/* A barrier of the block; true for all its threads if any passed `dead`. */
template <class Block> PC_DEVICE_FN bool pc__barrier(Block *, bool dead)
{
    pc_simt_self.fenced = false;
    return pc_simt_self.block->all.meet(dead);
}

/* A barrier of the first warp. */
template <class Block> PC_DEVICE_FN void pc__warp_barrier(Block *)
{
    pc_simt_self.block->warp.meet(false);
}

PC_DEVICE_FN uint64_t pc__load_acquire(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

PC_DEVICE_FN void pc__store_release(uint64_t *to, uint64_t x)
{
    __atomic_store_n(to, x, __ATOMIC_RELEASE);
}

PC_DEVICE_FN uint32_t pc__load_relaxed32(const uint32_t *from)
{
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

PC_DEVICE_FN uint64_t pc__load_relaxed64(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

PC_DEVICE_FN void pc__store_relaxed64(uint64_t *to, uint64_t x)
{
    __atomic_store_n(to, x, __ATOMIC_RELAXED);
}

/* ThreadSanitizer knows no fences: a store behind one, with no barrier between them, releases. */
template <class Block> PC_DEVICE_FN void pc__fence(Block *)
{
    pc_simt_self.fenced = true;
}

template <class Block> PC_DEVICE_FN void pc__store_published(Block *, uint64_t *to, uint64_t x)
{
    __atomic_store_n(to, x, pc_simt_self.fenced ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}

/* On a GPU a load has been answered before its value is stored, and so before the barrier that
 * comes before this; C++ promises no such thing. */
template <class Block> PC_DEVICE_FN void pc__store_acknowledged(Block *, uint64_t *to, uint64_t x)
{
    __atomic_store_n(to, x, __ATOMIC_RELEASE);
}

/* Counts between blocks of one kernel. */
PC_DEVICE_FN uint64_t pc__load_acquire_local(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

PC_DEVICE_FN void pc__store_release_local(uint64_t *to, uint64_t x)
{
    __atomic_store_n(to, x, __ATOMIC_RELEASE);
}

/* Atomic compare-and-swap of 0 to x; true for the thread that did it. */
PC_DEVICE_FN bool pc__claim(uint32_t *at, uint32_t x)
{
    uint32_t old = 0;
    return __atomic_compare_exchange_n(at, &old, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* 16 aligned bytes of data. */
PC_DEVICE_FN pc_vector pc__load16(const pc_vector *from)
{
    return *from;
}

PC_DEVICE_FN void pc__store16(pc_vector *to, pc_vector x)
{
    *to = x;
}

/* An LL packet: 16 aligned bytes, seen whole or not at all. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
/* GCC has a call of libatomic for these, which not every machine has; whatever has AVX makes
 * aligned accesses of 16 bytes whole. */
PC_DEVICE_FN pc_vector pc__load_packet(const pc_vector *from)
{
    pc_vector x;
    __asm__ volatile("movdqa %1, %%xmm0\n\tmovdqu %%xmm0, %0"
                     : "=m"(x)
                     : "m"(*from)
                     : "xmm0", "memory");
    return x;
}

PC_DEVICE_FN void pc__store_packet(pc_vector *to, pc_vector x)
{
    __asm__ volatile("movdqu %1, %%xmm0\n\tmovdqa %%xmm0, %0"
                     : "=m"(*to)
                     : "m"(x)
                     : "xmm0", "memory");
}
#else
PC_DEVICE_FN pc_vector pc__load_packet(const pc_vector *from)
{
    pc_vector x;
    const unsigned __int128 whole
        = __atomic_load_n((const unsigned __int128 *)from, __ATOMIC_RELAXED);
    memcpy(&x, &whole, sizeof x);
    return x;
}

PC_DEVICE_FN void pc__store_packet(pc_vector *to, pc_vector x)
{
    unsigned __int128 whole;
    memcpy(&whole, &x, sizeof x);
    __atomic_store_n((unsigned __int128 *)to, whole, __ATOMIC_RELAXED);
}
#endif

/* ---- multicast addresses ----------------------------------------------------------------------
 *
 * A range of addresses at which nothing is mapped, so that an access of any other kind dies, and
 * the same range of each member's memory. It is played as if each alias had a cache of its own: a
 * block has old data before its first alias fence, and its stores are seen behind the next one. */
struct pc_simt_multicast {
    pc_simt_multicast *next;
    char *at;
    uint64_t nbytes;
    uint32_t nmembers;
    char *members[64];
    void *user;                           /* of resolve */
    bool (*resolve)(pc_simt_multicast *); /* fills members in, when first used; or NULL */
};

inline std::atomic<pc_simt_multicast *> pc_simt_multicasts; /* only ever prepended to */

static inline const pc_simt_multicast *pc_simt_multicast_of(const char *address)
{
    for (pc_simt_multicast *m = pc_simt_multicasts; m != nullptr; m = m->next)
        if (m->nbytes && address >= m->at && address < m->at + m->nbytes) {
            if (((uintptr_t)address & 15) == 0 && (m->resolve == nullptr || m->resolve(m)))
                return m;
        }
    abort(); /* as a fault of the GPU would end the context */
}

/* Units of 16 bytes that were folded, and stored: tests so know that the address is used. */
inline std::atomic<uint64_t> pc_simt_folded, pc_simt_stored;

#define PC_TARGET_MULTIMEM

PC_DEVICE_FN void pc__fence_alias(void)
{
    pc_simt_block *block = pc_simt_self.block;
    block->fenced.store(true, std::memory_order_relaxed); /* which orders no threads */
    if (pc_simt_self.index != 0) /* only the first one fences behind a barrier */
        return;
    for (std::vector<pc_simt_store> &stores : block->held) {
        for (const pc_simt_store &s : stores) {
            const pc_simt_multicast *m = pc_simt_multicast_of(s.to);
            for (uint32_t k = 0; k < m->nmembers; k++)
                *(pc_vector *)(m->members[k] + (s.to - m->at)) = s.x;
        }
        stores.clear();
    }
}

PC_DEVICE_FN void pc__multimem_store16(char *to, pc_vector x)
{
    pc_simt_self.block->held[pc_simt_self.index].push_back({to, x});
    pc_simt_stored.fetch_add(1, std::memory_order_relaxed);
}

/* Folds from the last member to the first: a switch promises no order. */
template <class F, uint32_t, uint32_t> PC_DEVICE_FN pc_vector pc__multimem_fold16(const char *from)
{
    typedef typename F::word word;
    const pc_simt_multicast *m = pc_simt_multicast_of(from);
    word x[16 / sizeof(word)], y[16 / sizeof(word)];
    pc_vector v = {~(uint64_t)0x5a, 0x5a5a};
    pc_simt_folded.fetch_add(1, std::memory_order_relaxed);
    if (!pc_simt_self.block->fenced.load(std::memory_order_relaxed))
        return v;
    for (uint32_t k = m->nmembers; k-- > 0;) {
        v = *(const pc_vector *)(m->members[k] + (from - m->at));
        memcpy(y, &v, sizeof y);
        for (uint32_t u = 0; u < 16 / sizeof(word); u++)
            x[u] = k + 1 == m->nmembers ? F::open(y[u]) : F::join(x[u], F::open(y[u]));
    }
    memcpy(&v, x, sizeof v);
    return v;
}

PC_DEVICE_FN uint64_t pc__clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Roughly how often threads have polled in vain: tests so know that a kernel spins. */
inline uint64_t pc_simt_spins;

/* Threads outnumber cores: yield to the one that is waited for. */
PC_DEVICE_FN void pc__relax(void)
{
    if (++pc_simt_self.spins % 8 != 0)
        return;
    __atomic_fetch_add(&pc_simt_spins, 8, __ATOMIC_RELAXED);
    sched_yield();
}
#endif
