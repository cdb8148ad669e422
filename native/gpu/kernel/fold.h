/* The fold of a REDUCE_COPY on a GPU, one word at a time: native/reduce/reduce.h says which bits.
 *
 * pc__folding<dtype, op> is a functor over words of 4 bytes, or of 8 where an element has 8; a word
 * holds one element or several side by side.
 *   open(word)            makes an accumulator of a source's word
 *   join(acc, acc)        one op on every element, rounded to the dtype
 *   close(acc, divisor)   makes the word of a result; an average divides here, unless divisor is 0
 * As acc is no wider than the word, elements of 16 bits are rounded and packed after every op,
 * which is what their definition asks for anyway.
 *
 * Common to SIMT and CUDA. */
#ifndef PC_KERNEL_FOLD_H
#define PC_KERNEL_FOLD_H
#include "gpu/kernel/half.h"

/* Elements of `bits` bits side by side in a word, all at once. */
template <uint32_t bits> struct pc__lanes {
    static constexpr uint32_t last = bits == 8 ? 0x01010101u : 0x00010001u; /* lowest bits */
    static constexpr uint32_t top = last << (bits - 1);

    /* x in each element. */
    PC_DEVICE_FN constexpr uint32_t all(uint32_t x)
    {
        return x * last;
    }

    /* Adds without carries from one element into the next. */
    PC_DEVICE_FN uint32_t add(uint32_t a, uint32_t b)
    {
        return ((a & ~top) + (b & ~top)) ^ ((a ^ b) & top);
    }

    /* All ones in each element with a >= b, unsigned. */
    PC_DEVICE_FN uint32_t not_below(uint32_t a, uint32_t b)
    {
        uint32_t lower = (a | top) - (b & ~top); /* top bits: a >= b by the lower bits */
        uint32_t found = ((a & ~b) | (~(a ^ b) & lower)) & top;
        return found | (found - (found >> (bits - 1)));
    }

    PC_DEVICE_FN uint32_t select(uint32_t mask, uint32_t a, uint32_t b)
    {
        return (a & mask) | (b & ~mask);
    }
};

/* Sums and products of floats as wide as the word. Processors differ in which NaN an addition
 * makes, so close() makes one NaN of all. */
template <class Word, class Float, Word infinity, Word quiet, uint32_t op> struct pc__floats {
    typedef Word word;
    static constexpr uint32_t bytes = sizeof(Word);

    PC_DEVICE_FN Word open(Word x)
    {
        return x;
    }

    PC_DEVICE_FN Word join(Word a, Word b)
    {
        const Float x = pc__bits<Float>(a), y = pc__bits<Float>(b);
        return pc__bits<Word>(op == PC_REDUCE_PROD ? x * y : x + y);
    }

    PC_DEVICE_FN Word close(Word x, uint32_t divisor)
    {
        if (op == PC_REDUCE_AVG && divisor)
            x = pc__bits<Word>(pc__bits<Float>(x) / (Float)divisor);
        return (Word)(x << 1) > (Word)(infinity << 1) ? quiet : x;
    }
};

/* Sums and products of 16-bit floats: two to a word, as if in float32 and rounded after each op. */
struct pc__float16 {
    static constexpr uint32_t infinity = 0x7c00u, quiet = 0x7e00u;

    PC_DEVICE_FN float low(uint32_t word)
    {
        return pc__low_float16(word);
    }

    PC_DEVICE_FN float high(uint32_t word)
    {
        return pc__high_float16(word);
    }

    PC_DEVICE_FN uint32_t pack(float low, float high)
    {
        return pc__pack_float16(low, high);
    }

    PC_DEVICE_FN uint32_t add(uint32_t a, uint32_t b)
    {
        return pc__add_float16(a, b);
    }

    PC_DEVICE_FN uint32_t mul(uint32_t a, uint32_t b)
    {
        return pc__mul_float16(a, b);
    }
};

struct pc__bfloat16 {
    static constexpr uint32_t infinity = 0x7f80u, quiet = 0x7fc0u;

    PC_DEVICE_FN float low(uint32_t word)
    {
        return pc__bits<float>(word << 16);
    }

    PC_DEVICE_FN float high(uint32_t word)
    {
        return pc__bits<float>(word & 0xffff0000u);
    }

    PC_DEVICE_FN uint32_t pack(float low, float high)
    {
        return pc__pack_bfloat16(low, high);
    }

    PC_DEVICE_FN uint32_t add(uint32_t a, uint32_t b)
    {
        return pc__add_bfloat16(a, b);
    }

    PC_DEVICE_FN uint32_t mul(uint32_t a, uint32_t b)
    {
        return pc__mul_bfloat16(a, b);
    }
};

template <class Half, uint32_t op> struct pc__halves {
    typedef uint32_t word;
    typedef pc__lanes<16> lanes;
    static constexpr uint32_t bytes = 2;

    PC_DEVICE_FN uint32_t open(uint32_t x)
    {
        return x;
    }

    PC_DEVICE_FN uint32_t join(uint32_t a, uint32_t b)
    {
        return op == PC_REDUCE_PROD ? Half::mul(a, b) : Half::add(a, b);
    }

    PC_DEVICE_FN uint32_t close(uint32_t x, uint32_t divisor)
    {
        if (op == PC_REDUCE_AVG && divisor)
            x = Half::pack(Half::low(x) / (float)divisor, Half::high(x) / (float)divisor);
        uint32_t nan = lanes::not_below(x & ~lanes::top, lanes::all(Half::infinity + 1));
        return lanes::select(nan, lanes::all(Half::quiet), x);
    }
};

/* The least and greatest of floats, as integers. With all other bits turned over where the sign is
 * set, the bits of floats are in the order of their values, -0 below +0, and NaNs lie beyond both
 * infinities. A shift round the circle of integers brings the NaNs of the wrong end to the right
 * one, where any of them prevails over every number. The shift goes on by half the circle, so that
 * the order is that of unsigned integers. */
template <class Word, class Signed, Word infinity, Word quiet, uint32_t op> struct pc__ordered {
    typedef Word word;
    static constexpr uint32_t bytes = sizeof(Word);
    static constexpr bool least = op == PC_REDUCE_MIN;
    static constexpr Word top = (Word)1 << (8 * sizeof(Word) - 1), nans = top - 1 - infinity;
    static constexpr Word shift = least ? top + nans : top - nans;
    static constexpr Word bound = least ? 2 * nans : infinity + shift + 1; /* of the NaNs */

    PC_DEVICE_FN Word turn(Word x)
    {
        return x ^ ((Word)((Signed)x >> (8 * sizeof(Word) - 1)) & (top - 1));
    }

    PC_DEVICE_FN Word open(Word x)
    {
        return turn(x) + shift;
    }

    PC_DEVICE_FN Word join(Word a, Word b)
    {
        return (a < b) == least ? a : b;
    }

    PC_DEVICE_FN Word close(Word x, uint32_t)
    {
        return (x < bound) == least ? quiet : turn(x - shift);
    }
};

/* The same for two 16-bit floats side by side. */
template <class Half, uint32_t op> struct pc__ordered_halves {
    typedef uint32_t word;
    typedef pc__lanes<16> lanes;
    static constexpr uint32_t bytes = 2;
    static constexpr bool least = op == PC_REDUCE_MIN;
    static constexpr uint32_t nans = 0x7fffu - Half::infinity;
    static constexpr uint32_t shift = least ? 0x8000u + nans : 0x8000u - nans;
    static constexpr uint32_t bound = least ? 2 * nans : Half::infinity + shift + 1;

    PC_DEVICE_FN uint32_t turn(uint32_t x)
    {
        uint32_t negative = x & lanes::top;
        return x ^ (negative - (negative >> 15));
    }

    PC_DEVICE_FN uint32_t open(uint32_t x)
    {
        return lanes::add(turn(x), lanes::all(shift));
    }

    PC_DEVICE_FN uint32_t join(uint32_t a, uint32_t b)
    {
        uint32_t above = lanes::not_below(a, b);
        return least ? lanes::select(above, b, a) : lanes::select(above, a, b);
    }

    PC_DEVICE_FN uint32_t close(uint32_t x, uint32_t)
    {
        uint32_t above = lanes::not_below(x, lanes::all(bound));
        uint32_t value = turn(lanes::add(x, lanes::all(0x10000u - shift)));
        return lanes::select(least ? ~above : above, lanes::all(Half::quiet), value);
    }
};

/* Integers as wide as the word. They wrap, so sums and products are unsigned. A quotient is
 * truncated: taken of the sizes, with the sign put back. */
template <class Word, class Number, uint32_t op> struct pc__integers {
    typedef Word word;
    static constexpr uint32_t bytes = sizeof(Word);

    PC_DEVICE_FN Word open(Word x)
    {
        return x;
    }

    PC_DEVICE_FN Word join(Word a, Word b)
    {
        if (op == PC_REDUCE_PROD)
            return a * b;
        if (op == PC_REDUCE_MIN)
            return (Number)a < (Number)b ? a : b;
        if (op == PC_REDUCE_MAX)
            return (Number)a > (Number)b ? a : b;
        return a + b;
    }

    PC_DEVICE_FN Word close(Word x, uint32_t divisor)
    {
        if (op != PC_REDUCE_AVG || divisor == 0)
            return x;
        bool negative = (Number)-1 < (Number)1 && x >> (8 * sizeof(Word) - 1);
        Word quotient = (negative ? (Word)0 - x : x) / divisor;
        return negative ? (Word)0 - quotient : quotient;
    }
};

/* Four integers of 8 bits to a word; the least and greatest as unsigned ones. */
template <class Number, uint32_t op> struct pc__bytes {
    typedef uint32_t word;
    typedef pc__lanes<8> lanes;
    static constexpr uint32_t bytes = 1;
    static constexpr bool extreme = op == PC_REDUCE_MIN || op == PC_REDUCE_MAX;
    static constexpr uint32_t turned = extreme && (Number)-1 < (Number)0 ? lanes::top : 0;

    PC_DEVICE_FN uint32_t open(uint32_t x)
    {
        return x ^ turned;
    }

    PC_DEVICE_FN uint32_t join(uint32_t a, uint32_t b)
    {
        if (op == PC_REDUCE_PROD)
            return product(a, b, 0) | product(a, b, 8) | product(a, b, 16) | product(a, b, 24);
        if (!extreme)
            return lanes::add(a, b);
        uint32_t above = lanes::not_below(a, b);
        return op == PC_REDUCE_MIN ? lanes::select(above, b, a) : lanes::select(above, a, b);
    }

    PC_DEVICE_FN uint32_t close(uint32_t x, uint32_t divisor)
    {
        if (op != PC_REDUCE_AVG || divisor == 0)
            return x ^ turned;
        return part(x, divisor, 0) | part(x, divisor, 8) | part(x, divisor, 16)
               | part(x, divisor, 24);
    }

  private:
    PC_DEVICE_FN uint32_t product(uint32_t a, uint32_t b, uint32_t shift)
    {
        return ((a >> shift) * (b >> shift) & 0xffu) << shift;
    }

    PC_DEVICE_FN uint32_t part(uint32_t x, uint32_t divisor, uint32_t shift)
    {
        int32_t value = (Number)(x >> shift);
        uint32_t quotient = (uint32_t)(value < 0 ? -value : value) / divisor;
        return ((value < 0 ? 0u - quotient : quotient) & 0xffu) << shift;
    }
};

/* The table of functors. Min and max of floats have another one than sums. */
template <uint32_t dtype, uint32_t op> struct pc__folding;

template <bool condition, class Then, class Else> struct pc__either {
    typedef Then type;
};

template <class Then, class Else> struct pc__either<false, Then, Else> {
    typedef Else type;
};

#if !defined(PC_TARGET_DEEP_BYTES)
#define PC_TARGET_DEEP_BYTES 3
#endif
#if !defined(PC_TARGET_DEEP_AVERAGES)
#define PC_TARGET_DEEP_AVERAGES 3
#endif
/* LL packets of different sources that a thread has in flight together. */
#if !defined(PC_TARGET_LL_PACKETS)
#define PC_TARGET_LL_PACKETS 8
#endif
#if !defined(PC_TARGET_DEEP_WORDS)
#define PC_TARGET_DEEP_WORDS 4
#endif

/* Loads of a source in flight together: fewer where the fold itself needs registers, as all kernels
 * have at most 80; tests/sass checks that. */
PC_DEVICE_FN constexpr uint32_t pc__deep(uint32_t dtype, uint32_t op)
{
    const bool sum = op == PC_REDUCE_SUM, average = op == PC_REDUCE_AVG;
    const bool extreme = op == PC_REDUCE_MIN || op == PC_REDUCE_MAX;
    const bool bytes = dtype == PC_DTYPE_INT8 || dtype == PC_DTYPE_UINT8;
    if (average && !bytes && PC_TARGET_DEEP_AVERAGES < 3)
        return PC_TARGET_DEEP_AVERAGES;
    switch (dtype) {
    case PC_DTYPE_INT8:
    case PC_DTYPE_UINT8:
        return sum ? PC_TARGET_DEEP_BYTES : PC_TARGET_DEEP_BYTES / 2 + 1;
    case PC_DTYPE_FLOAT16:
    case PC_DTYPE_BFLOAT16:
        return sum ? 4 : average ? 3 : 2;
    case PC_DTYPE_FLOAT32:
        return extreme ? 3 : PC_TARGET_DEEP_WORDS;
    case PC_DTYPE_FLOAT64:
        return average || extreme ? 3 : 4;
    default:
        return 4;
    }
}

/* Sources whose LL packets a thread has in flight together. Words of 8 bytes take two packets each,
 * and some folds of them need registers, too. */
PC_DEVICE_FN constexpr uint32_t pc__together(uint32_t dtype, uint32_t op)
{
    const bool extreme = op == PC_REDUCE_MIN || op == PC_REDUCE_MAX;
    switch (dtype) {
    case PC_DTYPE_FLOAT64:
    case PC_DTYPE_INT64:
    case PC_DTYPE_UINT64:
        if (op == PC_REDUCE_AVG || (extreme && dtype == PC_DTYPE_FLOAT64))
            return PC_TARGET_LL_PACKETS / 4;
        return PC_TARGET_LL_PACKETS > 4 ? 3 : PC_TARGET_LL_PACKETS / 2;
    default:
        return PC_TARGET_LL_PACKETS;
    }
}

#define PC__EXTREME(op) ((op) == PC_REDUCE_MIN || (op) == PC_REDUCE_MAX)
#define PC__FOLDING(name, ...) \
    template <uint32_t op> struct pc__folding<PC_DTYPE_##name, op> : __VA_ARGS__ { \
        static constexpr bool copies = false; \
        static constexpr uint32_t deep = pc__deep(PC_DTYPE_##name, op); \
        static constexpr uint32_t together = pc__together(PC_DTYPE_##name, op); \
    };
#define PC__FLOAT(name, Word, Signed, Float, infinity, quiet) \
    PC__FOLDING(name, pc__either<PC__EXTREME(op), pc__ordered<Word, Signed, infinity, quiet, op>, \
                                 pc__floats<Word, Float, infinity, quiet, op>>::type)
#define PC__HALF(name, Half) \
    PC__FOLDING( \
        name, \
        pc__either<PC__EXTREME(op), pc__ordered_halves<Half, op>, pc__halves<Half, op>>::type)
PC__FLOAT(FLOAT64, uint64_t, int64_t, double, 0x7ff0000000000000u, 0x7ff8000000000000u)
PC__FLOAT(FLOAT32, uint32_t, int32_t, float, 0x7f800000u, 0x7fc00000u)
PC__HALF(FLOAT16, pc__float16)
PC__HALF(BFLOAT16, pc__bfloat16)
PC__FOLDING(INT8, pc__bytes<int8_t, op>)
PC__FOLDING(UINT8, pc__bytes<uint8_t, op>)
PC__FOLDING(INT32, pc__integers<uint32_t, int32_t, op>)
PC__FOLDING(UINT32, pc__integers<uint32_t, uint32_t, op>)
PC__FOLDING(INT64, pc__integers<uint64_t, int64_t, op>)
PC__FOLDING(UINT64, pc__integers<uint64_t, uint64_t, op>)
#undef PC__EXTREME
#undef PC__FOLDING
#undef PC__FLOAT
#undef PC__HALF

/* A copy of elements, bit for bit. */
template <class F> struct pc__copying {
    typedef typename F::word word;
    static constexpr uint32_t bytes = F::bytes;
    static constexpr bool copies = true;
    static constexpr uint32_t deep = 8;

    PC_DEVICE_FN word open(word x)
    {
        return x;
    }

    PC_DEVICE_FN word join(word a, word)
    {
        return a;
    }

    PC_DEVICE_FN word close(word x, uint32_t)
    {
        return x;
    }
};
#endif
