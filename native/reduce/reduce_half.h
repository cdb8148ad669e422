/* Part of the template reduce_level.h: sums and products of the 16-bit floats, in float32. */

#define JOIN_PARTS(name, op) \
    KERNEL struct V(acc) V(name)(struct V(acc) x, struct V(acc) y) \
    { \
        return (struct V(acc)){(V(u32))((V(f32))x.a op (V(f32))y.a), \
                               (V(u32))((V(f32))x.b op (V(f32))y.b)}; \
    }
JOIN_PARTS(add_half, +)
JOIN_PARTS(mul_half, *)

/* bfloat16: the even lanes in one part, the odd in the other, so that nothing has to be shuffled.
 * Rounding needs no care for NaN: the low half of one is zero, as every operand's is. */
KERNEL V(u32) V(round_bfloat16)(V(u32) x)
{
    return x + (0x7fff + ((x >> 16) & 1));
}

KERNEL struct V(acc) V(open_bfloat16)(V(u32) memory)
{
    return (struct V(acc)){memory << 16, memory & 0xffff0000};
}

KERNEL struct V(acc) V(settle_bfloat16)(struct V(acc) x)
{
    return (struct V(acc)){V(round_bfloat16)(x.a) & 0xffff0000,
                           V(round_bfloat16)(x.b) & 0xffff0000};
}

KERNEL V(u32) V(pack_bfloat16)(struct V(acc) x)
{
    return (V(round_bfloat16)(x.a) >> 16) | (V(round_bfloat16)(x.b) & 0xffff0000);
}

#if WIDTH == 64
KERNEL struct V(acc) V(open_float16)(V(u32) memory)
{
    __m512i x = (__m512i)memory;
    return (struct V(acc)){(V(u32))_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                           (V(u32))_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1))};
}

KERNEL V(u32) V(pack_float16)(struct V(acc) x)
{
    __m256i a = _mm512_cvtps_ph((__m512)x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i b = _mm512_cvtps_ph((__m512)x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (V(u32))_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}
#elif WIDTH == 32
KERNEL struct V(acc) V(open_float16)(V(u32) memory)
{
    __m256i x = (__m256i)memory;
    return (struct V(acc)){(V(u32))_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                           (V(u32))_mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

KERNEL V(u32) V(pack_float16)(struct V(acc) x)
{
    __m128i a = _mm256_cvtps_ph((__m256)x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i b = _mm256_cvtps_ph((__m256)x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (V(u32))_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}
#else
/* float16 without instructions for it; even lanes and odd, like bfloat16. */
KERNEL V(u32) V(widen_float16)(V(u32) x)
{
    /* Shifted into place the exponent is 112 too small. A product mends that, denormals included;
     * what had the greatest exponent, infinity and NaN, needs the greatest again. */
    V(f32) value = (V(f32))((x & 0x7fff) << 13) * 0x1p112f;
    V(u32) top = (V(u32))(value >= 0x1p16f) & 0x7f800000;
    return (V(u32))value | top | (x & 0x8000) << 16;
}

KERNEL V(u32) V(narrow_float16)(V(u32) x)
{
    V(u32) sign = x & 0x80000000, size = x ^ sign;
    V(u32) normal = (size - (112u << 23) + (0xfff + ((size >> 13) & 1))) >> 13;
    /* The last bit of a half and less is float16's least denormal: the addition rounds to it. */
    V(u32) denormal = (V(u32))((V(f32))size + 0.5f) - 0x3f000000;
    V(u32) beyond = SELECT(size > 0x7f800000, (V(u32)){0} + 0x7e00, (V(u32)){0} + 0x7c00);
    V(u32) value = SELECT(size < 0x38800000, denormal, normal);
    return SELECT(size >= 0x47800000, beyond, value) | sign >> 16;
}

KERNEL struct V(acc) V(open_float16)(V(u32) memory)
{
    return (struct V(acc)){V(widen_float16)(memory & 0xffff), V(widen_float16)(memory >> 16)};
}

KERNEL V(u32) V(pack_float16)(struct V(acc) x)
{
    return V(narrow_float16)(x.a) | V(narrow_float16)(x.b) << 16;
}
#endif

KERNEL struct V(acc) V(settle_float16)(struct V(acc) x)
{
    return V(open_float16)(V(pack_float16)(x));
}

/* A NaN has stayed one, but whose? */
#define CLOSE_HALF(name, infinity, quiet) \
    KERNEL V(u32) V(close_##name)(struct V(acc) x, uint32_t divisor) \
    { \
        if (divisor) { \
            x = V(settle_##name)(x); \
            x.a = (V(u32))((V(f32))x.a / (float)divisor); \
            x.b = (V(u32))((V(f32))x.b / (float)divisor); \
        } \
        V(u16) value = (V(u16))V(pack_##name)(x); \
        return SELECT((value & 0x7fff) > infinity, (V(u16)){0} + quiet, value); \
    }
CLOSE_HALF(float16, 0x7c00, 0x7e00)
CLOSE_HALF(bfloat16, 0x7f80, 0x7fc0)
