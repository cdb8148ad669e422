/* The template of all kernels, in vectors of WIDTH bytes. reduce.c includes it once per level, with
 *   LEVEL     the suffix of every name made here, V(name)
 *   UNROLL    the vectors that are in flight
 *   TARGET    the attribute that lets the compiler use the level's instructions
 *   NARROWER  the level that folds what is shorter than a vector, unless this one can
 *
 * Vectors are GNU C's: an operator works on each lane, a comparison gives lanes of all ones or all
 * zeros, and the compiler picks the instructions. */
#define V(name) PASTE(name, LEVEL)
#define KERNEL INLINE TARGET

typedef uint8_t V(u8) __attribute__((vector_size(WIDTH)));
typedef int8_t V(i8) __attribute__((vector_size(WIDTH)));
typedef uint16_t V(u16) __attribute__((vector_size(WIDTH)));
typedef int16_t V(i16) __attribute__((vector_size(WIDTH)));
typedef uint32_t V(u32) __attribute__((vector_size(WIDTH)));
typedef int32_t V(i32) __attribute__((vector_size(WIDTH)));
typedef uint64_t V(u64) __attribute__((vector_size(WIDTH)));
typedef int64_t V(i64) __attribute__((vector_size(WIDTH)));
typedef float V(f32) __attribute__((vector_size(WIDTH)));
typedef double V(f64) __attribute__((vector_size(WIDTH)));

/* The accumulator of a vector of memory. The 16-bit floats need both parts, as their values are
 * float32 between the ops. */
struct V(acc) {
    V(u32) a, b;
};

/* The functions that make a kernel. A fold of three is close(join(settle(join(open, open)), open)):
 * settle rounds between ops as close rounds at the end. */
struct V(kind) {
    struct V(acc) (*open)(V(u32) memory);
    struct V(acc) (*join)(struct V(acc) x, struct V(acc) y);
    struct V(acc) (*settle)(struct V(acc) x);
    V(u32) (*close)(struct V(acc) x, uint32_t divisor);
};

#include "reduce/reduce_lanes.h"
#include "reduce/reduce_half.h"
#include "reduce/reduce_fold.h"

#ifdef NARROWER
#define PART(name, size, nsrc) PASTE(name, NARROWER)(ARGUMENTS)
#else
#define PART(name, size, nsrc) \
    V(part)(&V(name##_kind), dst, ndst, src, nsrc, count * (size), divisor)
#endif

/* A kernel: a pc_fold_fn. Two sources, which is nearly every fold, have a loop of their own; and
 * the loops are separate functions, so that nothing is set up for a few elements. */
#define FOLD(name, size, ...) \
    static const struct V(kind) V(name##_kind) = {__VA_ARGS__}; \
    static __attribute__((noinline)) TARGET void V(name##_two)(PARAMETERS) \
    { \
        const void *const from[2] = {src[0], src[nsrc - 1]}; \
        V(whole)(&V(name##_kind), size, dst, ndst, from, 2, count * (size), divisor, stream); \
    } \
    static __attribute__((noinline)) TARGET void V(name##_many)(PARAMETERS) \
    { \
        if (count * (size) < WIDTH) \
            PART(name, size, nsrc); \
        else \
            V(whole)(&V(name##_kind), size, dst, ndst, src, nsrc, count * (size), divisor, \
                     stream); \
    } \
    static TARGET void V(name)(PARAMETERS) \
    { \
        if (nsrc == 2 && count * (size) < WIDTH) \
            PART(name, size, 2); \
        else if (nsrc == 2) \
            V(name##_two)(ARGUMENTS); \
        else if (nsrc == 1 && !divisor) \
            V(copy)(dst, ndst, src, count * (size), stream); \
        else \
            V(name##_many)(ARGUMENTS); \
    }

static const struct V(kind) V(copy_kind) = {V(raw), NULL, V(keep), V(bits)};
static __attribute__((noinline)) TARGET void V(copy)(void *const dst[], uint32_t ndst,
                                                     const void *const src[], size_t nbytes,
                                                     uint32_t stream)
{
    if (ndst == 1 && dst[0] == src[0])
        return;
    if (ndst == 1 && !stream && nbytes >= COPY_BY_LIBC)
        pc__copy(dst[0], src[0], nbytes);
    else if (nbytes >= WIDTH)
        V(whole)(&V(copy_kind), 1, dst, ndst, src, 1, nbytes, 0, stream);
    else
#ifdef NARROWER
        PASTE(copy, NARROWER)(dst, ndst, src, nbytes, stream);
#else
        V(part)(&V(copy_kind), dst, ndst, src, 1, nbytes, 0);
#endif
}

/* The table, a row per dtype: open, join, settle, close of each op. The bits of a sum or product of
 * integers do not depend on the sign; an average's do. */
#define INTEGER(name, size, lanes, unsigned_lanes) \
    FOLD(name##_sum, size, V(raw), V(add_##unsigned_lanes), V(keep), V(divided_##lanes)) \
    FOLD(name##_prod, size, V(raw), V(mul_##unsigned_lanes), V(keep), V(bits)) \
    FOLD(name##_min, size, V(raw), V(min_##lanes), V(keep), V(bits)) \
    FOLD(name##_max, size, V(raw), V(max_##lanes), V(keep), V(bits))
#define FLOAT(name, size, lanes, integer_lanes) \
    FOLD(name##_sum, size, V(raw), V(add_##lanes), V(keep), V(number_##lanes)) \
    FOLD(name##_prod, size, V(raw), V(mul_##lanes), V(keep), V(number_##lanes)) \
    FOLD(name##_min, size, V(low_##name), V(min_##integer_lanes), V(keep), V(lowest_##name)) \
    FOLD(name##_max, size, V(high_##name), V(max_##integer_lanes), V(keep), V(highest_##name))
#define HALF(name) \
    FOLD(name##_sum, 2, V(open_##name), V(add_half), V(settle_##name), V(close_##name)) \
    FOLD(name##_prod, 2, V(open_##name), V(mul_half), V(settle_##name), V(close_##name)) \
    FOLD(name##_min, 2, V(low_##name), V(min_i16), V(keep), V(lowest_##name)) \
    FOLD(name##_max, 2, V(high_##name), V(max_i16), V(keep), V(highest_##name))
FLOAT(float64, 8, f64, i64)
FLOAT(float32, 4, f32, i32)
HALF(float16)
HALF(bfloat16)
INTEGER(int8, 1, i8, u8)
INTEGER(uint8, 1, u8, u8)
INTEGER(int32, 4, i32, u32)
INTEGER(uint32, 4, u32, u32)
INTEGER(int64, 8, i64, u64)
INTEGER(uint64, 8, u64, u64)

#define ROW(code, name) \
    [PC_DTYPE_##code] = {[PC_REDUCE_SUM] = V(name##_sum), \
                         [PC_REDUCE_PROD] = V(name##_prod), \
                         [PC_REDUCE_MIN] = V(name##_min), \
                         [PC_REDUCE_MAX] = V(name##_max), \
                         [PC_REDUCE_AVG] = V(name##_sum)},
static const pc_fold_fn V(folds)[PC_NDTYPES][PC_NREDUCE] = {
    ROW(FLOAT64, float64) ROW(FLOAT32, float32) ROW(FLOAT16, float16) ROW(BFLOAT16, bfloat16)
    ROW(INT8, int8) ROW(UINT8, uint8) ROW(INT32, int32) ROW(UINT32, uint32) ROW(INT64, int64)
    ROW(UINT64, uint64)};

#undef V
#undef KERNEL
#undef LEVEL
#undef WIDTH
#undef UNROLL
#undef TARGET
#undef NARROWER
/* of reduce_lanes.h */
#undef JOIN
#undef SELECT
#undef ADD_MUL
#undef MIN_MAX
#undef DIVIDED
#undef NUMBER
#undef ORDERED
/* of reduce_half.h */
#undef JOIN_PARTS
#undef CLOSE_HALF
/* of this file */
#undef PART
#undef FOLD
#undef INTEGER
#undef FLOAT
#undef HALF
#undef ROW
