/* XXH3-64 by its published specification, with seed 0 and the default secret. Inputs up to 240 bytes have formulas of
 * their own; longer ones run through eight lanes, 64 bytes a stripe and 16 stripes a block. */
#include "xxh3.h"

#include <string.h>

#include "target.h"

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87ull
#define P64_2 0xC2B2AE3D27D4EB4Full
#define P64_3 0x165667B19E3779F9ull
#define P64_4 0x85EBCA77C2B2AE63ull
#define P64_5 0x27D4EB2F165667C5ull
#define MIX_1 0x165667919E3779F9ull
#define MIX_2 0x9FB21C651E98DF25ull

#define STRIPE SHUFLR_XXH3_STRIPE
#define BLOCK SHUFLR_XXH3_BLOCK
#define SECRET 192

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t load64(const uint8_t *p)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
#else
    return (uint64_t)load32(p) | (uint64_t)load32(p + 4) << 32;
#endif
}

static inline uint64_t rotate(uint64_t v, int by)
{
    return v << by | v >> (64 - by);
}

/* Both halves of the 128-bit product, folded. */
static inline uint64_t fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche64(uint64_t h)
{
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}

static uint64_t avalanche(uint64_t h)
{
    h = (h ^ h >> 37) * MIX_1;
    return h ^ h >> 32;
}

static inline uint64_t mix16(const uint8_t *p, const uint8_t *with)
{
    return fold(load64(p) ^ load64(with), load64(p + 8) ^ load64(with + 8));
}

static uint64_t up_to_16(const uint8_t *p, size_t len)
{
    if (len > 8) {
        uint64_t low = load64(p) ^ load64(secret + 24) ^ load64(secret + 32);
        uint64_t high = load64(p + len - 8) ^ load64(secret + 40) ^ load64(secret + 48);
        return avalanche(len + __builtin_bswap64(low) + high + fold(low, high));
    }
    if (len >= 4) {
        uint64_t h = (load32(p + len - 4) + ((uint64_t)load32(p) << 32)) ^ load64(secret + 8) ^ load64(secret + 16);
        h ^= rotate(h, 49) ^ rotate(h, 24);
        h *= MIX_2;
        h ^= (h >> 35) + len;
        h *= MIX_2;
        return h ^ h >> 28;
    }
    if (len > 0) {
        uint32_t packed = (uint32_t)p[0] << 16 | (uint32_t)p[len >> 1] << 24 | p[len - 1] | (uint32_t)len << 8;
        return avalanche64((uint64_t)packed ^ (load32(secret) ^ load32(secret + 4)));
    }
    return avalanche64(load64(secret + 56) ^ load64(secret + 64));
}

static uint64_t up_to_128(const uint8_t *p, size_t len)
{
    uint64_t h = len * P64_1;

    for (size_t i = (len - 1) / 32 + 1; i-- > 0;) {
        h += mix16(p + 16 * i, secret + 32 * i);
        h += mix16(p + len - 16 * (i + 1), secret + 32 * i + 16);
    }
    return avalanche(h);
}

static uint64_t up_to_240(const uint8_t *p, size_t len)
{
    uint64_t h = len * P64_1;

    for (size_t i = 0; i < 8; i++)
        h += mix16(p + 16 * i, secret + 16 * i);
    h = avalanche(h);
    for (size_t i = 8; i < len / 16; i++)
        h += mix16(p + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(h + mix16(p + len - 16, secret + 136 - 17));
}

static inline __attribute__((always_inline)) void stripe(uint64_t acc[8], const uint8_t *p, const uint8_t *with)
{
    uint64_t value[8];

    for (int i = 0; i < 8; i++) {
        value[i] = load64(p + 8 * i);
        uint64_t keyed = value[i] ^ load64(with + 8 * i);
        acc[i] += (uint64_t)(uint32_t)keyed * (keyed >> 32);
    }
    for (int i = 0; i < 8; i++)
        acc[i] += value[i ^ 1];
}

static void scramble(uint64_t acc[8])
{
    for (int i = 0; i < 8; i++)
        acc[i] = (acc[i] ^ acc[i] >> 47 ^ load64(secret + SECRET - STRIPE + 8 * i)) * P32_1;
}

static inline __attribute__((always_inline)) void blocks_body(uint64_t acc[8], const uint8_t *p, size_t blocks)
{
    uint64_t lane[8];

    memcpy(lane, acc, sizeof lane);
    for (; blocks > 0; blocks--, p += BLOCK) {
        for (int i = 0; i < BLOCK / STRIPE; i++)
            stripe(lane, p + STRIPE * i, secret + 8 * i);
        scramble(lane);
    }
    memcpy(acc, lane, sizeof lane);
}

#ifdef SHUFLR_HAS_AVX2
#include <immintrin.h>

/* The same with four lanes in a register: gcc and clang do not find the pairs to swap by themselves. */
SHUFLR_AVX2 static void blocks_avx2(uint64_t acc[8], const uint8_t *p, size_t blocks)
{
    const __m256i prime = _mm256_set1_epi32((int)P32_1);
    __m256i lane[2];

    for (int h = 0; h < 2; h++)
        lane[h] = _mm256_loadu_si256((const __m256i *)(const void *)acc + h);
    for (; blocks > 0; blocks--, p += BLOCK) {
        for (int i = 0; i < BLOCK / STRIPE; i++)
            for (int h = 0; h < 2; h++) {
                __m256i value = _mm256_loadu_si256((const __m256i *)(const void *)(p + STRIPE * i) + h);
                __m256i with = _mm256_loadu_si256((const __m256i *)(const void *)(secret + 8 * i) + h);
                __m256i keyed = _mm256_xor_si256(value, with);
                __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
                __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
                lane[h] = _mm256_add_epi64(product, _mm256_add_epi64(lane[h], swapped));
            }
        for (int h = 0; h < 2; h++) {
            __m256i with = _mm256_loadu_si256((const __m256i *)(const void *)(secret + SECRET - STRIPE) + h);
            __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(lane[h], _mm256_srli_epi64(lane[h], 47)), with);
            __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
            lane[h] = _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
        }
    }
    for (int h = 0; h < 2; h++)
        _mm256_storeu_si256((__m256i *)(void *)acc + h, lane[h]);
}
#endif

static void digest_blocks(uint64_t acc[8], const uint8_t *p, size_t blocks)
{
#ifdef SHUFLR_HAS_AVX2
    if (__builtin_cpu_supports("avx2")) {
        blocks_avx2(acc, p, blocks);
        return;
    }
#endif
    blocks_body(acc, p, blocks);
}

/* Merges the lanes after the last stripe. */
static uint64_t merged(const uint64_t acc[8], uint64_t total)
{
    uint64_t h = total * P64_1;

    for (int i = 0; i < 4; i++)
        h += fold(acc[2 * i] ^ load64(secret + 11 + 16 * i), acc[2 * i + 1] ^ load64(secret + 19 + 16 * i));
    return avalanche(h);
}

/* What is left behind whole blocks: 1 to BLOCK bytes, of which the last stripe may begin in the block before. */
static uint64_t finish(uint64_t acc[8], const uint8_t *p, size_t left, const uint8_t *last_stripe, uint64_t total)
{
    for (size_t i = 0; i < (left - 1) / STRIPE; i++)
        stripe(acc, p + STRIPE * i, secret + 8 * i);
    stripe(acc, last_stripe, secret + SECRET - STRIPE - 7);
    return merged(acc, total);
}

static uint64_t short_hash(const uint8_t *data, size_t len)
{
    if (len <= 16)
        return up_to_16(data, len);
    return len <= 128 ? up_to_128(data, len) : up_to_240(data, len);
}

static void first_lanes(uint64_t acc[8])
{
    static const uint64_t start[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(acc, start, sizeof start);
}

uint64_t shuflr_xxh3(const uint8_t *data, size_t len)
{
    uint64_t acc[8];
    size_t whole;

    if (len <= 240)
        return short_hash(data, len);
    whole = (len - 1) / BLOCK;
    first_lanes(acc);
    digest_blocks(acc, data, whole);
    return finish(acc, data + whole * BLOCK, len - whole * BLOCK, data + len - STRIPE, len);
}

void shuflr_xxh3_init(shuflr_xxh3_state *state)
{
    first_lanes(state->acc);
    state->total = state->held = 0;
}

void shuflr_xxh3_update(shuflr_xxh3_state *state, const uint8_t *data, size_t len)
{
    state->total += len;
    while (len > 0) {
        size_t part;
        if (state->held == BLOCK) {
            digest_blocks(state->acc, state->block, 1);
            memcpy(state->last, state->block + BLOCK - STRIPE, STRIPE);
            state->held = 0;
        }
        if (state->held == 0 && len > BLOCK) {
            size_t whole = (len - 1) / BLOCK;
            digest_blocks(state->acc, data, whole);
            data += whole * BLOCK;
            len -= whole * BLOCK;
            memcpy(state->last, data - STRIPE, STRIPE);
        }
        part = BLOCK - state->held < len ? BLOCK - state->held : len;
        memcpy(state->block + state->held, data, part);
        state->held += (uint32_t)part;
        data += part;
        len -= part;
    }
}

uint64_t shuflr_xxh3_digest(const shuflr_xxh3_state *state)
{
    uint64_t acc[8];
    uint8_t bridge[STRIPE];
    const uint8_t *last = state->block + state->held - STRIPE;

    if (state->total <= 240)
        return short_hash(state->block, (size_t)state->total);
    memcpy(acc, state->acc, sizeof acc);
    if (state->held < STRIPE) {
        memcpy(bridge, state->last + state->held, STRIPE - state->held);
        memcpy(bridge + STRIPE - state->held, state->block, state->held);
        last = bridge;
    }
    return finish(acc, state->block, state->held, last, state->total);
}

/* Layout of sums: the bytes of the frame that share the first stripe with the head, padded to 24; then for each block
 * of the message the sum of its stripes, without the first stripe, the last block's with the last stripe. */
#define SHARED (STRIPE - SHUFLR_RAW_HEAD)
#define SHARED_ROOM 24

size_t shuflr_sums_size(size_t len)
{
    size_t total = len + SHUFLR_RAW_HEAD;
    return total <= 2 * BLOCK ? 0 : SHARED_ROOM + ((total - 1) / BLOCK + 1) * STRIPE;
}

void shuflr_sums(const uint8_t *frame, size_t len, uint8_t *sums)
{
    const size_t total = len + SHUFLR_RAW_HEAD, blocks = (total - 1) / BLOCK;

    memset(sums, 0, SHARED_ROOM);
    memcpy(sums, frame, SHARED);
    sums += SHARED_ROOM;
    for (size_t b = 0; b <= blocks; b++) {
        uint64_t acc[8] = {0};
        size_t first = b == 0 ? 1 : 0;
        size_t stripes = b < blocks ? BLOCK / STRIPE : (total - blocks * BLOCK - 1) / STRIPE;
        for (size_t i = first; i < stripes; i++)
            stripe(acc, frame + b * BLOCK + i * STRIPE - SHUFLR_RAW_HEAD, secret + 8 * i);
        if (b == blocks)
            stripe(acc, frame + len - STRIPE, secret + SECRET - STRIPE - 7);
        memcpy(sums + b * STRIPE, acc, STRIPE);
    }
}

uint64_t shuflr_sums_digest(const uint8_t head[SHUFLR_RAW_HEAD], const uint8_t *sums, size_t len)
{
    const size_t total = len + SHUFLR_RAW_HEAD, blocks = (total - 1) / BLOCK;
    uint8_t shared[STRIPE];
    uint64_t acc[8], sum[8];

    memcpy(shared, head, SHUFLR_RAW_HEAD);
    memcpy(shared + SHUFLR_RAW_HEAD, sums, SHARED);
    sums += SHARED_ROOM;
    first_lanes(acc);
    stripe(acc, shared, secret);
    for (size_t b = 0; b <= blocks; b++) {
        memcpy(sum, sums + b * STRIPE, STRIPE);
        for (int i = 0; i < 8; i++)
            acc[i] += sum[i];
        if (b < blocks)
            scramble(acc);
    }
    return merged(acc, total);
}
