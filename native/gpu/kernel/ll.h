/* The LL protocol on a GPU: the loop over words where operands are LL packets; part of span.h.
 *
 * A short message is stored in words of 8 bytes, each with 4 bytes of data below and the message's
 * flag above: a reader that finds the flag has the data, without another memory access. */
#ifndef PC_LL_H
#define PC_LL_H

/* LL packets of different sources that a thread has in flight together; 1: of one source. */
#if !defined(PC_TARGET_LL_PACKETS)
#define PC_TARGET_LL_PACKETS 8
#endif

/* Operand j is LL packets if bit j of `packets` is set; flag[j] is then their flag. Sources come
 * first, then destinations. */
template <class Poll> struct pc__wanted {
    uint32_t operands;
    const uint32_t *flag;
    Poll &poll;
};

/* Loads `rows` words of one operand, a warp's width apart, from word i on; a single one may be
 * short, of `left` bytes, or unaligned. True: poll gave up. */
template <class Word, uint32_t rows, class Poll>
PC_DEVICE_FN bool pc__load_words(Word x[rows], const char *from, uint32_t operand,
                                 const pc__wanted<Poll> &p, uint32_t i, uint32_t left)
{
    const uint32_t each = sizeof(Word) / 4; /* LL packets */
    if (p.operands >> operand & 1) {
        const uint64_t *packets = (const uint64_t *)from + i * each;
        const uint32_t flag = p.flag[operand];
        for (;;) {
            uint64_t packet[rows * each];
            PC_UNROLLED
            for (uint32_t k = 0; k < rows * each; k++)
                packet[k] = pc__load_ll(packets + k / each * each * PC_WARP + k % each);
            uint32_t wrong = 0;
            PC_UNROLLED
            for (uint32_t k = 0; k < rows * each; k++)
                wrong |= (uint32_t)(packet[k] >> 32) ^ flag;
            PC_UNROLLED
            for (uint32_t u = 0; u < rows; u++)
                x[u] = (uint32_t)packet[u * each]
                       | (each == 2 ? (Word)(packet[u * each + each - 1] << 32) : 0);
            if (wrong == 0)
                return false;
            if (p.poll(operand))
                return true;
            pc__relax();
        }
    }
    from += i * sizeof(Word);
    if (rows > 1 || (left >= sizeof(Word) && ((uintptr_t)from & (sizeof(Word) - 1)) == 0)) {
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            x[u] = *(const typename pc__unit<sizeof(Word)>::type *)(from
                                                                    + u * PC_WARP * sizeof(Word));
    } else
        x[0] = pc__load_bytes<Word>(from, left);
    return false;
}

template <class Word, uint32_t rows, class Poll>
PC_DEVICE_FN void pc__store_words(const Word x[rows], char *to, uint32_t operand,
                                  const pc__wanted<Poll> &p, uint32_t i, uint32_t left)
{
    const uint32_t each = sizeof(Word) / 4;
    if (p.operands >> operand & 1) {
        uint64_t *packets = (uint64_t *)to + i * each;
        const uint64_t flag = (uint64_t)p.flag[operand] << 32;
        PC_UNROLLED
        for (uint32_t k = 0; k < rows * each; k++)
            pc__store_ll(packets + k / each * each * PC_WARP + k % each,
                         flag | (uint32_t)((uint64_t)x[k / each] >> 32 * (k % each)));
        return;
    }
    to += i * sizeof(Word);
    if (rows > 1 || (left >= sizeof(Word) && ((uintptr_t)to & (sizeof(Word) - 1)) == 0)) {
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            *(typename pc__unit<sizeof(Word)>::type *)(to + u * PC_WARP * sizeof(Word)) = x[u];
    } else
        pc__store_bytes<Word>(to, left, x[0]);
}

/* 1 + the operand that poll gave up on, or 0. */
template <class F, uint32_t rows, class Poll>
PC_DEVICE_FN uint32_t pc__word_rows(void *const dst[], uint32_t ndst, const void *const src[],
                                    uint32_t nsrc, uint32_t divisor, const pc__wanted<Poll> &p,
                                    uint32_t i, uint32_t left)
{
    typedef typename F::word word;
    word x[rows], y[rows];
    if (pc__load_words<word, rows>(x, (const char *)src[0], 0, p, i, left))
        return 1;
    if (nsrc > 1 || divisor) {
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            x[u] = F::open(x[u]);
        PC_ROLLED
        for (uint32_t s = 1; s < nsrc; s++) {
            if (pc__load_words<word, rows>(y, (const char *)src[s], s, p, i, left))
                return 1 + s;
            PC_UNROLLED
            for (uint32_t u = 0; u < rows; u++)
                x[u] = F::join(x[u], F::open(y[u]));
        }
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            x[u] = F::close(x[u], divisor);
    }
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++)
        pc__store_words<word, rows>(x, (char *)dst[d], nsrc + d, p, i, left);
    return 0;
}

/* Source k, or another one that is packets where k is not or is beyond the last one: so the same
 * loads are made whatever the sources are. */
PC_DEVICE_FN uint32_t pc__packets_of(uint32_t k, uint32_t nsrc, uint32_t plain)
{
    const uint32_t another = plain == 0 ? 1 : 0;
    return k >= nsrc || k == plain ? another : k;
}

/* The same for one whole word of each of three sources and more, of which at most one, `plain`, is
 * not packets. The packets of up to `group` sources are in flight together, and polled together:
 * peers that answer at once cost the way there and back once. */
template <class F, uint32_t group, class Poll>
PC_DEVICE_FN uint32_t pc__word_many(void *const dst[], uint32_t ndst, const void *const src[],
                                    uint32_t nsrc, uint32_t divisor, const pc__wanted<Poll> &p,
                                    uint32_t plain, uint32_t i)
{
    typedef typename F::word word;
    const uint32_t each = sizeof(word) / 4; /* LL packets */
    word x[1] = {}, own = 0;
    if (plain < nsrc)
        own = ((const typename pc__unit<sizeof(word)>::type *)src[plain])[i];
    PC_ROLLED
    for (uint32_t s = 0; s < nsrc;) {
        uint64_t packet[group][each];
        uint32_t missing = 0; /* 1 + the source */
        PC_UNROLLED
        for (uint32_t g = 0; g < group; g++) {
            const uint64_t *from
                = (const uint64_t *)src[pc__packets_of(s + g, nsrc, plain)] + i * each;
            PC_UNROLLED
            for (uint32_t e = 0; e < each; e++)
                packet[g][e] = pc__load_ll(from + e);
        }
        /* From the last one on: else the compiler looks at the first before it loads the last. */
        PC_UNROLLED
        for (uint32_t r = 1; r <= group; r++) {
            const uint32_t k = pc__packets_of(s + group - r, nsrc, plain);
            PC_UNROLLED
            for (uint32_t e = 0; e < each; e++)
                missing = (uint32_t)(packet[group - r][each - 1 - e] >> 32) == p.flag[k] ? missing
                                                                                         : 1 + k;
        }
        if (missing) {
            if (p.poll(missing - 1))
                return missing;
            pc__relax();
            continue;
        }
        PC_UNROLLED
        for (uint32_t g = 0; g < group; g++)
            if (s + g < nsrc) {
                const word theirs
                    = (uint32_t)packet[g][0] | (each == 2 ? (word)(packet[g][each - 1] << 32) : 0);
                const word y = F::open(s + g == plain ? own : theirs);
                x[0] = g == 0 && s == 0 ? y : F::join(x[0], y);
            }
        s += group;
    }
    x[0] = F::close(x[0], divisor);
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++)
        pc__store_words<word, 1>(x, (char *)dst[d], nsrc + d, p, i, sizeof(word));
    return 0;
}

/* pc__span_gpu with operands in LL packets, whose address is that of the first packet.
 * poll(operand) is called after every try that found words missing, and decides whether to give up.
 * Returns 0, or 1 + the operand that it gave up on; then some destinations were not written. */
template <class F, class Poll>
PC_DEVICE_FN uint32_t pc__span_ll(void *const dst[], uint32_t ndst, const void *const src[],
                                  uint32_t nsrc, uint32_t nbytes, uint32_t divisor,
                                  uint32_t packets, const uint32_t flag[], Poll &poll)
{
    typedef typename F::word word;
    const pc__wanted<Poll> p = {packets, flag, poll};
    constexpr uint32_t each = sizeof(word) / 4, deep = 4 / each, tile = deep * PC_WARP;
    constexpr uint32_t together = PC_TARGET_LL_PACKETS > each ? PC_TARGET_LL_PACKETS / each : 1;
    const uint32_t thread = pc__thread(), threads = pc__threads();
    uint32_t begin = 0; /* of the operands that are not packets: the low address bits */
    uint32_t plain = nsrc, plains = 0;
    PC_ROLLED
    for (uint32_t s = 0; s < nsrc; s++)
        if (!(packets >> s & 1)) {
            begin |= (uint32_t)(uintptr_t)src[s];
            plain = s;
            plains++;
        }
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++)
        begin |= packets >> (nsrc + d) & 1 ? 0 : (uint32_t)(uintptr_t)dst[d];
    const bool aligned = begin % sizeof(word) == 0,
               many = together > 1 && nsrc > 2 && plains < 2 && aligned;
    const bool rows = !many && aligned && threads % PC_WARP == 0;
    const uint32_t words = nbytes / sizeof(word);
    const uint32_t singly = many ? words : 0, by_rows = rows ? words / tile * tile : 0;
    PC_ROLLED
    for (uint32_t i = thread; i < singly; i += threads) {
        const uint32_t dead
            = pc__word_many<F, together>(dst, ndst, src, nsrc, divisor, p, plain, i);
        if (dead)
            return dead;
    }
    PC_ROLLED
    for (uint32_t i = thread / PC_WARP * tile + thread % PC_WARP; i < by_rows;
         i += threads / PC_WARP * tile) {
        const uint32_t dead
            = pc__word_rows<F, deep>(dst, ndst, src, nsrc, divisor, p, i, sizeof(word));
        if (dead)
            return dead;
    }
    PC_ROLLED
    for (uint32_t i = singly + by_rows + thread; i * sizeof(word) < nbytes; i += threads) {
        const uint32_t dead = pc__word_rows<F, 1>(dst, ndst, src, nsrc, divisor, p, i,
                                                  nbytes - i * (uint32_t)sizeof(word));
        if (dead)
            return dead;
    }
    return 0;
}
#endif
