/* 16-bit floats in folds on a GPU: two side by side in a word, rounded to nearest even.
 *
 * Common to SIMT and CUDA. A target with instructions for the functions under PC_TARGET_HALVES
 * defines that macro and those functions. */
#ifndef PC_KERNEL_HALF_H
#define PC_KERNEL_HALF_H
#include "vm/vm.h"

#if defined(__FAST_MATH__)
#error "NaN, -0 and denormals count: not with -ffast-math"
#endif

/* A bit cast; both copies compile to nothing. */
template <class To, class From> PC_DEVICE_FN To pc__bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    union {
        From from;
        To to;
    } both;
    both.from = from;
    return both.to;
}

#if !defined(PC_TARGET_HALVES)
/* Rounds to nearest even. A NaN must not be rounded: the carry could make it infinity or zero. */
PC_DEVICE_FN uint32_t pc__narrow_bfloat16(float value)
{
    uint32_t x = pc__bits<uint32_t>(value);
    if ((x & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0u;
    return (x + 0x7fffu + (x >> 16 & 1)) >> 16;
}

PC_DEVICE_FN uint32_t pc__pack_bfloat16(float low, float high)
{
    return pc__narrow_bfloat16(low) | pc__narrow_bfloat16(high) << 16;
}

PC_DEVICE_FN float pc__widen_float16(uint32_t x)
{
    /* Shifted into place the exponent is 112 too small, which the product mends. */
    float value = pc__bits<float>((x & 0x7fffu) << 13) * 5192296858534827628530496329220096.0f;
    uint32_t top = value >= 65536.0f ? 0x7f800000u : 0u;
    return pc__bits<float>(pc__bits<uint32_t>(value) | top | (x & 0x8000u) << 16);
}

PC_DEVICE_FN uint32_t pc__narrow_float16(float value)
{
    uint32_t x = pc__bits<uint32_t>(value), sign = x >> 16 & 0x8000u, size = x & 0x7fffffffu;
    if (size > 0x7f800000u)
        return 0x7e00u;
    if (size >= 0x47800000u)
        return sign | 0x7c00u;
    if (size < 0x38800000u) /* the last bit of a half and less is float16's least denormal */
        return sign | (pc__bits<uint32_t>(pc__bits<float>(size) + 0.5f) - 0x3f000000u);
    return sign | (size - (112u << 23) + (0xfffu + (size >> 13 & 1))) >> 13;
}

PC_DEVICE_FN uint32_t pc__pack_float16(float low, float high)
{
    return pc__narrow_float16(low) | pc__narrow_float16(high) << 16;
}

PC_DEVICE_FN float pc__low_float16(uint32_t word)
{
    return pc__widen_float16(word & 0xffffu);
}

PC_DEVICE_FN float pc__high_float16(uint32_t word)
{
    return pc__widen_float16(word >> 16);
}

PC_DEVICE_FN uint32_t pc__add_float16(uint32_t a, uint32_t b)
{
    return pc__pack_float16(pc__low_float16(a) + pc__low_float16(b),
                            pc__high_float16(a) + pc__high_float16(b));
}

PC_DEVICE_FN uint32_t pc__mul_float16(uint32_t a, uint32_t b)
{
    return pc__pack_float16(pc__low_float16(a) * pc__low_float16(b),
                            pc__high_float16(a) * pc__high_float16(b));
}

PC_DEVICE_FN uint32_t pc__add_bfloat16(uint32_t a, uint32_t b)
{
    return pc__pack_bfloat16(pc__bits<float>(a << 16) + pc__bits<float>(b << 16),
                             pc__bits<float>(a & 0xffff0000u) + pc__bits<float>(b & 0xffff0000u));
}
#endif

/* float32 loses of a product what lies below its least denormal, and that may decide how bfloat16's
 * denormals are rounded: so no target can do this in one step. */
PC_DEVICE_FN uint32_t pc__mul_bfloat16(uint32_t a, uint32_t b)
{
    return pc__pack_bfloat16(pc__bits<float>(a << 16) * pc__bits<float>(b << 16),
                             pc__bits<float>(a & 0xffff0000u) * pc__bits<float>(b & 0xffff0000u));
}
#endif
