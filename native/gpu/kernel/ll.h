/* The LL protocol on a GPU: the loop over messages in LL packets; part of span.h.
 *
 * A short message is stored in packets of 16 bytes, each loaded and stored by one access: a reader
 * that finds the message's flag in it has the data, without another memory access.
 *
 *   packet 0       8 bytes of data | seal | flag
 *   each other one 12 bytes of data       | flag
 *
 * The seal says which call the message belongs to. It has one place, whatever length the message
 * has: an empty one is that packet alone, and who waits in vain for another packet looks there.
 *
 * A message has a piece for each chunk, which begins at a packet of its own. The threads of a block
 * take turns at *units*: three words, so a packet, or two where words have 8 bytes. The first unit
 * is packet 0, with words of data and the seal behind them. */
#ifndef PC_LL_H
#define PC_LL_H

/* What is moved, a class of the target's, from whose memory all is read when it is wanted: there
 * are no registers for it. Operands are counted from the sources on, then destinations.
 *
 *   nsrc(), ndst(), divisor()
 *   packets(j), flag(j)     operand j is LL packets; their flag
 *   address(j)              of its first packet, or of its first piece
 *   seal()                  of all messages
 *   plain()                 the only source that is not packets; nsrc(): there is none; else more
 *   count(), nbytes(k)      pieces, and the length of one
 *   offset(j, k)            of piece k of an operand that is not packets, from the first one on
 *   poll(j)                 called after every try that found packets missing; true: give up */

struct pc__ll_unit {
    uint32_t number; /* of the message; 0 has the seal */
    uint32_t piece;
    uint32_t at, left; /* bytes of the piece from `at` on */
};

/* The packets of a word's unit. */
#define PC_LL_EACH(Word) (sizeof(Word) / 4)

/* The first packet of a unit. */
PC_DEVICE_FN uint32_t pc__packet_of(uint32_t number, uint32_t each)
{
    return number ? number * each - (each - 1) : 0;
}

template <uint32_t each>
PC_DEVICE_FN void pc__load_packets(pc_vector v[each], const void *message, const pc__ll_unit &u)
{
    const pc_vector *from = (const pc_vector *)message + pc__packet_of(u.number, each);
    PC_UNROLLED
    for (uint32_t e = 0; e < each; e++) /* the first unit has one packet: no other is waited for */
        v[e] = pc__load_packet(from + (u.number ? e : 0));
}

template <uint32_t each>
PC_DEVICE_FN bool pc__packets_came(const pc_vector v[each], uint32_t flag, uint32_t seal,
                                   const pc__ll_unit &u)
{
    uint32_t wrong = u.number ? 0 : (uint32_t)v[0].y ^ seal;
    PC_UNROLLED
    for (uint32_t e = 0; e < each; e++)
        wrong |= (uint32_t)(v[e].y >> 32) ^ flag;
    return wrong == 0;
}

PC_DEVICE_FN void pc__unpack(uint32_t x[3], const pc_vector v[1])
{
    x[0] = (uint32_t)v[0].x;
    x[1] = (uint32_t)(v[0].x >> 32);
    x[2] = (uint32_t)v[0].y;
}

PC_DEVICE_FN void pc__unpack(uint64_t x[3], const pc_vector v[2])
{
    x[0] = v[0].x;
    x[1] = (uint32_t)v[0].y | v[1].x << 32;
    x[2] = v[1].x >> 32 | v[1].y << 32;
}

PC_DEVICE_FN void pc__pack(pc_vector v[1], const uint32_t x[3], uint32_t flag)
{
    v[0].x = x[0] | (uint64_t)x[1] << 32;
    v[0].y = x[2] | (uint64_t)flag << 32;
}

PC_DEVICE_FN void pc__pack(pc_vector v[2], const uint64_t x[3], uint32_t flag)
{
    v[0].x = x[0];
    v[0].y = (uint32_t)x[1] | (uint64_t)flag << 32;
    v[1].x = x[1] >> 32 | x[2] << 32;
    v[1].y = x[2] >> 32 | (uint64_t)flag << 32;
}

/* Whether what a unit has of an operand that is not packets is aligned words. */
template <class Word> PC_DEVICE_FN bool pc__by_words(const char *at, uint32_t left)
{
    return (((uint32_t)(uintptr_t)at | left) & (sizeof(Word) - 1)) == 0;
}

template <class Word> PC_DEVICE_FN void pc__load_words(Word x[3], const char *from, uint32_t left)
{
    PC_UNROLLED
    for (uint32_t w = 0; w < 3; w++)
        x[w] = w * sizeof(Word) < left ? ((const typename pc__unit<sizeof(Word)>::type *)from)[w]
                                       : 0;
}

/* Where a unit's data lies in an operand that is not packets. */
template <class Move>
PC_DEVICE_FN char *pc__ll_data(uint32_t operand, Move &m, const pc__ll_unit &u)
{
    return (char *)m.address(operand) + m.offset(operand, u.piece) + u.at;
}

/* Loads a unit of a source. True: poll gave up. */
template <class Word, class Move>
PC_DEVICE_FN bool pc__load_unit(Word x[3], uint32_t s, Move &m, const pc__ll_unit &u)
{
    const uint32_t each = PC_LL_EACH(Word);
    if (m.packets(s)) {
        const uint32_t flag = m.flag(s);
        pc_vector v[each];
        for (;;) {
            pc__load_packets<each>(v, m.address(s), u);
            if (pc__packets_came<each>(v, flag, m.seal(), u))
                break;
            if (m.poll(s))
                return true;
            pc__relax();
        }
        pc__unpack(x, v);
        return false;
    }
    const char *from = pc__ll_data(s, m, u);
    if (pc__by_words<Word>(from, u.left)) {
        pc__load_words(x, from, u.left);
        return false;
    }
    PC_ROLLED
    for (uint32_t w = 0; w < 3; w++) { /* one word's bytes at a time: x is not indexed by w */
        const uint32_t before = w * sizeof(Word);
        x[0] = x[1], x[1] = x[2];
        x[2] = pc__load_bytes<Word>(from + before, u.left > before ? u.left - before : 0);
    }
    return false;
}

template <class Word, class Move>
PC_DEVICE_FN void pc__store_unit(const Word x[3], uint32_t d, Move &m, const pc__ll_unit &u)
{
    const uint32_t each = PC_LL_EACH(Word), operand = m.nsrc() + d;
    if (m.packets(operand)) {
        pc_vector v[each];
        pc__pack(v, x, m.flag(operand));
        pc_vector *to = (pc_vector *)m.address(operand) + pc__packet_of(u.number, each);
        PC_UNROLLED
        for (uint32_t e = 0; e < each; e++)
            if (e == 0 || u.number)
                pc__store_packet(to + e, v[e]);
        return;
    }
    char *to = pc__ll_data(operand, m, u);
    if (pc__by_words<Word>(to, u.left)) {
        PC_UNROLLED
        for (uint32_t w = 0; w < 3; w++)
            if (w * sizeof(Word) < u.left)
                ((typename pc__unit<sizeof(Word)>::type *)to)[w] = x[w];
        return;
    }
    Word a = x[0], b = x[1], c = x[2];
    PC_ROLLED
    for (uint32_t w = 0; w < 3; w++) {
        const uint32_t before = w * sizeof(Word);
        pc__store_bytes<Word>(to + before, u.left > before ? u.left - before : 0, a);
        a = b, b = c;
    }
}

/* Folds a unit of all sources, one after the other; 1 + the source that poll gave up on, or 0. */
template <class F, class Move>
PC_DEVICE_FN uint32_t pc__fold_few(typename F::word x[3], Move &m, const pc__ll_unit &u)
{
    typename F::word y[3] = {};
    /* Of two, what is there is loaded before the other is waited for. */
    const uint32_t nsrc = m.nsrc(), turned = nsrc == 2 && m.plain() == 1;
    PC_ROLLED
    for (uint32_t k = 0; k < nsrc; k++) {
        if (pc__load_unit(y, k ^ turned, m, u))
            return 1 + (k ^ turned);
        PC_UNROLLED
        for (uint32_t w = 0; w < 3; w++) {
            const typename F::word a = turned ? y[w] : x[w], b = turned ? x[w] : y[w];
            x[w] = k == 0 ? y[w] : F::join(k == 1 ? F::open(a) : a, F::open(b));
        }
    }
    if (nsrc > 1 || m.divisor()) {
        PC_UNROLLED
        for (uint32_t w = 0; w < 3; w++)
            x[w] = F::close(nsrc == 1 ? F::open(x[w]) : x[w], m.divisor());
    }
    return 0;
}

/* Source k, or another one that is packets where k is not or is beyond the last one: so the same
 * loads are made whatever the sources are. */
PC_DEVICE_FN uint32_t pc__packets_of(uint32_t k, uint32_t nsrc, uint32_t plain)
{
    const uint32_t another = plain == 0 ? 1 : 0;
    return k >= nsrc || k == plain ? another : k;
}

/* The same of three sources and more, of which at most one is not packets, but lies in words. The
 * packets of `group` sources are in flight together, and polled together: peers that answer
 * at once cost the way there and back once. */
template <class F, class Move>
PC_DEVICE_FN uint32_t pc__fold_many(typename F::word x[3], Move &m, const pc__ll_unit &u)
{
    typedef typename F::word word;
    constexpr uint32_t each = PC_LL_EACH(word), group = F::together;
    const uint32_t nsrc = m.nsrc();
    word own[3] = {};
    if (m.plain() < nsrc)
        pc__load_words(own, pc__ll_data(m.plain(), m, u), u.left);
    PC_ROLLED
    for (uint32_t s = 0; s < nsrc;) {
        pc_vector v[group][each];
        uint32_t missing = 0; /* 1 + the source */
        PC_UNROLLED
        for (uint32_t g = 0; g < group; g++)
            pc__load_packets<each>(v[g], m.address(pc__packets_of(s + g, nsrc, m.plain())), u);
        /* From the last one on: else the compiler looks at the first before it loads the last. */
        PC_UNROLLED
        for (uint32_t r = 1; r <= group; r++) {
            const uint32_t k = pc__packets_of(s + group - r, nsrc, m.plain());
            missing
                = pc__packets_came<each>(v[group - r], m.flag(k), m.seal(), u) ? missing : 1 + k;
        }
        if (missing) {
            if (m.poll(missing - 1))
                return missing;
            pc__relax();
            continue;
        }
        PC_UNROLLED
        for (uint32_t g = 0; g < group; g++)
            if (s + g < nsrc) {
                word y[3];
                pc__unpack(y, v[g]);
                PC_UNROLLED
                for (uint32_t w = 0; w < 3; w++) {
                    const word z = F::open(s + g == m.plain() ? own[w] : y[w]);
                    x[w] = g == 0 && s == 0 ? z : F::join(x[w], z);
                }
            }
        if (group >= PC_MAX_SOURCES)
            break; /* so that no sum is kept while packets are waited for */
        s += group;
    }
    PC_UNROLLED
    for (uint32_t w = 0; w < 3; w++)
        x[w] = F::close(x[w], m.divisor());
    return 0;
}

/* Folds a unit, and stores it. */
template <class F, class Move> PC_DEVICE_FN uint32_t pc__move_unit(Move &m, const pc__ll_unit &u)
{
    typedef typename F::word word;
    word x[3] = {};
    uint32_t dead;
    const uint32_t nsrc = m.nsrc(), plain = m.plain();
    if (F::together > 1 && nsrc > 2
        && (plain == nsrc
            || (plain < nsrc && pc__by_words<word>(pc__ll_data(plain, m, u), u.left))))
        dead = pc__fold_many<F>(x, m, u);
    else
        dead = pc__fold_few<F>(x, m, u);
    if (dead)
        return dead;
    if (u.number == 0)
        x[8 / sizeof(word)] = m.seal();
    const uint32_t ndst = m.ndst();
    PC_ROLLED
    for (uint32_t d = 0; d < ndst; d++)
        pc__store_unit(x, d, m, u);
    return 0;
}

/* Moves what a call has of a message, by all threads; see above. Returns 0, or 1 + the operand that
 * poll gave up on; then some destinations were not written. */
template <class F, class Move> PC_DEVICE_FN uint32_t pc__span_ll(Move &m)
{
    typedef typename F::word word;
    constexpr uint32_t bytes = 3 * sizeof(word);
    uint32_t before = 0; /* units of the pieces before */
    pc__ll_unit u;
    u.number = pc__thread();
    const uint32_t count = m.count();
    PC_ROLLED
    for (u.piece = 0; u.piece < count; u.piece++) {
        /* As if the piece began that much earlier: what the first unit lacks. */
        const uint32_t lead = u.piece ? 0 : bytes - 8, nbytes = m.nbytes(u.piece);
        const uint32_t end = before + (nbytes + lead + bytes - 1) / bytes;
        PC_ROLLED
        for (; u.number < end; u.number += pc__threads()) {
            u.at = u.number ? (u.number - before) * bytes - lead : 0;
            u.left = u.number ? bytes : 8;
            u.left = nbytes - u.at < u.left ? nbytes - u.at : u.left;
            const uint32_t dead = pc__move_unit<F>(m, u);
            if (dead)
                return dead;
        }
        before = end;
    }
    return 0;
}
#endif
