/* The fold of a REDUCE_COPY on the CPU: dst = ((src0 op src1) op src2) ... over elements.
 *
 * The bits of a result depend on nothing but the bits of the operands: not on the CPU, not on
 * count, alignment or streaming.
 *   float16, bfloat16  computed in float32 and rounded to nearest even after each op
 *   denormals          kept (as long as the caller's MXCSR or FPCR says so: that is its default)
 *   NaN                a result that is NaN is the quiet NaN with sign 0 and payload 0, since
 *                      which operand's payload survives an addition differs between compilers
 *   min, max           any NaN operand makes NaN; -0 < +0
 *   integers           wrap; an average truncates towards zero, as C does
 * One source and no divisor is a copy, which keeps every bit. */
#ifndef PC_REDUCE_H
#define PC_REDUCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* 1 to 8 sources of count elements, 1 or 2 destinations. A destination is one of the sources or
 * overlaps none. Nothing has to be aligned; what is 64-byte aligned is fastest.
 * divisor: a sum is divided by it at the end, unless it is 0; 0 with every other op.
 * stream: bit j asks for non-temporal stores to destination j: for what exceeds the caches and is
 * not read again soon, as waiting for these stores costs 100 to 400 ns at the end. They are then
 * ordered like any other. Ignored where a destination is not a multiple of the element's size away
 * from a vector's alignment (with two, from the other's). */
typedef void (*pc_fold_fn)(void *const dst[], uint32_t ndst, const void *const src[], uint32_t nsrc,
                           size_t count, uint32_t divisor, uint32_t stream);

/* NULL for a dtype or op (enum pc_dtype, enum pc_reduce_op) that does not exist. */
pc_fold_fn pc__fold(uint32_t dtype, uint32_t op);

/* The SIMD instructions that pc__fold chose for this CPU, for people to read. */
const char *pc__cpu_features(void);

/* Copies as memcpy does, but for what `rep movsb` makes of it on AMD's Zen 3 and 4 where the
 * destination lies a few bytes further on in its page than the source in its own. At 1 to 15 bytes
 * it moves 2.7 GB/s and not 44, as do any loads and stores that ascend if the stores miss the
 * caches: each load then seems to need what was stored just before. Descending, none does. At 16
 * to 31 bytes, where an array that malloc maps lies beside a slot, it takes twice as long to read
 * what another core stored past the caches; vectors that ascend do not. */
#define PC_CRAWLS_FROM 2048u
void pc__copy_descending(void *to, const void *from, size_t nbytes);
void pc__copy_ascending(void *to, const void *from, size_t nbytes);

static inline void pc__copy(void *to, const void *from, size_t nbytes)
{
    uintptr_t ahead = ((uintptr_t)to - (uintptr_t)from) & 4095;
    if (nbytes < PC_CRAWLS_FROM || ahead == 0 || ahead >= 32)
        memcpy(to, from, nbytes);
    else if (ahead < 16)
        pc__copy_descending(to, from, nbytes);
    else
        pc__copy_ascending(to, from, nbytes);
}

/* Copies by non-temporal stores, to where the cached lines lie with another core; see pc_fold_fn.
 */
void pc__copy_streamed(void *to, const void *from, size_t nbytes);

/* For tests: choose the kernels of this level (0: any CPU of this architecture), or the best ones
 * again (-1). Returns the level in force; -1, changing nothing, if this CPU lacks it. */
int pc__reduce_level(int level);
#endif
