/* Part of the template reduce_level.h: loads, stores and the loops over memory. */

KERNEL V(u32) V(load)(const void *from, size_t at)
{
    V(u32) x;
    memcpy(&x, (const char *)from + at, WIDTH);
    return x;
}

KERNEL void V(store)(void *to, size_t at, V(u32) x)
{
    memcpy((char *)to + at, &x, WIDTH);
}

/* A non-temporal store. The address is a multiple of WIDTH. */
KERNEL void V(stream)(void *to, size_t at, V(u32) x)
{
#if !defined(__x86_64__)
    V(store)(to, at, x);
#elif WIDTH == 64
    _mm512_stream_si512((void *)((char *)to + at), (__m512i)x);
#elif WIDTH == 32
    _mm256_stream_si256((void *)((char *)to + at), (__m256i)x);
#else
    _mm_stream_si128((void *)((char *)to + at), (__m128i)x);
#endif
}

/* Folds n vectors at byte `at` of every source; with a constant n, in registers. */
KERNEL void V(vectors)(const struct V(kind) *kind, size_t n, V(u32) out[], const void *const src[],
                       uint32_t nsrc, size_t at, uint32_t divisor)
{
    struct V(acc) x[UNROLL];
    UNROLLED for (size_t i = 0; i < n; i++)
        x[i] = kind->open(V(load)(src[0], at + i * WIDTH));
    if (nsrc > 1)
        UNROLLED for (size_t i = 0; i < n; i++)
            x[i] = kind->join(x[i], kind->open(V(load)(src[1], at + i * WIDTH)));
    for (uint32_t s = 2; s < nsrc; s++)
        UNROLLED for (size_t i = 0; i < n; i++)
            x[i] = kind->join(kind->settle(x[i]), kind->open(V(load)(src[s], at + i * WIDTH)));
    UNROLLED for (size_t i = 0; i < n; i++)
        out[i] = kind->close(x[i], divisor);
}

KERNEL void V(put)(size_t n, const V(u32) x[], void *const dst[], uint32_t ndst, size_t at,
                   uint32_t stream)
{
    for (uint32_t j = 0; j < ndst; j++)
        if (stream >> j & 1)
            UNROLLED for (size_t i = 0; i < n; i++)
                V(stream)(dst[j], at + i * WIDTH, x[i]);
        else
            UNROLLED for (size_t i = 0; i < n; i++)
                V(store)(dst[j], at + i * WIDTH, x[i]);
}

/* Stops before the last 1 to WIDTH bytes. No prefetching: it was measured to gain nothing, and to
 * cost a third where stores stream. */
KERNEL void V(loop)(const struct V(kind) *kind, void *const dst[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t at, size_t end,
                    uint32_t divisor, uint32_t stream)
{
    V(u32) x[UNROLL];
    for (; at + UNROLL * WIDTH < end; at += UNROLL * WIDTH) {
        V(vectors)(kind, UNROLL, x, src, nsrc, at, divisor);
        V(put)(UNROLL, x, dst, ndst, at, stream);
    }
    for (; at + WIDTH < end; at += WIDTH) {
        V(vectors)(kind, 1, x, src, nsrc, at, divisor);
        V(put)(1, x, dst, ndst, at, stream);
    }
}

/* Folds at least one vector. The ends, which may be unaligned, are folded first and stored last: so
 * the loop can begin where the destination is aligned and stop before the last vector, and where
 * the ends overlap the loop they store the same bytes, even in place. */
KERNEL void V(whole)(const struct V(kind) *kind, size_t size, void *const dst[], uint32_t ndst,
                     const void *const src[], uint32_t nsrc, size_t nbytes, uint32_t divisor,
                     uint32_t stream)
{
    /* Copies, since a store might change what dst points to, for all that the compiler knows. */
    void *const to[2] = {dst[0], dst[ndst - 1]}, *const only[1] = {dst[0]};
    V(u32) head, tail;
    V(vectors)(kind, 1, &head, src, nsrc, 0, divisor);
    V(vectors)(kind, 1, &tail, src, nsrc, nbytes - WIDTH, divisor);
    if (nbytes > 2 * WIDTH) {
        size_t at = WIDTH - (uintptr_t)to[stream == 2] % WIDTH;
        if (at % size)
            at = WIDTH;
        for (uint32_t j = 0; j < 2; j++)
            if (((uintptr_t)to[j] + at) % WIDTH)
                stream &= ~(1u << j);
        if (__builtin_constant_p(nsrc) && ndst == 1 && !stream)
            V(loop)(kind, only, 1, src, nsrc, at, nbytes, divisor, 0);
        else if (__builtin_constant_p(nsrc) && !stream)
            V(loop)(kind, to, 2, src, nsrc, at, nbytes, divisor, 0);
        else
            V(loop)(kind, to, ndst, src, nsrc, at, nbytes, divisor, stream);
#if defined(__x86_64__)
        if (stream)
            _mm_sfence();
#endif
    }
    for (uint32_t j = 0; j < ndst; j++) {
        V(store)(to[j], 0, head);
        V(store)(to[j], nbytes - WIDTH, tail);
    }
}

#ifndef NARROWER
/* The first n bytes of a vector. With masks n is any number, and memory beyond is not touched, even
 * if there is none; without, n is 8, 4, 2 or 1 and a constant. */
#if WIDTH == 64
KERNEL V(u32) V(load_some)(const void *from, size_t at, size_t n)
{
    return (V(u32))_mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, (const char *)from + at);
}

KERNEL void V(store_some)(void *to, size_t at, size_t n, V(u32) x)
{
    _mm512_mask_storeu_epi8((char *)to + at, ((__mmask64)1 << n) - 1, (__m512i)x);
}
#else
#define LOAD_WORD(type, lanes) \
    if (n == sizeof(type)) { \
        type word; \
        memcpy(&word, (const char *)from + at, sizeof(type)); \
        return (V(u32))(V(lanes)){word}; \
    }
#define STORE_WORD(type, lanes) \
    if (n == sizeof(type)) { \
        type word = ((V(lanes))x)[0]; \
        memcpy((char *)to + at, &word, sizeof(type)); \
    }
KERNEL V(u32) V(load_some)(const void *from, size_t at, size_t n)
{
    LOAD_WORD(uint64_t, u64)
    LOAD_WORD(uint32_t, u32)
    LOAD_WORD(uint16_t, u16)
    LOAD_WORD(uint8_t, u8)
    __builtin_unreachable();
}

KERNEL void V(store_some)(void *to, size_t at, size_t n, V(u32) x)
{
    STORE_WORD(uint64_t, u64)
    STORE_WORD(uint32_t, u32)
    STORE_WORD(uint16_t, u16)
    STORE_WORD(uint8_t, u8)
}
#undef LOAD_WORD
#undef STORE_WORD
#endif

KERNEL void V(some)(const struct V(kind) *kind, void *const dst[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t at, size_t n, uint32_t divisor)
{
    struct V(acc) x = kind->open(V(load_some)(src[0], at, n));
    if (nsrc > 1)
        x = kind->join(x, kind->open(V(load_some)(src[1], at, n)));
    for (uint32_t s = 2; s < nsrc; s++)
        x = kind->join(kind->settle(x), kind->open(V(load_some)(src[s], at, n)));
    V(u32) out = kind->close(x, divisor);
    for (uint32_t j = 0; j < ndst; j++)
        V(store_some)(dst[j], at, n, out);
}

/* Folds less than one vector, or nothing. */
KERNEL void V(part)(const struct V(kind) *kind, void *const dst[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t nbytes, uint32_t divisor)
{
#if WIDTH == 64
    V(some)(kind, dst, ndst, src, nsrc, 0, nbytes, divisor);
#else
    if (nbytes & 8)
        V(some)(kind, dst, ndst, src, nsrc, 0, 8, divisor);
    if (nbytes & 4)
        V(some)(kind, dst, ndst, src, nsrc, nbytes & 8, 4, divisor);
    if (nbytes & 2)
        V(some)(kind, dst, ndst, src, nsrc, nbytes & 12, 2, divisor);
    if (nbytes & 1)
        V(some)(kind, dst, ndst, src, nsrc, nbytes & 14, 1, divisor);
#endif
}
#endif
