/* The loop over elements on a GPU: all threads of a block fold 1 to 8 sources into every
 * destination. Common to SIMT and CUDA; the target's header comes first.
 *
 * One thread reads and writes an element, at the same offset of every operand, so a destination may
 * be one of the sources. Nothing here synchronises.
 *
 * The arrays of addresses are read at run time from shared memory. A thread's own array would be
 * local memory, which is slower than what they point to. */
#ifndef PC_KERNEL_SPAN_H
#define PC_KERNEL_SPAN_H
#include "gpu/kernel/fold.h"

#if defined(__GNUC__) && !defined(__CUDACC__)
#define PC__ALIAS __attribute__((may_alias))
#else
#define PC__ALIAS
#endif
#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__clang__)
#define PC_UNROLLED _Pragma("GCC unroll 16")
#define PC_ROLLED _Pragma("GCC unroll 1")
#else
#define PC_UNROLLED _Pragma("unroll")
#define PC_ROLLED _Pragma("unroll 1") /* unrolling beyond need takes registers */
#endif

template <uint32_t bytes> struct pc__unit;
template <> struct pc__unit<1> {
    typedef uint8_t PC__ALIAS type;
};
template <> struct pc__unit<2> {
    typedef uint16_t PC__ALIAS type;
};
template <> struct pc__unit<4> {
    typedef uint32_t PC__ALIAS type;
};
template <> struct pc__unit<8> {
    typedef uint64_t PC__ALIAS type;
};

/* Loads n bytes of a word; the others are 0 and are not read. */
template <class Word> PC_DEVICE_FN Word pc__load_bytes(const char *from, uint64_t n)
{
    Word x = 0;
    PC_UNROLLED
    for (uint32_t k = 0; k < sizeof(Word); k++)
        if (k < n)
            x |= (Word)(uint8_t)from[k] << (8 * k);
    return x;
}

template <class Word> PC_DEVICE_FN void pc__store_bytes(char *to, uint64_t n, Word x)
{
    PC_UNROLLED
    for (uint32_t k = 0; k < sizeof(Word); k++)
        if (k < n)
            to[k] = (char)(uint8_t)(x >> (8 * k));
}

/* How memory is accessed: 16 bytes, a word, an element, or an element that is not aligned. */
template <class F> struct pc__by_16 {
    typedef pc_vector type;
    typedef typename F::word word;
    static constexpr uint32_t bytes = 16;
    static constexpr bool copies = F::copies, to_all = false;

    PC_DEVICE_FN pc_vector load(const char *from)
    {
        return pc__load16((const pc_vector *)from);
    }

    PC_DEVICE_FN void store(char *to, pc_vector x)
    {
        pc__store16((pc_vector *)to, x);
    }

    PC_DEVICE_FN uint64_t join(uint64_t a, uint64_t b)
    {
        if (sizeof(word) == 8)
            return F::join((word)a, (word)b);
        return F::join((word)a, (word)b)
               | (uint64_t)F::join((word)(a >> 32), (word)(b >> 32)) << 32;
    }

    PC_DEVICE_FN uint64_t open(uint64_t x)
    {
        if (sizeof(word) == 8)
            return F::open((word)x);
        return F::open((word)x) | (uint64_t)F::open((word)(x >> 32)) << 32;
    }

    PC_DEVICE_FN uint64_t close(uint64_t x, uint32_t divisor)
    {
        if (sizeof(word) == 8)
            return F::close((word)x, divisor);
        return F::close((word)x, divisor) | (uint64_t)F::close((word)(x >> 32), divisor) << 32;
    }

    PC_DEVICE_FN pc_vector open(pc_vector x)
    {
        x.x = open(x.x), x.y = open(x.y);
        return x;
    }

    PC_DEVICE_FN pc_vector join(pc_vector a, pc_vector b)
    {
        a.x = join(a.x, b.x), a.y = join(a.y, b.y);
        return a;
    }

    PC_DEVICE_FN pc_vector close(pc_vector x, uint32_t divisor)
    {
        x.x = close(x.x, divisor), x.y = close(x.y, divisor);
        return x;
    }
};

template <class F, uint32_t nbytes> struct pc__by_unit : F {
    typedef typename F::word type;
    typedef typename pc__unit<nbytes>::type unit;
    static constexpr uint32_t bytes = nbytes;
    static constexpr bool to_all = false;

    PC_DEVICE_FN type load(const char *from)
    {
        return *(const unit *)from;
    }

    PC_DEVICE_FN void store(char *to, type x)
    {
        *(unit *)to = (unit)x;
    }
};

template <class F> struct pc__by_byte : F {
    typedef typename F::word type;
    static constexpr uint32_t bytes = F::bytes;
    static constexpr bool to_all = false;

    PC_DEVICE_FN type load(const char *from)
    {
        return pc__load_bytes<type>(from, F::bytes);
    }

    PC_DEVICE_FN void store(char *to, type x)
    {
        pc__store_bytes<type>(to, F::bytes, x);
    }
};

/* The addresses of operands: the first sources in registers, as nearly every fold has no others. */
struct pc__operands {
    const char *one, *two;
    char *all; /* the multicast address of the destinations, where all lie alike */
    void *const *dst;
    const void *const *src;
    uint32_t nsrc, ndst, divisor;
};

/* Folds `rows` units of every operand, a warp's width apart, from byte `at` on. All loads of two
 * sources are in flight together. */
template <class Access, uint32_t rows>
PC_DEVICE_FN void pc__rows(const pc__operands &o, uint32_t at)
{
    const uint32_t apart = PC_WARP * Access::bytes;
    const uint64_t local = at;
    typename Access::type x[rows], y[rows];
    const char *from = o.one + local;
    PC_UNROLLED
    for (uint32_t u = 0; u < rows; u++)
        x[u] = Access::load(from + u * apart);
    if constexpr (!Access::copies) {
        from = o.two + local; /* for one source the source itself: an unset address would */
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++) /* keep registers for the whole loop */
            y[u] = Access::load(from + u * apart);
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            x[u] = Access::open(x[u]);
        PC_ROLLED
        for (uint32_t s = 1; s < o.nsrc; s++) {
            PC_UNROLLED
            for (uint32_t u = 0; u < rows; u++)
                x[u] = Access::join(x[u], Access::open(y[u]));
            if (s + 1 == o.nsrc)
                break;
            from = (const char *)o.src[s + 1] + local;
            PC_UNROLLED
            for (uint32_t u = 0; u < rows; u++)
                y[u] = Access::load(from + u * apart);
        }
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            x[u] = Access::close(x[u], o.divisor);
    }
    const uint32_t ndst = Access::to_all ? 1 : o.ndst;
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++) {
        char *to = (Access::to_all ? o.all : (char *)o.dst[d]) + local;
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            Access::store(to + u * apart, x[u]);
    }
}

/* Loads and folds so many sources: all their loads are in flight together, where one after the
 * other each would cost the way to memory. */
template <class Access, uint32_t rows, uint32_t nsrc>
PC_DEVICE_FN void pc__join(typename Access::type x[rows], const void *const src[], uint32_t at)
{
    const uint32_t apart = PC_WARP * Access::bytes;
    typename Access::type y[nsrc][rows];
    PC_UNROLLED
    for (uint32_t s = 0; s < nsrc; s++) {
        const char *from = (const char *)src[s] + (uint64_t)at;
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            y[s][u] = Access::load(from + u * apart);
    }
    PC_UNROLLED
    for (uint32_t u = 0; u < rows; u++) {
        x[u] = Access::open(y[0][u]);
        PC_UNROLLED
        for (uint32_t s = 1; s < nsrc; s++)
            x[u] = Access::join(x[u], Access::open(y[s][u]));
    }
}

/* Folds units of `few` sources or one more, in one row also of two or three more. */
template <class Access, uint32_t rows, uint32_t few>
PC_DEVICE_FN void pc__join_units(void *const dst[], uint32_t ndst, const void *const src[],
                                 uint32_t nsrc, uint32_t divisor, uint32_t begin, uint32_t whole)
{
    const uint32_t apart = PC_WARP * Access::bytes, tile = rows * PC_WARP;
    PC_ROLLED
    for (uint32_t i = pc__thread() / PC_WARP * tile + pc__thread() % PC_WARP; i < whole;
         i += pc__threads() / PC_WARP * tile) {
        const uint32_t at = begin + i * Access::bytes;
        typename Access::type x[rows];
        if (nsrc == few)
            pc__join<Access, rows, few>(x, src, at);
        else if (rows > 1 || nsrc == few + 1)
            pc__join<Access, rows, few + 1>(x, src, at);
        else if (nsrc == few + 2)
            pc__join<Access, 1, few + 2>(x, src, at);
        else
            pc__join<Access, 1, few + 3>(x, src, at);
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            x[u] = Access::close(x[u], divisor);
        PC_ROLLED
        for (uint32_t d = 0; d < ndst; d++) {
            char *to = (char *)dst[d] + (uint64_t)at;
            PC_UNROLLED
            for (uint32_t u = 0; u < rows; u++)
                Access::store(to + u * apart, x[u]);
        }
    }
}

/* Folds three sources and more by 16 bytes; returns of how many units, the rest being less than two
 * rows of a warp. */
template <class Access>
PC_DEVICE_FN uint32_t pc__fold_many(void *const dst[], uint32_t ndst, const void *const src[],
                                    uint32_t nsrc, uint32_t divisor, uint32_t at, uint32_t count)
{
    const uint32_t whole = pc__threads() % PC_WARP ? 0 : count / (2 * PC_WARP) * (2 * PC_WARP);
    if (nsrc <= 4)
        pc__join_units<Access, 2, 3>(dst, ndst, src, nsrc, divisor, at, whole);
    else
        pc__join_units<Access, 1, 5>(dst, ndst, src, nsrc, divisor, at, whole);
    return whole;
}

/* Folds `count` units of every operand from byte `at` on. Warps take tiles of `deep` rows in turn;
 * of the rest each thread takes a unit at a time. */
template <class Access, uint32_t deep>
PC_DEVICE_FN void pc__units(const pc__operands &o, uint32_t at, uint32_t count)
{
    const uint32_t tile = deep * PC_WARP, thread = pc__thread(), threads = pc__threads();
    const uint32_t whole = deep == 1 || threads % PC_WARP ? 0 : count / tile * tile;
    if constexpr (deep > 1) {
        PC_ROLLED
        for (uint32_t i = thread / PC_WARP * tile + thread % PC_WARP; i < whole;
             i += threads / PC_WARP * tile)
            pc__rows<Access, deep>(o, at + i * Access::bytes);
    }
    PC_ROLLED
    for (uint32_t i = whole + thread; i < count; i += threads)
        pc__rows<Access, 1>(o, at + i * Access::bytes);
}

/* Uses the widest access that all operands' alignment allows; the unaligned ends go by element. */
template <class F>
PC_DEVICE_FN void pc__plain(void *const dst[], uint32_t ndst, const void *const src[],
                            uint32_t nsrc, uint32_t nbytes, uint32_t divisor)
{
    typedef typename F::word word;
    const uint32_t begin = (uint32_t)(uintptr_t)src[0];
    uint32_t apart = 0; /* the low bits in which addresses differ */
    PC_ROLLED
    for (uint32_t s = 1; s < nsrc; s++)
        apart |= (uint32_t)(uintptr_t)src[s] ^ begin;
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++)
        apart |= (uint32_t)(uintptr_t)dst[d] ^ begin;
    const bool aligned = ((apart | begin) & (F::bytes - 1)) == 0;
    uint32_t width = 0;
    if (aligned && (apart & 15) == 0)
        width = 16;
    else if (aligned && F::bytes < sizeof(word) && (apart & (sizeof(word) - 1)) == 0)
        width = sizeof(word);
    uint32_t head = nbytes, body = 0, done = 0;
    if (width) {
        head = (0 - begin) & (width - 1);
        head = head < nbytes ? head : nbytes;
        body = (nbytes - head) & ~(width - 1);
    }
    if constexpr (!F::copies && F::deep > 2) /* others have neither registers nor idle time */
        if (width == 16 && nsrc > 2)
            done = 16 * pc__fold_many<pc__by_16<F>>(dst, ndst, src, nsrc, divisor, head, body / 16);
    /* From here on: before, these addresses would take registers. */
    const pc__operands o = {(const char *)src[0],
                            (const char *)src[nsrc > 1 ? 1 : 0],
                            NULL,
                            dst,
                            src,
                            nsrc,
                            ndst,
                            divisor};
    if (width == 16)
        pc__units<pc__by_16<F>, F::deep>(o, head + done, (body - done) / 16);
    else if (width)
        pc__units<pc__by_unit<F, sizeof(word)>, F::deep>(o, head, body / sizeof(word));
    PC_ROLLED
    for (uint32_t end = 0; end < 2; end++) { /* two passes of one loop, not two loops */
        const uint32_t at = end ? head + body : 0, count = (end ? nbytes - at : head) / F::bytes;
        if (aligned)
            pc__units<pc__by_unit<F, F::bytes>, F::deep>(o, at, count);
        else
            pc__units<pc__by_byte<F>, 1>(o, at, count);
    }
}

/* nbytes is a multiple of the element's size, and below 2 GiB: 32-bit indexes take half the
 * registers. `divisor` as in pc_fold_fn. */
template <class F>
PC_DEVICE_FN void pc__span_gpu(void *const dst[], uint32_t ndst, const void *const src[],
                               uint32_t nsrc, uint32_t nbytes, uint32_t divisor)
{
    if (nsrc > 1 || divisor)
        pc__plain<F>(dst, ndst, src, nsrc, nbytes, divisor);
    else if (ndst > 1 || dst[0] != src[0])
        pc__plain<pc__copying<F>>(dst, ndst, src, nsrc, nbytes, divisor);
}

#include "gpu/kernel/ll.h"
#undef PC__ALIAS
#endif
