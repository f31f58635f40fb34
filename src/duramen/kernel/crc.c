/* The implementations of crc.h and the choice among them.
 * Nothing here is compiled with -m flags: each function names the instructions it needs, and is only ever called
 * after the CPU was found to have them. An unknown CPU gets the portable tables, never an illegal instruction.
 *
 * Reading the constants: bits are reflected throughout, so bit 0 of the first byte is the highest power of x. A
 * carry-less product of two 64-bit halves, read as 128 reflected bits, is A * B * x; every constant below is one
 * power of x short for that reason. */
#include "crc.h"

#include <stdlib.h>
#include <string.h>

#include "bytes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DURAMEN_ARM_CRC 1
#if !defined(__clang__)
#include <arm_acle.h>
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

#define IEEE 0xEDB88320u
#define CASTAGNOLI 0x82F63B78u

#define INLINE static inline __attribute__((always_inline))

/* ---- portable: sixteen bytes at a time ---- */

/* slices[k][b]: what byte b adds to the state once k more bytes have followed it. */
typedef uint32_t crc_slices[16][256];

static crc_slices slices_ieee;
static crc_slices slices_castagnoli;

static void fill_slices(crc_slices slices, uint32_t polynomial)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) state = (state >> 1) ^ (state & 1 ? polynomial : 0);
        slices[0][byte] = state;
    }
    for (int k = 1; k < 16; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            const uint32_t before = slices[k - 1][byte];
            slices[k][byte] = (before >> 8) ^ slices[0][before & 0xFF];
        }
}

INLINE uint32_t slice8(const crc_slices slices, int after, uint64_t word)
{
    uint32_t sum = 0;
    for (int i = 7; i >= 0; i--) sum ^= slices[after + 7 - i][(word >> (8 * i)) & 0xFF];
    return sum;
}

INLINE uint32_t by_slices(const crc_slices slices, uint32_t crc, const uint8_t *data, size_t len)
{
    uint32_t state = ~crc;

    for (; len >= 16; data += 16, len -= 16)
        state = slice8(slices, 0, load64(data + 8, 0)) ^ slice8(slices, 8, load64(data, 0) ^ state);
    if (len & 8) {
        state = slice8(slices, 0, load64(data, 0) ^ state);
        data += 8;
    }
    for (len &= 7; len > 0; len--) state = (state >> 8) ^ slices[0][(state ^ *data++) & 0xFF];
    return ~state;
}

static uint32_t crc32_portable(uint32_t crc, const uint8_t *data, size_t len)
{
    return by_slices(slices_ieee, crc, data, len);
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *data, size_t len)
{
    return by_slices(slices_castagnoli, crc, data, len);
}

/* ---- the CRC instructions of x86-64 and ARMv8 ---- */

#if defined(__x86_64__) || defined(DURAMEN_ARM_CRC)

/* One instruction takes eight bytes but waits three cycles for the one before it. Longer inputs are therefore cut
 * into three lanes of equal length, and the lanes' states brought together by one multiplication each. */
#define LANES_FROM 144
/* Lanes 512 bytes apart or more defeat the hardware's prefetching: from memory, that is a third of the speed. */
#define LANE_WORDS 40

/* powers[n]: x^(64 n - 33) mod P. Times a state it gives 64 bits with an x too many, and the instruction that reduces
 * them adds x^32: what remains is the state moved on by n words. */
typedef uint32_t lane_powers[2 * LANE_WORDS + 1];

static void fill_lane_powers(lane_powers powers, uint32_t polynomial)
{
    uint32_t power = 1; /* x^31 = x^(64 - 33) */
    for (int n = 1; n <= 2 * LANE_WORDS; n++) {
        powers[n] = power;
        for (int bit = 0; bit < 64; bit++) power = (power >> 1) ^ (power & 1 ? polynomial : 0);
    }
}

/* STEP8 to STEP64 take (state, data) for that many bits; MULTIPLY is a carry-less 32 x 32 bit product. */
#define DEFINE_BY_INSTRUCTION(NAME, TARGET, STEP8, STEP16, STEP32, STEP64, MULTIPLY, POWERS, WITH_LANES)         \
    TARGET static uint32_t NAME(uint32_t crc, const uint8_t *data, size_t len)                                   \
    {                                                                                                            \
        uint32_t state = ~crc;                                                                                   \
        while (WITH_LANES && len >= LANES_FROM) {                                                                \
            const size_t words = len < 24 * LANE_WORDS ? len / 24 : LANE_WORDS;                                  \
            const uint8_t *second = data + 8 * words, *third = second + 8 * words, *end = second;                \
            uint32_t state2 = 0, state3 = 0;                                                                     \
            for (; data != end; data += 8, second += 8, third += 8) {                                            \
                state = STEP64(state, load64(data, 0));                                                          \
                state2 = STEP64(state2, load64(second, 0));                                                      \
                state3 = STEP64(state3, load64(third, 0));                                                       \
            }                                                                                                    \
            state = STEP64(0, MULTIPLY(state, POWERS[2 * words]) ^ MULTIPLY(state2, POWERS[words])) ^ state3;    \
            data = third;                                                                                        \
            len -= 24 * words;                                                                                   \
        }                                                                                                        \
        for (; len >= 8; data += 8, len -= 8) state = STEP64(state, load64(data, 0));                            \
        if (len & 4) {                                                                                           \
            state = STEP32(state, load32(data, 0));                                                              \
            data += 4;                                                                                           \
        }                                                                                                        \
        if (len & 2) {                                                                                           \
            state = STEP16(state, (uint16_t)(data[0] | data[1] << 8));                                           \
            data += 2;                                                                                           \
        }                                                                                                        \
        if (len & 1) state = STEP8(state, *data);                                                                \
        return ~state;                                                                                           \
    }

static lane_powers lanes_castagnoli;

#endif

/* ---- x86-64: folding ---- */

#if defined(__x86_64__)

#define SSE42 __attribute__((target("sse4.2,pclmul")))
#define PCLMUL __attribute__((target("sse4.1,ssse3,pclmul")))
#define AVX2 __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,vpclmulqdq,pclmul,sse4.2,bmi2")))

SSE42 INLINE uint64_t multiply_sse42(uint32_t a, uint32_t b)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0));
}

#define STEP64_SSE42(state, word) ((uint32_t)_mm_crc32_u64(state, word))
DEFINE_BY_INSTRUCTION(crc32c_sse42, SSE42, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, STEP64_SSE42, multiply_sse42,
                      lanes_castagnoli, 1)

/* Folding: 16 bytes that lie d bits before others are multiplied by x^d mod P and added to them. The low half holds
 * the higher powers, so it takes x^(d + 63) and the high half x^(d - 1). Both are 32 bits, in the upper half of
 * their word. */
typedef struct {
    uint64_t by256[2];   /* x^2111, x^2047: 256 bytes on */
    uint64_t by192[2];   /* x^1599, x^1535 */
    uint64_t by128[2];   /* x^1087, x^1023 */
    uint64_t by96[2];    /* x^831, x^767 */
    uint64_t by64[2];    /* x^575, x^511 */
    uint64_t by48[2];    /* x^447, x^383 */
    uint64_t by32[2];    /* x^319, x^255 */
    uint64_t by16[2];    /* x^191, x^127 */
    uint64_t finish[2];  /* x^95, x^31: 32 bits on, since a CRC is the remainder of data * x^32 */
    uint64_t barrett[2]; /* x^95 / P, the whole part; P * x^31 */
} fold_powers;

static const fold_powers fold_ieee = {
    .by256 = {0x7CC8E1E700000000, 0x03F9F86300000000},
    .by192 = {0x67F7947600000000, 0xC56D949600000000},
    .by128 = {0x7D657A1000000000, 0x7406FA9500000000},
    .by96 = {0x759FC69D00000000, 0x101A233100000000},
    .by64 = {0x653D982200000000, 0xCAD38E8F00000000},
    .by48 = {0x69CCFC0D00000000, 0x2A28386200000000},
    .by32 = {0x9570D49500000000, 0x01B5FD1D00000000},
    .by16 = {0x65673B4600000000, 0x9BA54C6F00000000},
    .finish = {0xCCAA009E00000000, 0x0000000100000000},
    .barrett = {0xB4E5B025F7011641, 0x00000001DB710641},
};

static const fold_powers fold_castagnoli = {
    .by256 = {0xE9A5D8BE00000000, 0x1426A81500000000},
    .by192 = {0x7CCBBBF200000000, 0x31C9460800000000},
    .by128 = {0x6577B24500000000, 0x7417153F00000000},
    .by96 = {0xC92F998D00000000, 0x3365346A00000000},
    .by64 = {0x1C19243B00000000, 0x75BBA45B00000000},
    .by48 = {0xA46EF4AA00000000, 0x6051243F00000000},
    .by32 = {0x33CCBBBC00000000, 0xA2158B3400000000},
    .by16 = {0x3743F7BD00000000, 0x3171D43000000000},
    .finish = {0x493C7D2700000000, 0x0000000100000000},
    .barrett = {0x4869EC38DEA713F1, 0x0000000105EC76F1},
};

/* The powers modulo the product of both polynomials, 64 bits each: what is folded with them has the remainder that the
 * data has by either polynomial. Two checksums for one pass, and at the price of one. */
static const fold_powers fold_both = {
    .by256 = {0xEC91FB0AA25B5E25, 0x53B812AA3A838A9B},
    .by192 = {0xE7997F98D364EFCC, 0x658714EFA71751B7},
    .by128 = {0xE0D410B84946A711, 0x146658CBAC0E7016},
    .by96 = {0x34240116316D3074, 0x2E729ACB3818D58D},
    .by64 = {0x9F60D46ECF51E8A1, 0x3149017FC24BD03E},
    .by48 = {0xF2A3CB4888DBDE07, 0x90E45A18584C103A},
    .by32 = {0x74AAF274F2504173, 0x31D4C51939A5C841},
    .by16 = {0xCCCF6CEBB719707F, 0x0E4615E89E1A2658},
};

/* x^63 by the polynomial that a state belongs to and 0 by the other one: times the state, it is the 16 bytes that add
 * that state, and nothing to the other checksum. */
static const uint64_t enter_ieee = 0x5959DFBFA64F1BEA, enter_castagnoli = 0x5959DFBFA64F1BEB;

/* A product by `finish`, 96 bits, modulo P. The upper 64 bits are divided by a multiplication (Barrett); what
 * the quotient times P leaves of them lands on the lower 32. */
PCLMUL INLINE uint32_t remainder96(__m128i sum, const fold_powers *k)
{
    const __m128i barrett = _mm_loadu_si128((const __m128i *)k->barrett);
    const __m128i upper = _mm_srli_si128(sum, 4);
    const __m128i quotient = _mm_clmulepi64_si128(upper, barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(_mm_clmulepi64_si128(quotient, barrett, 0x10), upper), 2);
}

/* The state is added to the first four bytes. Bytes after fewer than four of them stay unchanged. */
INLINE uint32_t beyond(uint32_t state, size_t len) { return len < 4 ? state >> (8 * len) : 0; }

PCLMUL INLINE __m128i fold128(__m128i x, const uint64_t *power, __m128i onto)
{
    const __m128i k = _mm_loadu_si128((const __m128i *)power);
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), onto);
}

PCLMUL INLINE uint32_t fold_below16(uint32_t state, const uint8_t *data, size_t len, const fold_powers *k)
{
    uint64_t low = 0, high;

    if (len >= 8) {
        low = (load64(data, 0) ^ state) << (8 * (15 - len)) << 8;
        high = load64(data + len - 8, 0) ^ ((uint64_t)state >> (8 * (len - 8)));
    } else {
        if (len >= 4)
            high = load32(data, 0) | (uint64_t)load32(data + len - 4, 0) << (8 * (len - 4));
        else
            high = data[0] | (uint32_t)data[len / 2] << (8 * (len / 2)) | (uint32_t)data[len - 1] << (8 * (len - 1));
        high = (high ^ state) << (64 - 8 * len);
    }
    const __m128i x = _mm_set_epi64x((int64_t)high, (int64_t)low);
    return remainder96(fold128(x, k->finish, _mm_setzero_si128()), k) ^ beyond(state, len);
}

/* From byte r on: the shuffle that moves a vector's first r bytes after its others, and the mask of the last r. */
static const uint8_t rotate16[32] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                     0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t last16[32] = {[16] = 255, 255, 255, 255, 255, 255, 255, 255,
                                   255, 255, 255, 255, 255, 255, 255, 255};

#define LOAD128(from) _mm_loadu_si128((const __m128i *)(from))

/* The 16 bytes that x and the bytes after it amount to. */
PCLMUL INLINE __m128i fold_rest(__m128i x, const uint8_t *data, const uint8_t *end, const fold_powers *k)
{
    if (end - data >= 48) {
        __m128i x1 = LOAD128(data), x2 = LOAD128(data + 16), x3 = LOAD128(data + 32);
        for (data += 48; end - data >= 64; data += 64) {
            x = fold128(x, k->by64, LOAD128(data));
            x1 = fold128(x1, k->by64, LOAD128(data + 16));
            x2 = fold128(x2, k->by64, LOAD128(data + 32));
            x3 = fold128(x3, k->by64, LOAD128(data + 48));
        }
        x = fold128(x, k->by48, fold128(x1, k->by32, fold128(x2, k->by16, x3)));
    }
    for (; end - data > 16; data += 16) x = fold128(x, k->by16, LOAD128(data));

    /* The last r bytes push as many out of x at its front: those are folded onto the 16 bytes that end at `end`. */
    const size_t r = (size_t)(end - data);
    const __m128i rotated = _mm_shuffle_epi8(x, LOAD128(rotate16 + r));
    const __m128i last = LOAD128(last16 + r);
    return fold128(_mm_and_si128(rotated, last), k->by16, _mm_blendv_epi8(rotated, LOAD128(end - 16), last));
}

/* The CRC that 16 bytes amount to. */
PCLMUL INLINE uint32_t reduce128(__m128i x, const fold_powers *k)
{
    return remainder96(fold128(x, k->finish, _mm_setzero_si128()), k);
}

PCLMUL INLINE uint32_t by_pclmul(uint32_t crc, const uint8_t *data, size_t len, const fold_powers *k)
{
    const uint32_t state = ~crc;

    if (len == 0) return crc;
    if (len < 16) return ~fold_below16(state, data, len, k);
    const __m128i x = _mm_xor_si128(LOAD128(data), _mm_cvtsi32_si128((int)state));
    return ~reduce128(fold_rest(x, data + 16, data + len, k), k);
}

/* What the states of both checksums add to the first 16 bytes, for `fold_both`. */
PCLMUL INLINE __m128i enter_both(const duramen_digests *sums)
{
    const __m128i ieee = _mm_cvtsi32_si128((int)~sums->crc32), castagnoli = _mm_cvtsi32_si128((int)~sums->crc32c);
    return _mm_xor_si128(_mm_clmulepi64_si128(ieee, _mm_cvtsi64_si128((int64_t)enter_ieee), 0x00),
                         _mm_clmulepi64_si128(castagnoli, _mm_cvtsi64_si128((int64_t)enter_castagnoli), 0x00));
}

PCLMUL static uint32_t crc32_pclmul(uint32_t crc, const uint8_t *data, size_t len)
{
    return by_pclmul(crc, data, len, &fold_ieee);
}

PCLMUL static uint32_t crc32c_pclmul(uint32_t crc, const uint8_t *data, size_t len)
{
    return by_pclmul(crc, data, len, &fold_castagnoli);
}

PCLMUL static void digest_pclmul(duramen_digests *sums, const uint8_t *data, size_t len)
{
    if (len < 16) { /* less than the states take up */
        sums->crc32c = crc32c_pclmul(sums->crc32c, data, len);
        sums->crc32 = crc32_pclmul(sums->crc32, data, len);
        return;
    }
    const __m128i x = fold_rest(_mm_xor_si128(LOAD128(data), enter_both(sums)), data + 16, data + len, &fold_both);
    sums->crc32c = ~reduce128(x, &fold_castagnoli);
    sums->crc32 = ~reduce128(x, &fold_ieee);
}

AVX2 INLINE __m256i fold256(__m256i y, const uint64_t *power, __m256i onto)
{
    const __m256i k = _mm256_broadcastsi128_si256(LOAD128(power));
    return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(y, k, 0x00), _mm256_clmulepi64_epi128(y, k, 0x11)),
                            onto);
}

/* Below, the setup costs more than it saves. */
#define AVX2_FROM 256

/* The 16 bytes that AVX2_FROM or more bytes, with `state` added to the first of them, amount to. */
AVX2 INLINE __m128i fold_wide(__m128i state, const uint8_t *data, size_t len, const fold_powers *k)
{
    const uint8_t *const end = data + len;

#define LOAD256(from) _mm256_loadu_si256((const __m256i *)(from))
    __m256i y = _mm256_xor_si256(LOAD256(data), _mm256_zextsi128_si256(state));
    __m256i y1 = LOAD256(data + 32), y2 = LOAD256(data + 64), y3 = LOAD256(data + 96);
    for (data += 128; end - data > 128; data += 128) {
        y = fold256(y, k->by128, LOAD256(data));
        y1 = fold256(y1, k->by128, LOAD256(data + 32));
        y2 = fold256(y2, k->by128, LOAD256(data + 64));
        y3 = fold256(y3, k->by128, LOAD256(data + 96));
    }
    y = fold256(y, k->by96, fold256(y1, k->by64, fold256(y2, k->by32, y3)));
#undef LOAD256
    const __m128i x = fold128(_mm256_castsi256_si128(y), k->by16, _mm256_extracti128_si256(y, 1));
    return fold_rest(x, data, end, k);
}

AVX2 static uint32_t crc32_avx2(uint32_t crc, const uint8_t *data, size_t len)
{
    if (len < AVX2_FROM) return crc32_pclmul(crc, data, len);
    return ~reduce128(fold_wide(_mm_cvtsi32_si128((int)~crc), data, len, &fold_ieee), &fold_ieee);
}

AVX2 static uint32_t crc32c_avx2(uint32_t crc, const uint8_t *data, size_t len)
{
    if (len < AVX2_FROM) return crc32c_sse42(crc, data, len);
    return ~reduce128(fold_wide(_mm_cvtsi32_si128((int)~crc), data, len, &fold_castagnoli), &fold_castagnoli);
}

AVX2 static void digest_avx2(duramen_digests *sums, const uint8_t *data, size_t len)
{
    if (len < AVX2_FROM) {
        digest_pclmul(sums, data, len);
        return;
    }
    const __m128i x = fold_wide(enter_both(sums), data, len, &fold_both);
    sums->crc32c = ~reduce128(x, &fold_castagnoli);
    sums->crc32 = ~reduce128(x, &fold_ieee);
}
#undef LOAD128

AVX512 INLINE __m512i fold512(__m512i z, const uint64_t *power, __m512i onto)
{
    const __m512i k = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)power));
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(z, k, 0x00), _mm512_clmulepi64_epi128(z, k, 0x11),
                                     onto, 0x96); /* the sum of all three */
}

/* From byte r on: as rotate16, for 64 bytes. */
#define EIGHT(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
#define SIXTY_FOUR EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
static const _Alignas(64) uint8_t rotate64[128] = {SIXTY_FOUR, SIXTY_FOUR};

/* From here on four sums hide the latency of a fold. Below, the work on the next record does. */
#define FOUR_FROM 512

/* The 64 bytes that one or more bytes, with `state` added to the first of them, amount to. */
AVX512 INLINE __m512i fold_to64(__m128i state, const uint8_t *data, size_t len, const fold_powers *k)
{
    const __m512i first = _mm512_zextsi128_si512(state);

#define LOAD512(from) _mm512_loadu_si512((const void *)(from))
    if (len <= 64) {
        /* The mask keeps the load from faulting; it costs some 100 ns where the next page is not there. */
        const __m512i z = _mm512_xor_si512(_mm512_maskz_loadu_epi8(~0ull >> (64 - len), data), first);
        return _mm512_maskz_permutexvar_epi8(~0ull << (64 - len), LOAD512(rotate64 + len), z);
    }
    const uint8_t *const end = data + len;
    __m512i z = _mm512_xor_si512(LOAD512(data), first);
    data += 64;
    if (len > FOUR_FROM) {
        __m512i z1 = LOAD512(data), z2 = LOAD512(data + 64), z3 = LOAD512(data + 128);
        for (data += 192; end - data > 256; data += 256) {
            z = fold512(z, k->by256, LOAD512(data));
            z1 = fold512(z1, k->by256, LOAD512(data + 64));
            z2 = fold512(z2, k->by256, LOAD512(data + 128));
            z3 = fold512(z3, k->by256, LOAD512(data + 192));
        }
        z = fold512(z, k->by192, fold512(z1, k->by128, fold512(z2, k->by64, z3)));
    }
    for (; end - data > 64; data += 64) z = fold512(z, k->by64, LOAD512(data));

    /* As in by_pclmul, with 1 to 64 bytes left. */
    const size_t r = (size_t)(end - data);
    const __mmask64 last = ~0ull << (64 - r);
    const __m512i rotated = _mm512_permutexvar_epi8(LOAD512(rotate64 + r), z);
    return fold512(_mm512_maskz_mov_epi8(last, rotated), k->by64,
                   _mm512_mask_blend_epi8(last, rotated, LOAD512(end - 64)));
}

/* Brings the four quarters of z to one place, each by powers of its own. */
AVX512 INLINE __m128i fold_quarters(__m512i z, const uint64_t *powers)
{
    const __m512i k = LOAD512(powers);
    const __m512i sum = _mm512_xor_si512(_mm512_clmulepi64_epi128(z, k, 0x00), _mm512_clmulepi64_epi128(z, k, 0x11));
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
#undef LOAD512

/* The CRC-32 that 64 bytes amount to: to their end and, as `finish` does, 32 bits beyond it. */
AVX512 INLINE uint32_t reduce_ieee(__m512i z)
{
    static const _Alignas(64) uint64_t powers[8] = {
        0x1D9513D700000000, 0x3DB1ECDC00000000, /* x^479, x^415 */
        0xAF44924700000000, 0xF1DA05AA00000000, /* x^351, x^287 */
        0x8125652700000000, 0xAE68919100000000, /* x^223, x^159 */
        0xCCAA009E00000000, 0x0000000100000000, /* x^95, x^31 */
    };
    return remainder96(fold_quarters(z, powers), &fold_ieee);
}

/* The CRC-32C: to their end only, because the instruction that reduces the sum adds the 32 bits. */
AVX512 INLINE uint32_t reduce_castagnoli(__m512i z)
{
    static const _Alignas(64) uint64_t powers[8] = {
        0xA46EF4AA00000000, 0x6051243F00000000, /* x^447, x^383 */
        0x33CCBBBC00000000, 0xA2158B3400000000, /* x^319, x^255 */
        0x3743F7BD00000000, 0x3171D43000000000, /* x^191, x^127 */
        0xDD45AAB800000000, 0x05EC76F100000000, /* x^63, 1/x */
    };
    const __m128i sum = fold_quarters(z, powers);
    const uint64_t low = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(sum));
    return (uint32_t)_mm_crc32_u64(low, (uint64_t)_mm_extract_epi64(sum, 1));
}

AVX512 static uint32_t crc32_avx512(uint32_t crc, const uint8_t *data, size_t len)
{
    const uint32_t state = ~crc;
    if (len == 0) return crc;
    return ~(reduce_ieee(fold_to64(_mm_cvtsi32_si128((int)state), data, len, &fold_ieee)) ^ beyond(state, len));
}

AVX512 static uint32_t crc32c_avx512(uint32_t crc, const uint8_t *data, size_t len)
{
    const uint32_t state = ~crc;
    if (len == 0) return crc;
    return ~(reduce_castagnoli(fold_to64(_mm_cvtsi32_si128((int)state), data, len, &fold_castagnoli)) ^
             beyond(state, len));
}

AVX512 static void digest_avx512(duramen_digests *sums, const uint8_t *data, size_t len)
{
    if (len < 16) { /* less than the states take up */
        sums->crc32c = crc32c_avx512(sums->crc32c, data, len);
        sums->crc32 = crc32_avx512(sums->crc32, data, len);
        return;
    }
    const __m512i z = fold_to64(enter_both(sums), data, len, &fold_both);
    sums->crc32c = ~reduce_castagnoli(z);
    sums->crc32 = ~reduce_ieee(z);
}

#endif

/* ---- ARMv8 ---- */

#if defined(DURAMEN_ARM_CRC)

/* Where clang is told of no CPU, its headers lack these intrinsics. Its builtins need the target attribute only. */
#if defined(__clang__)
#define ARM_CRC __attribute__((target("crc")))
#define ARM_PMULL __attribute__((target("crc,aes")))
#define STEP(kind, state, data) __builtin_arm_##kind(state, data)
#define MULTIPLY_ARM(a, b) ((uint64_t)__builtin_neon_vmull_p64(a, b))
#else
#define ARM_CRC __attribute__((target("+crc")))
#define ARM_PMULL __attribute__((target("+crc+crypto")))
#define STEP(kind, state, data) __##kind(state, data)
#define MULTIPLY_ARM(a, b) ((uint64_t)vmull_p64(a, b))
#endif

static lane_powers lanes_ieee;

#define STEP_B(s, d) STEP(crc32b, s, d)
#define STEP_H(s, d) STEP(crc32h, s, d)
#define STEP_W(s, d) STEP(crc32w, s, d)
#define STEP_D(s, d) STEP(crc32d, s, d)
#define STEP_CB(s, d) STEP(crc32cb, s, d)
#define STEP_CH(s, d) STEP(crc32ch, s, d)
#define STEP_CW(s, d) STEP(crc32cw, s, d)
#define STEP_CD(s, d) STEP(crc32cd, s, d)
#define NO_MULTIPLY(a, b) ((uint64_t)0 * (a) * (b)) /* without lanes: never evaluated */

DEFINE_BY_INSTRUCTION(crc32_armv8, ARM_CRC, STEP_B, STEP_H, STEP_W, STEP_D, NO_MULTIPLY, lanes_ieee, 0)
DEFINE_BY_INSTRUCTION(crc32c_armv8, ARM_CRC, STEP_CB, STEP_CH, STEP_CW, STEP_CD, NO_MULTIPLY, lanes_castagnoli, 0)
DEFINE_BY_INSTRUCTION(crc32_pmull, ARM_PMULL, STEP_B, STEP_H, STEP_W, STEP_D, MULTIPLY_ARM, lanes_ieee, 1)
DEFINE_BY_INSTRUCTION(crc32c_pmull, ARM_PMULL, STEP_CB, STEP_CH, STEP_CW, STEP_CD, MULTIPLY_ARM, lanes_castagnoli, 1)

#endif

/* ---- joining ---- */

#define JOIN_DIGITS 4

/* join_powers[k][b]: x^(8 b 256^k) mod P, what b * 256^k bytes shift a CRC by. The highest bit is x^0. */
static uint32_t join_powers[JOIN_DIGITS][256];

static uint32_t multiply_ieee(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (IEEE & (0u - (b & 1)));
    }
    return product;
}

static void fill_join_powers(void)
{
    uint32_t one = UINT32_C(1) << 23; /* x^8 */
    for (int k = 0; k < JOIN_DIGITS; k++) {
        join_powers[k][0] = UINT32_C(1) << 31;
        for (int b = 1; b < 256; b++) join_powers[k][b] = multiply_ieee(join_powers[k][b - 1], one);
        one = multiply_ieee(join_powers[k][255], one);
    }
}

uint32_t duramen_crc32_join(uint32_t before, uint32_t after, uint32_t len)
{
    for (int k = 0; k < JOIN_DIGITS; k++) {
        const uint32_t digit = len >> (8 * k) & 0xFF;
        if (digit != 0) before = multiply_ieee(before, join_powers[k][digit]);
    }
    return before ^ after;
}

/* ---- the choice ---- */

typedef struct {
    duramen_crc_variant all[5];
    size_t count;
} crc_choice;

static crc_choice choice_ieee, choice_castagnoli;
static duramen_crc_fn best_ieee, best_castagnoli;

/* One after the other, over stretches that the second one finds in the nearest cache. */
static void digest_apart(duramen_digests *sums, const uint8_t *data, size_t len)
{
    while (len > 0) {
        const size_t some = len < 16384 ? len : 16384;
        sums->crc32c = best_castagnoli(sums->crc32c, data, some);
        sums->crc32 = best_ieee(sums->crc32, data, some);
        data += some;
        len -= some;
    }
}

static duramen_digest_variant digest_variants[4] = {{"apart", digest_apart}};
static size_t digest_count = 1;

#if defined(__x86_64__)
static void offer_digest(const char *name, duramen_digest_fn fn)
{
    digest_variants[digest_count++] = (duramen_digest_variant){name, fn};
}
#endif

static void offer(crc_choice *choice, const char *name, duramen_crc_fn fn)
{
    choice->all[choice->count++] = (duramen_crc_variant){name, fn};
}

/* Before main, or while the library is loaded: no thread can see a choice half made. */
__attribute__((constructor)) static void choose(void)
{
    fill_join_powers();
    fill_slices(slices_ieee, IEEE);
    fill_slices(slices_castagnoli, CASTAGNOLI);
    offer(&choice_ieee, "portable", crc32_portable);
    offer(&choice_castagnoli, "portable", crc32c_portable);

#if defined(__x86_64__)
    fill_lane_powers(lanes_castagnoli, CASTAGNOLI);
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        offer(&choice_ieee, "pclmul", crc32_pclmul);
        offer(&choice_castagnoli, "pclmul", crc32c_pclmul);
        offer(&choice_castagnoli, "sse42", crc32c_sse42);
        offer_digest("pclmul", digest_pclmul);
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq")) {
            offer(&choice_ieee, "avx2", crc32_avx2);
            offer(&choice_castagnoli, "avx2", crc32c_avx2);
            offer_digest("avx2", digest_avx2);
        }
        const char *wide = getenv("DURAMEN_AVX512"); /* 0: as a processor without it, to measure or to compare */
        if ((wide == NULL || strcmp(wide, "0") != 0) && __builtin_cpu_supports("avx512f") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("vpclmulqdq") &&
            __builtin_cpu_supports("bmi2")) {
            offer(&choice_ieee, "avx512", crc32_avx512);
            offer(&choice_castagnoli, "avx512", crc32c_avx512);
            offer_digest("avx512", digest_avx512);
        }
    }
#elif defined(DURAMEN_ARM_CRC)
#if defined(__APPLE__)
    const int has_crc = 1, has_pmull = 1;
#elif defined(__linux__)
    const unsigned long capabilities = getauxval(AT_HWCAP);
    const int has_crc = (capabilities & HWCAP_CRC32) != 0, has_pmull = (capabilities & HWCAP_PMULL) != 0;
#else
    const int has_crc = 0, has_pmull = 0;
#endif
    fill_lane_powers(lanes_ieee, IEEE);
    fill_lane_powers(lanes_castagnoli, CASTAGNOLI);
    if (has_crc) {
        offer(&choice_ieee, "armv8", crc32_armv8);
        offer(&choice_castagnoli, "armv8", crc32c_armv8);
    }
    if (has_crc && has_pmull) {
        offer(&choice_ieee, "armv8-pmull", crc32_pmull);
        offer(&choice_castagnoli, "armv8-pmull", crc32c_pmull);
    }
#endif

    best_ieee = choice_ieee.all[choice_ieee.count - 1].fn;
    best_castagnoli = choice_castagnoli.all[choice_castagnoli.count - 1].fn;
}

/* A long pass over a mapped file drops the pages it has passed. */
static uint32_t passing(uint32_t (*fn)(uint32_t, const uint8_t *, size_t), uint32_t crc, const uint8_t *data, size_t len)
{
    for (; len > PASS_BYTES; len -= PASS_BYTES, data += PASS_BYTES) {
        crc = fn(crc, data, PASS_BYTES);
        duramen_passed(data, data + PASS_BYTES);
    }
    return fn(crc, data, len);
}

uint32_t duramen_crc32(uint32_t crc, const uint8_t *data, size_t len)
{
    return len > PASS_BYTES ? passing(best_ieee, crc, data, len) : best_ieee(crc, data, len);
}

uint32_t duramen_crc32c(uint32_t crc, const uint8_t *data, size_t len)
{
    return len > PASS_BYTES ? passing(best_castagnoli, crc, data, len) : best_castagnoli(crc, data, len);
}

void duramen_digest(duramen_digests *sums, const uint8_t *data, size_t len)
{
    digest_variants[digest_count - 1].fn(sums, data, len);
}

size_t duramen_crc32_variants(const duramen_crc_variant **out)
{
    *out = choice_ieee.all;
    return choice_ieee.count;
}

size_t duramen_crc32c_variants(const duramen_crc_variant **out)
{
    *out = choice_castagnoli.all;
    return choice_castagnoli.count;
}

size_t duramen_digest_variants(const duramen_digest_variant **out)
{
    *out = digest_variants;
    return digest_count;
}
