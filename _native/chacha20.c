/* The ChaCha20 block function of RFC 8439, sections 2.1 to 2.3, and eight blocks of it side by side.
 *
 * It keeps no state: each call is a pure function of key and counter. Words are read and written
 * little-endian byte by byte, so the result does not depend on the machine's byte order. */
#include "chacha20.h"

#include <stddef.h>
#include <string.h>

#include "target.h"

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void store32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static uint32_t rotl(uint32_t v, int n)
{
    return v << n | v >> (32 - n);
}

static void quarter_round(uint32_t s[16], size_t a, size_t b, size_t c, size_t d)
{
    s[a] += s[b], s[d] = rotl(s[d] ^ s[a], 16);
    s[c] += s[d], s[b] = rotl(s[b] ^ s[c], 12);
    s[a] += s[b], s[d] = rotl(s[d] ^ s[a], 8);
    s[c] += s[d], s[b] = rotl(s[b] ^ s[c], 7);
}

void shuflr_chacha20_block(const uint8_t key[32], uint32_t counter, const uint8_t nonce[12], uint8_t out[64])
{
    /* "expand 32-byte k" */
    uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    uint32_t s[16];

    for (size_t i = 0; i < 8; i++)
        start[4 + i] = load32(key + 4 * i);
    start[12] = counter;
    for (size_t i = 0; i < 3; i++)
        start[13 + i] = load32(nonce + 4 * i);
    for (size_t i = 0; i < 16; i++)
        s[i] = start[i];
    for (int round = 0; round < 10; round++) {
        quarter_round(s, 0, 4, 8, 12);
        quarter_round(s, 1, 5, 9, 13);
        quarter_round(s, 2, 6, 10, 14);
        quarter_round(s, 3, 7, 11, 15);
        quarter_round(s, 0, 5, 10, 15);
        quarter_round(s, 1, 6, 11, 12);
        quarter_round(s, 2, 7, 8, 13);
        quarter_round(s, 3, 4, 9, 14);
    }
    for (size_t i = 0; i < 16; i++)
        store32(out + 4 * i, s[i] + start[i]);
}

/* One lane per block: the compiler turns each line into one instruction for eight (AVX2) or twice four (SSE2) words. */
typedef uint32_t lanes __attribute__((vector_size(4 * SHUFLR_CHACHA20_BATCH)));

#define ROTL(v, n) ((v) << (n) | (v) >> (32 - (n)))
#define QUARTER(a, b, c, d)                           \
    do {                                              \
        v[a] += v[b], v[d] = ROTL(v[d] ^ v[a], 16);   \
        v[c] += v[d], v[b] = ROTL(v[b] ^ v[c], 12);   \
        v[a] += v[b], v[d] = ROTL(v[d] ^ v[a], 8);    \
        v[c] += v[d], v[b] = ROTL(v[b] ^ v[c], 7);    \
    } while (0)

static inline __attribute__((always_inline)) void eight_blocks(const uint32_t key[8], uint64_t block, uint32_t *out)
{
    static const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    const lanes zero = {0};
    lanes start[16], v[16];
    uint32_t word[16][SHUFLR_CHACHA20_BATCH];

    for (size_t i = 0; i < 4; i++)
        start[i] = zero + constants[i];
    for (size_t i = 0; i < 8; i++)
        start[4 + i] = zero + key[i];
    start[12] = start[13] = start[14] = start[15] = zero;
    for (size_t b = 0; b < SHUFLR_CHACHA20_BATCH; b++) {
        start[12][b] = (uint32_t)(block + b);
        start[13][b] = (uint32_t)((block + b) >> 32);
    }
    for (size_t i = 0; i < 16; i++)
        v[i] = start[i];
    for (int round = 0; round < 10; round++) {
        QUARTER(0, 4, 8, 12);
        QUARTER(1, 5, 9, 13);
        QUARTER(2, 6, 10, 14);
        QUARTER(3, 7, 11, 15);
        QUARTER(0, 5, 10, 15);
        QUARTER(1, 6, 11, 12);
        QUARTER(2, 7, 8, 13);
        QUARTER(3, 4, 9, 14);
    }
    for (size_t i = 0; i < 16; i++) {
        lanes sum = v[i] + start[i];
        memcpy(word[i], &sum, sizeof sum);
    }
    for (size_t b = 0; b < SHUFLR_CHACHA20_BATCH; b++)
        for (size_t i = 0; i < 16; i++)
            out[16 * b + i] = word[i][b];
}

#ifdef SHUFLR_HAS_AVX2
static SHUFLR_AVX2 void eight_blocks_avx2(const uint32_t key[8], uint64_t block, uint32_t *out)
{
    eight_blocks(key, block, out);
}
#endif

void shuflr_chacha20_words(const uint32_t key[8], uint64_t block, uint32_t out[SHUFLR_CHACHA20_BATCH_WORDS])
{
#ifdef SHUFLR_HAS_AVX2
    if (__builtin_cpu_supports("avx2")) {
        eight_blocks_avx2(key, block, out);
        return;
    }
#endif
    eight_blocks(key, block, out);
}
