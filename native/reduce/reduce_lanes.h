/* Part of the template reduce_level.h: dtypes whose lanes are as wide as the dtype. */

KERNEL struct V(acc) V(raw)(V(u32) memory)
{
    return (struct V(acc)){.a = memory};
}

KERNEL struct V(acc) V(keep)(struct V(acc) x)
{
    return x;
}

KERNEL V(u32) V(bits)(struct V(acc) x, uint32_t divisor)
{
    (void)divisor;
    return x.a;
}

#define JOIN(name, lanes, value) \
    KERNEL struct V(acc) V(name)(struct V(acc) x, struct V(acc) y) \
    { \
        V(lanes) a = (V(lanes))x.a, b = (V(lanes))y.a; \
        return (struct V(acc)){.a = (V(u32))(value)}; \
    }
/* a where mask is all ones, b where it is zero; any types of one size. */
#define SELECT(mask, a, b) (((V(u32))(a) & (V(u32))(mask)) | ((V(u32))(b) & ~(V(u32))(mask)))

#define ADD_MUL(lanes) JOIN(add_##lanes, lanes, a + b) JOIN(mul_##lanes, lanes, a * b)
ADD_MUL(u8)
ADD_MUL(u32)
ADD_MUL(u64)
ADD_MUL(f32)
ADD_MUL(f64)

#define MIN_MAX(lanes) \
    JOIN(min_##lanes, lanes, SELECT(a < b, a, b)) JOIN(max_##lanes, lanes, SELECT(a > b, a, b))
MIN_MAX(i8)
MIN_MAX(u8)
MIN_MAX(i16)
MIN_MAX(i32)
MIN_MAX(u32)
MIN_MAX(i64)
MIN_MAX(u64)

/* Ends a sum of integers. The division works on a copy of the lanes, so that the others stay in
 * registers. */
#define DIVIDED(lanes, type, wide) \
    static __attribute__((noinline)) TARGET void V(divide_##lanes)(type lane[], uint32_t divisor) \
    { \
        for (size_t i = 0; i < WIDTH / sizeof(type); i++) \
            lane[i] = (type)((wide)lane[i] / (wide)divisor); \
    } \
    KERNEL V(u32) V(divided_##lanes)(struct V(acc) x, uint32_t divisor) \
    { \
        if (divisor) { \
            V(lanes) copy = (V(lanes))x.a; \
            V(divide_##lanes)((type *)&copy, divisor); \
            x.a = (V(u32))copy; \
        } \
        return x.a; \
    }
/* In floating point where that is exact, as it is faster: a quotient that is no integer is further
 * from the next integer than rounding can move it. */
DIVIDED(i8, int8_t, float)
DIVIDED(u8, uint8_t, float)
DIVIDED(i32, int32_t, double)
DIVIDED(u32, uint32_t, double)
DIVIDED(i64, int64_t, int64_t)
DIVIDED(u64, uint64_t, uint64_t)

/* Ends a sum or product of floats. */
#define NUMBER(lanes, type, bits, nan) \
    KERNEL V(u32) V(number_##lanes)(struct V(acc) x, uint32_t divisor) \
    { \
        V(lanes) a = (V(lanes))x.a; \
        if (divisor) \
            a /= (type)divisor; \
        return SELECT(a != a, (V(bits)){0} + nan, a); \
    }
NUMBER(f32, float, u32, 0x7fc00000u)
NUMBER(f64, double, u64, 0x7ff8000000000000u)

/* The least and greatest of floats, as integers. With all other bits turned over where the sign is
 * set, the bits of floats are in the order of their values, -0 below +0, and NaNs lie beyond both
 * infinities. A shift round the circle of integers brings the NaNs of the wrong end to the right
 * one, where any of them prevails over every number. */
#define ORDERED(name, i, u, all, infinity, nans, quiet) \
    KERNEL V(u) V(turn_##name)(V(u) x) \
    { \
        return x ^ (V(u))(((V(i))x >> (8 * sizeof(x[0]) - 1)) & all); \
    } \
    KERNEL struct V(acc) V(low_##name)(V(u32) memory) \
    { \
        return (struct V(acc)){.a = (V(u32))(V(turn_##name)((V(u))memory) + nans)}; \
    } \
    KERNEL struct V(acc) V(high_##name)(V(u32) memory) \
    { \
        return (struct V(acc)){.a = (V(u32))(V(turn_##name)((V(u))memory) - nans)}; \
    } \
    KERNEL V(u32) V(lowest_##name)(struct V(acc) x, uint32_t divisor) \
    { \
        (void)divisor; \
        return SELECT((V(i))x.a < 2 * nans - all - 1, (V(u)){0} + quiet, \
                      V(turn_##name)((V(u))x.a - nans)); \
    } \
    KERNEL V(u32) V(highest_##name)(struct V(acc) x, uint32_t divisor) \
    { \
        (void)divisor; \
        return SELECT((V(i))x.a > infinity - nans, (V(u)){0} + quiet, \
                      V(turn_##name)((V(u))x.a + nans)); \
    }
ORDERED(float16, i16, u16, 0x7fff, 0x7c00, 0x3ff, 0x7e00)
ORDERED(bfloat16, i16, u16, 0x7fff, 0x7f80, 0x7f, 0x7fc0)
ORDERED(float32, i32, u32, 0x7fffffff, 0x7f800000, 0x7fffff, 0x7fc00000)
ORDERED(float64, i64, u64, INT64_MAX, 0x7ff0000000000000, 0xfffffffffffff, 0x7ff8000000000000)
