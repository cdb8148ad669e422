/* Chooses the kernels for this CPU. */
#include "reduce/reduce.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include "isa.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#ifdef __FAST_MATH__
#error "NaN, -0 and denormals count: not with -ffast-math"
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 4")
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define PARAMETERS \
    void *const dst[], uint32_t ndst, const void *const src[], uint32_t nsrc, size_t count, \
        uint32_t divisor, uint32_t stream
#define ARGUMENTS dst, ndst, src, nsrc, count, divisor, stream

/* From this length on libc copies faster: its stores need not fetch the lines that they overwrite,
 * and a slot's lines lie in another core's cache. */
#define COPY_BY_LIBC (4u << 10)

#define LEVEL plain
#define WIDTH 16
#define UNROLL 2
#define TARGET
#include "reduce/reduce_level.h"

#if defined(__x86_64__)
#define LEVEL avx2
#define WIDTH 32
#define UNROLL 4
#define TARGET __attribute__((target("avx2,f16c")))
#define NARROWER plain
#include "reduce/reduce_level.h"

#define LEVEL avx512
#define WIDTH 64
#define UNROLL 4
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#include "reduce/reduce_level.h"
#endif

static const struct level {
    const char *name;
    const pc_fold_fn (*folds)[PC_NREDUCE];
} levels[] = {
#if defined(__x86_64__)
    {"sse2", folds_plain},
    {"avx2 (f16c)", folds_avx2},
    {"avx512 (f16c)", folds_avx512},
#else
    {"plain", folds_plain},
#endif
};

static int find_best_level(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    /* By cpuid, as gcc before 11 does not know f16c. */
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (!f16c || !__builtin_cpu_supports("avx2"))
        return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                   && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 2
               : 1;
#else
    return 0;
#endif
}

/* Found once: cpuid takes 10 us in a virtual machine, whose host answers it. */
static int best_level(void)
{
    static _Atomic int found = -1;
    int best = atomic_load_explicit(&found, memory_order_relaxed);
    if (best < 0)
        atomic_store_explicit(&found, best = find_best_level(), memory_order_relaxed);
    return best;
}

static int forced_level = -1;

static int level(void)
{
    return forced_level < 0 ? best_level() : forced_level;
}

int pc__reduce_level(int wanted)
{
    if (wanted > best_level())
        return -1;
    forced_level = wanted;
    return level();
}

const char *pc__cpu_features(void)
{
    return levels[level()].name;
}

pc_fold_fn pc__fold(uint32_t dtype, uint32_t op)
{
    return dtype < PC_NDTYPES && op < PC_NREDUCE ? levels[level()].folds[dtype][op] : NULL;
}

struct block {
    char bytes[128];
};

void pc__copy_ascending(void *to, const void *from, size_t nbytes)
{
    size_t at = 0;
    for (struct block block; at + sizeof block <= nbytes; at += sizeof block) {
        memcpy(&block, (const char *)from + at, sizeof block);
        memcpy((char *)to + at, &block, sizeof block);
    }
    memcpy((char *)to + at, (const char *)from + at, nbytes - at);
}

void pc__copy_descending(void *to, const void *from, size_t nbytes)
{
    for (struct block block; nbytes >= sizeof block;) {
        nbytes -= sizeof block;
        memcpy(&block, (const char *)from + nbytes, sizeof block);
        memcpy((char *)to + nbytes, &block, sizeof block);
    }
    memcpy(to, from, nbytes);
}

void pc__copy_streamed(void *to, const void *from, size_t nbytes)
{
    pc__fold(PC_DTYPE_UINT8, PC_REDUCE_SUM)(&to, 1, &from, 1, nbytes, 0, 1);
}
