/* The CUDA target of the interpreter: threads and barriers of a block, memory accesses that other
 * GPUs, the host and NICs see, and time. For sm_70 and later, compiled by NVRTC or nvcc.
 *
 * One thread, the leader, publishes counts behind a fence of system scope and acquires those of
 * others; a barrier extends both to the block, as causality order is transitive. What moves 16
 * bytes at a time, and packets, is relaxed at system scope, so that no load is served by a line of
 * L1 that an earlier message left there; what moves less is weak, and served rightly since the
 * leader's acquire forgets L1. */
#ifndef PC_TARGET_CUDA_H
#define PC_TARGET_CUDA_H
#include <stdint.h>
#include "vm/vm.h"

#define PC_DEVICE_FN static __device__ __forceinline__ /* of functions, and of static members */
#define PC_DEVICE_MEMBER __device__ __forceinline__    /* of members of an object */

/* Threads of a warp. A block has a multiple of it. */
#define PC_WARP 32u

/* On Blackwell the compiler needs more registers. */
#if __CUDA_ARCH__ >= 1000
#define PC_TARGET_DEEP_BYTES 1
#define PC_TARGET_LL_PACKETS 8
#define PC_TARGET_DEEP_AVERAGES 2
#endif
#if __CUDA_ARCH__ >= 1200
#undef PC_TARGET_LL_PACKETS
#define PC_TARGET_LL_PACKETS 4
#define PC_TARGET_DEEP_WORDS 3
#endif

struct alignas(16) pc_vector {
    uint64_t x, y;
};

/* The thread's index in the block. Volatile: else the compiler keeps what is computed from it in
 * registers for the whole kernel. */
PC_DEVICE_FN uint32_t pc__thread(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

PC_DEVICE_FN uint32_t pc__threads(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(x));
    return x;
}

/* A barrier of the block; true for all its threads if any passed `dead`. */
template <class Block> PC_DEVICE_FN bool pc__barrier(Block *, bool dead)
{
    return __syncthreads_or(dead);
}

/* A barrier of the first warp. */
template <class Block> PC_DEVICE_FN void pc__warp_barrier(Block *)
{
    __syncwarp();
}

PC_DEVICE_FN uint64_t pc__load_acquire(const uint64_t *from)
{
    uint64_t x;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

PC_DEVICE_FN void pc__store_release(uint64_t *to, uint64_t x)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

PC_DEVICE_FN uint32_t pc__load_relaxed32(const uint32_t *from)
{
    uint32_t x;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

PC_DEVICE_FN uint64_t pc__load_relaxed64(const uint64_t *from)
{
    uint64_t x;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

PC_DEVICE_FN void pc__store_relaxed64(uint64_t *to, uint64_t x)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

/* What the threads of this block stored before its last barrier comes before what this thread
 * stores next, for whoever acquires that. */
template <class Block> PC_DEVICE_FN void pc__fence(Block *)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* A count behind a fence, and one that says that data was read. */
template <class Block> PC_DEVICE_FN void pc__store_published(Block *, uint64_t *to, uint64_t x)
{
    pc__store_relaxed64(to, x);
}

template <class Block> PC_DEVICE_FN void pc__store_acknowledged(Block *, uint64_t *to, uint64_t x)
{
    pc__store_relaxed64(to, x);
}

/* Counts between blocks of one kernel. */
PC_DEVICE_FN uint64_t pc__load_acquire_local(const uint64_t *from)
{
    uint64_t x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

PC_DEVICE_FN void pc__store_release_local(uint64_t *to, uint64_t x)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

/* Atomic compare-and-swap of 0 to x; true for the thread that did it. */
PC_DEVICE_FN bool pc__claim(uint32_t *at, uint32_t x)
{
    uint32_t old;
    asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], 0, %2;"
                 : "=r"(old)
                 : "l"(at), "r"(x)
                 : "memory");
    return old == 0;
}

/* 16 aligned bytes of data. */
PC_DEVICE_FN pc_vector pc__load16(const pc_vector *from)
{
    pc_vector x;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(x.x), "=l"(x.y)
                 : "l"(from)
                 : "memory");
    return x;
}

PC_DEVICE_FN void pc__store16(pc_vector *to, pc_vector x)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(x.x), "l"(x.y)
                 : "memory");
}

/* An LL packet: 16 aligned bytes, seen whole or not at all. From PTX 8.3 on there is a scalar type
 * of that size, of which the memory model says so; the machine code is that of a vector. */
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 3)
PC_DEVICE_FN pc_vector pc__load_packet(const pc_vector *from)
{
    pc_vector x;
    asm volatile("{.reg .b128 whole;\n\t"
                 "ld.relaxed.sys.global.b128 whole, [%2];\n\tmov.b128 {%0, %1}, whole;}"
                 : "=l"(x.x), "=l"(x.y)
                 : "l"(from)
                 : "memory");
    return x;
}

PC_DEVICE_FN void pc__store_packet(pc_vector *to, pc_vector x)
{
    asm volatile("{.reg .b128 whole;\n\t"
                 "mov.b128 whole, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], whole;}" ::"l"(to),
                 "l"(x.x), "l"(x.y)
                 : "memory");
}
#else
PC_DEVICE_FN pc_vector pc__load_packet(const pc_vector *from)
{
    return pc__load16(from);
}

PC_DEVICE_FN void pc__store_packet(pc_vector *to, pc_vector x)
{
    pc__store16(to, x);
}
#endif

PC_DEVICE_FN uint64_t pc__clock_ns(void)
{
    uint64_t x;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x));
    return x;
}

/* Between two polls: long enough to leave memory bandwidth to others, short beside its latency. */
PC_DEVICE_FN void pc__relax(void)
{
    asm volatile("nanosleep.u32 20;");
}

/* Accesses to a multicast address, as PTX ISA 8.2 has them. Of later GPUs those that no NVSwitch
 * joins have them too, but not the registers to spare. */
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1100 \
    && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 2))
#define PC_TARGET_MULTIMEM

/* The host looks for this name in a module, to tell whether it has them. */
extern "C" __device__ const char pc_has_multimem = 1;

/* Orders accesses of this thread before it and after it that reach memory by different addresses.
 */
PC_DEVICE_FN void pc__fence_alias(void)
{
    asm volatile("fence.proxy.alias;" ::: "memory");
}

/* No bit is changed by the type, which vectors must have. */
PC_DEVICE_FN void pc__multimem_store16(char *to, pc_vector x)
{
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "f"(__uint_as_float((uint32_t)x.x)), "f"(__uint_as_float((uint32_t)(x.x >> 32))),
                 "f"(__uint_as_float((uint32_t)x.y)), "f"(__uint_as_float((uint32_t)(x.y >> 32)))
                 : "memory");
}

#define PC_FOLD_32(name) \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." name " %0, [%1];" \
                 : "=r"(x) \
                 : "l"(from) \
                 : "memory")
#define PC_FOLD_64(name) \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." name " %0, [%1];" \
                 : "=l"(x) \
                 : "l"(from) \
                 : "memory")
#define PC_FOLD_16(name) \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." name " {%0, %1, %2, %3}, [%4];" \
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) \
                 : "l"(from) \
                 : "memory")

/* An integer: there are no vectors of them. Sums wrap, so they have no sign. */
template <uint32_t dtype, uint32_t op> PC_DEVICE_FN uint32_t pc__multimem_fold4(const char *from)
{
    uint32_t x;
    if constexpr (op == PC_REDUCE_SUM || op == PC_REDUCE_AVG)
        PC_FOLD_32("add.u32");
    else if constexpr (dtype == PC_DTYPE_INT32 && op == PC_REDUCE_MIN)
        PC_FOLD_32("min.s32");
    else if constexpr (dtype == PC_DTYPE_INT32)
        PC_FOLD_32("max.s32");
    else if constexpr (op == PC_REDUCE_MIN)
        PC_FOLD_32("min.u32");
    else
        PC_FOLD_32("max.u32");
    return x;
}

template <uint32_t dtype, uint32_t op> PC_DEVICE_FN uint64_t pc__multimem_fold8(const char *from)
{
    uint64_t x;
    if constexpr (dtype == PC_DTYPE_FLOAT64)
        PC_FOLD_64("add.f64");
    else if constexpr (op == PC_REDUCE_SUM || op == PC_REDUCE_AVG)
        PC_FOLD_64("add.u64");
    else if constexpr (dtype == PC_DTYPE_INT64 && op == PC_REDUCE_MIN)
        PC_FOLD_64("min.s64");
    else if constexpr (dtype == PC_DTYPE_INT64)
        PC_FOLD_64("max.s64");
    else if constexpr (op == PC_REDUCE_MIN)
        PC_FOLD_64("min.u64");
    else
        PC_FOLD_64("max.u64");
    return x;
}

/* 16 bytes of all ranks, folded; sums of 16-bit floats are rounded once. */
template <class F, uint32_t dtype, uint32_t op>
PC_DEVICE_FN pc_vector pc__multimem_fold16(const char *from)
{
    pc_vector v;
    if constexpr (sizeof(typename F::word) == 8) {
        v.x = pc__multimem_fold8<dtype, op>(from);
        v.y = pc__multimem_fold8<dtype, op>(from + 8);
    } else {
        uint32_t x[4];
        if constexpr (dtype == PC_DTYPE_FLOAT32) {
            PC_FOLD_16("add.v4.f32");
        } else if constexpr (dtype == PC_DTYPE_FLOAT16) {
            PC_FOLD_16("add.acc::f32.v4.f16x2");
        } else if constexpr (dtype == PC_DTYPE_BFLOAT16) {
            PC_FOLD_16("add.acc::f32.v4.bf16x2");
        } else {
            for (uint32_t k = 0; k < 4; k++)
                x[k] = pc__multimem_fold4<dtype, op>(from + 4 * k);
        }
        v.x = x[0] | (uint64_t)x[1] << 32;
        v.y = x[2] | (uint64_t)x[3] << 32;
    }
    return v;
}
#undef PC_FOLD_32
#undef PC_FOLD_64
#undef PC_FOLD_16
#endif

/* 16-bit floats, rounded to nearest even; both of a word at once where the GPU can. A sum rounded
 * once equals one rounded to float32 first: that has more than twice the digits, and no sum of two
 * falls below the least denormal. The same holds for products of float16, which float32 holds. */
#define PC_TARGET_HALVES

PC_DEVICE_FN uint32_t pc__pack_float16(float low, float high)
{
    uint32_t word;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    asm("{.reg .b16 l, h;\n\t"
        "cvt.rn.f16.f32 l, %1;\n\tcvt.rn.f16.f32 h, %2;\n\tmov.b32 %0, {l, h};}"
        : "=r"(word)
        : "f"(low), "f"(high));
#endif
    return word;
}

PC_DEVICE_FN float pc__low_float16(uint32_t word)
{
    float x;
    asm("{.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.f32.f16 %0, l;}" : "=f"(x) : "r"(word));
    return x;
}

PC_DEVICE_FN float pc__high_float16(uint32_t word)
{
    float x;
    asm("{.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.f32.f16 %0, h;}" : "=f"(x) : "r"(word));
    return x;
}

#if __CUDA_ARCH__ >= 800
PC_DEVICE_FN uint32_t pc__pack_bfloat16(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
#else
/* A NaN must not be rounded: the carry could make an infinity of it, or a zero. */
PC_DEVICE_FN uint32_t pc__round_bfloat16(float value)
{
    uint32_t x = __float_as_uint(value);
    return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : x + 0x7fffu + (x >> 16 & 1);
}

PC_DEVICE_FN uint32_t pc__pack_bfloat16(float low, float high)
{
    return pc__round_bfloat16(low) >> 16 | (pc__round_bfloat16(high) & 0xffff0000u);
}
#endif

PC_DEVICE_FN uint32_t pc__add_float16(uint32_t a, uint32_t b)
{
    uint32_t word;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

PC_DEVICE_FN uint32_t pc__mul_float16(uint32_t a, uint32_t b)
{
    uint32_t word;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

PC_DEVICE_FN uint32_t pc__add_bfloat16(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 900
    uint32_t word;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
#else
    return pc__pack_bfloat16(__uint_as_float(a << 16) + __uint_as_float(b << 16),
                             __uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u));
#endif
}
#endif
