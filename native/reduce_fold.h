/* Part of the template reduce_level.h: the loops over memory. */

KERNEL V(u32) V(load)(const char *from)
{
    V(u32) x;
    memcpy(&x, from, WIDTH);
    return x;
}

KERNEL void V(store)(char *to, V(u32) x)
{
    memcpy(to, &x, WIDTH);
}

/* Past the caches; the address is a multiple of WIDTH. */
KERNEL void V(stream)(char *to, V(u32) x)
{
#if !defined(__x86_64__)
    V(store)(to, x);
#elif WIDTH == 64
    _mm512_stream_si512((void *)to, (__m512i)x);
#elif WIDTH == 32
    _mm256_stream_si256((void *)to, (__m256i)x);
#else
    _mm_stream_si128((void *)to, (__m128i)x);
#endif
}

/* The fold of n vectors that begin `at` bytes into every operand. */
KERNEL void V(vectors)(const struct V(kind) *kind, size_t n, V(u32) out[],
                       const void *const src[], uint32_t nsrc, size_t at, uint32_t divisor)
{
    struct V(acc) x[UNROLL];
    UNROLLED for (size_t i = 0; i < n; i++)
        x[i] = kind->open(V(load)((const char *)src[0] + at + i * WIDTH));
    if (nsrc > 1)
        UNROLLED for (size_t i = 0; i < n; i++)
            x[i] = kind->join(x[i], kind->open(V(load)((const char *)src[1] + at + i * WIDTH)));
    for (uint32_t s = 2; s < nsrc; s++)
        UNROLLED for (size_t i = 0; i < n; i++)
            x[i] = kind->join(kind->settle(x[i]),
                              kind->open(V(load)((const char *)src[s] + at + i * WIDTH)));
    UNROLLED for (size_t i = 0; i < n; i++)
        out[i] = kind->close(x[i], divisor);
}

KERNEL void V(put)(size_t n, const V(u32) x[], char *const to[], uint32_t ndst, size_t at,
                   uint32_t stream)
{
    for (uint32_t j = 0; j < ndst; j++)
        if (stream >> j & 1)
            UNROLLED for (size_t i = 0; i < n; i++)
                V(stream)(to[j] + at + i * WIDTH, x[i]);
        else
            UNROLLED for (size_t i = 0; i < n; i++)
                V(store)(to[j] + at + i * WIDTH, x[i]);
}

KERNEL void V(loop)(const struct V(kind) *kind, char *const to[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t at, size_t end,
                    uint32_t divisor, uint32_t stream)
{
    V(u32) x[UNROLL];
    for (; at + UNROLL * WIDTH < end; at += UNROLL * WIDTH) {
#ifdef PREFETCH
        for (uint32_t s = 0; s < nsrc; s++)
        UNROLLED for (int i = 0; i < UNROLL * WIDTH / 64; i++)
            __builtin_prefetch((const char*)src[s] + at + PREFETCH + i * 64);
#endif
        V(vectors)(kind, UNROLL, x, src, nsrc, at, divisor);
        V(put)(UNROLL, x, to, ndst, at, stream);
    }
    for (; at + WIDTH < end; at += WIDTH) {
        V(vectors)(kind, 1, x, src, nsrc, at, divisor);
        V(put)(1, x, to, ndst, at, stream);
    }
}

/* The ends may lie anywhere. They are folded first and stored last: so the loop can begin where the
 * destination is aligned and stop before the last vector, and where the ends and the loop overlap
 * they store the same bytes, even in place. */
KERNEL void V(fold)(const struct V(kind) *kind, size_t size, void *const dst[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t end, uint32_t divisor,
                    uint32_t stream)
{
    char *const to[2] = {dst[0], dst[ndst - 1]};
    V(u32) head, tail;
    V(vectors)(kind, 1, &head, src, nsrc, 0, divisor);
    V(vectors)(kind, 1, &tail, src, nsrc, end - WIDTH, divisor);
    if (end > 2 * WIDTH) {
        size_t at = WIDTH - (uintptr_t)to[stream == 2] % WIDTH;
        if (at % size)
            at = WIDTH;
        for (uint32_t j = 0; j < 2; j++)
            if (((uintptr_t)to[j] + at) % WIDTH)
                stream &= ~(1u << j);
        if (nsrc == 2 && ndst == 1 && !stream) {
            char *const one[1] = {to[0]};
            V(loop)(kind, one, 1, src, nsrc, at, end, divisor, 0);
        } else
            V(loop)(kind, to, ndst, src, nsrc, at, end, divisor, stream);
#if defined(__x86_64__)
        if (stream)
            _mm_sfence();
#endif
    }
    for (uint32_t j = 0; j < ndst; j++) {
        V(store)(to[j], head);
        V(store)(to[j] + end - WIDTH, tail);
    }
}

/* Less than one vector. */
#if WIDTH == 64
/* The mask keeps the rest of the vector untouched, even where no memory is. */
KERNEL void V(part)(const struct V(kind) *kind, void *const dst[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t nbytes, uint32_t divisor)
{
    __mmask64 mask = ((__mmask64)1 << nbytes) - 1;
    struct V(acc) x = kind->open((V(u32))_mm512_maskz_loadu_epi8(mask, src[0]));
    if (nsrc > 1)
        x = kind->join(x, kind->open((V(u32))_mm512_maskz_loadu_epi8(mask, src[1])));
    for (uint32_t s = 2; s < nsrc; s++)
        x = kind->join(kind->settle(x),
                       kind->open((V(u32))_mm512_maskz_loadu_epi8(mask, src[s])));
    V(u32) out = kind->close(x, divisor);
    _mm512_mask_storeu_epi8(dst[0], mask, (__m512i)out);
    if (ndst > 1)
        _mm512_mask_storeu_epi8(dst[1], mask, (__m512i)out);
}
#else
/* A vector of which only the first lane counts, per bit of the length. */
#define PIECE(bytes, lanes)                                                                        \
    if (nbytes & bytes) {                                                                          \
        V(lanes) lane = {};                                                                        \
        memcpy(&lane[0], (const char *)src[0] + at, bytes);                                        \
        struct V(acc) x = kind->open((V(u32))lane);                                                \
        for (uint32_t s = 1; s < nsrc; s++) {                                                      \
            memcpy(&lane[0], (const char *)src[s] + at, bytes);                                    \
            x = kind->join(s > 1 ? kind->settle(x) : x, kind->open((V(u32))lane));                 \
        }                                                                                          \
        lane = (V(lanes))kind->close(x, divisor);                                                  \
        for (uint32_t j = 0; j < ndst; j++)                                                        \
            memcpy((char *)dst[j] + at, &lane[0], bytes);                                          \
        at += bytes;                                                                               \
    }
KERNEL void V(part)(const struct V(kind) *kind, void *const dst[], uint32_t ndst,
                    const void *const src[], uint32_t nsrc, size_t nbytes, uint32_t divisor)
{
    size_t at = 0;
    PIECE(8, u64)
    PIECE(4, u32)
    PIECE(2, u16)
    PIECE(1, u8)
}
#undef PIECE
#endif

static const struct V(kind) V(copying) = {V(raw), 0, V(keep), V(bits)};
TARGET static void V(copy)(void *const dst[], uint32_t ndst, const void *const src[], size_t nbytes,
                           uint32_t stream)
{
    if (nbytes < WIDTH)
        V(part)(&V(copying), dst, ndst, src, 1, nbytes, 0);
    else
        V(fold)(&V(copying), 1, dst, ndst, src, 1, nbytes, 0, stream);
}

#define LONG static __attribute__((noinline)) TARGET void
#define FOLD(name, size, ...)                                                                      \
    static const struct V(kind) V(name##_kind) = {__VA_ARGS__};                                    \
    LONG V(name##_many)(void *const dst[], uint32_t ndst, const void *const src[], uint32_t nsrc,  \
                        size_t count, uint32_t divisor, uint32_t stream)                           \
    {                                                                                              \
        V(fold)(&V(name##_kind), size, dst, ndst, src, nsrc, count * size, divisor, stream);       \
    }                                                                                              \
    LONG V(name##_two)(void *const dst[], uint32_t ndst, const void *const src[], uint32_t nsrc,   \
                       size_t count, uint32_t divisor, uint32_t stream)                            \
    {                                                                                              \
        (void)nsrc; const void *const from[2] = {src[0], src[1]};                                                                                               \
        V(fold)(&V(name##_kind), size, dst, ndst, from, 2, count * size, divisor, stream);         \
    }                                                                                              \
    TARGET static void V(name)(void *const dst[], uint32_t ndst, const void *const src[],          \
                               uint32_t nsrc, size_t count, uint32_t divisor, uint32_t stream)     \
    {                                                                                              \
        if (nsrc == 1 && !divisor)                                                                 \
            return V(copy)(dst, ndst, src, count * size, stream);                                  \
        if (count * size < WIDTH)                                                                  \
            return PART(name, size);                                                               \
        if (nsrc == 2)                                                                             \
            return V(name##_two)(dst, ndst, src, nsrc, count, divisor, stream);                    \
        return V(name##_many)(dst, ndst, src, nsrc, count, divisor, stream);                       \
    }
#ifdef NARROWER
#define PART(name, size) PASTE(name, NARROWER)(dst, ndst, src, nsrc, count, divisor, stream)
#else
#define PART(name, size)                                                                           \
    V(part)(&V(name##_kind), dst, ndst, src, nsrc, count * size, divisor)
#endif
