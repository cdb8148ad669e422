/* The LL protocol on a GPU: the loop over words where operands are LL packets; part of span.h.
 *
 * A short message is stored in words of 8 bytes, each with 4 bytes of data below and the message's
 * flag above: a reader that finds the flag has the data, without another memory access. */
#ifndef PC_LL_H
#define PC_LL_H

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
    const uint32_t deep = 16 / sizeof(word), tile = deep * PC_WARP; /* 4 LL packets in flight */
    const uint32_t thread = pc__thread(), threads = pc__threads();
    uint32_t begin = 0; /* of the operands that are not packets: the low address bits */
    PC_ROLLED
    for (uint32_t s = 0; s < nsrc; s++)
        begin |= packets >> s & 1 ? 0 : (uint32_t)(uintptr_t)src[s];
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++)
        begin |= packets >> (nsrc + d) & 1 ? 0 : (uint32_t)(uintptr_t)dst[d];
    const bool rows = threads % PC_WARP == 0 && begin % sizeof(word) == 0;
    const uint32_t whole = rows ? nbytes / sizeof(word) / tile * tile : 0;
    PC_ROLLED
    for (uint32_t i = thread / PC_WARP * tile + thread % PC_WARP; i < whole;
         i += threads / PC_WARP * tile) {
        const uint32_t dead
            = pc__word_rows<F, deep>(dst, ndst, src, nsrc, divisor, p, i, sizeof(word));
        if (dead)
            return dead;
    }
    PC_ROLLED
    for (uint32_t i = whole + thread; i * sizeof(word) < nbytes; i += threads) {
        const uint32_t dead = pc__word_rows<F, 1>(dst, ndst, src, nsrc, divisor, p, i,
                                                  nbytes - i * (uint32_t)sizeof(word));
        if (dead)
            return dead;
    }
    return 0;
}
#endif
