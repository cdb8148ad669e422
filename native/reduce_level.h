/* A template: every kernel, in vectors of WIDTH bytes. reduce.c includes it once per level, with
 *   LEVEL     the suffix of every name made here: V(name)
 *   TARGET    the attribute that lets the compiler use the level's instructions
 *   NARROWER  the level that folds what is shorter than a vector; the narrowest has none
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

/* One vector of memory on its way through a fold. The 16-bit floats need both parts, as their
 * values are float32 between the ops. */
struct V(acc) {
    V(u32) a, b;
};

/* What tells one kernel from another. A fold of three is close(join(settle(join(open, open)),
 * open)): settle rounds between ops where close would round at the end. */
struct V(kind) {
    struct V(acc) (*open)(V(u32) memory);
    struct V(acc) (*join)(struct V(acc) x, struct V(acc) y);
    struct V(acc) (*settle)(struct V(acc) x);
    V(u32) (*close)(struct V(acc) x, uint32_t divisor);
};

#include "reduce_lanes.h"
#include "reduce_half.h"
#include "reduce_fold.h"

#define INTEGER(name, size, s, u)                                                                  \
    FOLD(name##_sum, size, V(raw), V(add_##u), V(keep), V(divided_##s))                            \
    FOLD(name##_prod, size, V(raw), V(mul_##u), V(keep), V(bits))                                  \
    FOLD(name##_min, size, V(raw), V(min_##s), V(keep), V(bits))                                   \
    FOLD(name##_max, size, V(raw), V(max_##s), V(keep), V(bits))
#define FLOAT(name, size, f, i)                                                                    \
    FOLD(name##_sum, size, V(raw), V(add_##f), V(keep), V(scaled_##f))                             \
    FOLD(name##_prod, size, V(raw), V(mul_##f), V(keep), V(scaled_##f))                            \
    FOLD(name##_min, size, V(low_##name), V(min_##i), V(keep), V(lowest_##name))                   \
    FOLD(name##_max, size, V(high_##name), V(max_##i), V(keep), V(highest_##name))
#define HALF(name)                                                                                 \
    FOLD(name##_sum, 2, V(open_##name), V(add_half), V(settle_##name), V(close_##name))            \
    FOLD(name##_prod, 2, V(open_##name), V(mul_half), V(settle_##name), V(close_##name))           \
    FOLD(name##_min, 2, V(low_##name), V(min_i16), V(keep), V(lowest_##name))                      \
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

#define ROW(name) {V(name##_sum), V(name##_prod), V(name##_min), V(name##_max)}
static const pc_fold_fn V(folds)[PC_NDTYPES][4] = {
    ROW(float64), ROW(float32), ROW(float16), ROW(bfloat16), ROW(int8),
    ROW(uint8),   ROW(int32),   ROW(uint32),  ROW(int64),    ROW(uint64),
};
#undef LEVEL
#undef WIDTH
#undef TARGET
#undef NARROWER
#undef PART
#undef LONG
#undef FOLD
#undef V
#undef KERNEL
#undef JOIN
#undef SELECT
#undef ADD_MUL
#undef MIN_MAX
#undef DIVIDED
#undef FLOATING
#undef ORDERED
#undef JOIN_PARTS
#undef CLOSE_HALF
#undef INTEGER
#undef FLOAT
#undef HALF
#undef ROW
