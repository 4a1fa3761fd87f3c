/* Draws and permutations over the ChaCha20 word stream. See draw.h for what must agree with the public program. */
#include "draw.h"

/* How far ahead the partners of a shuffle are drawn, so that their cache lines arrive before the swap. */
#define AHEAD 32

void shuflr_rng_init(shuflr_rng *rng, const uint8_t key[32], uint64_t position)
{
    for (size_t i = 0; i < 8; i++) {
        const uint8_t *p = key + 4 * i;
        rng->key[i] = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    rng->block = position / SHUFLR_CHACHA20_BATCH_WORDS * SHUFLR_CHACHA20_BATCH;
    rng->next = SHUFLR_CHACHA20_BATCH_WORDS;
    if (position % SHUFLR_CHACHA20_BATCH_WORDS != 0) {
        (void)shuflr_next_u32(rng);
        rng->next = (uint32_t)(position % SHUFLR_CHACHA20_BATCH_WORDS);
    }
}

uint64_t shuflr_rng_position(const shuflr_rng *rng)
{
    return rng->block * 16 - (SHUFLR_CHACHA20_BATCH_WORDS - rng->next);
}

static void refill(shuflr_rng *rng)
{
    shuflr_chacha20_words(rng->key, rng->block, rng->words);
    rng->block += SHUFLR_CHACHA20_BATCH;
    rng->next = 0;
}

uint32_t shuflr_next_u32(shuflr_rng *rng)
{
    if (rng->next == SHUFLR_CHACHA20_BATCH_WORDS)
        refill(rng);
    return rng->words[rng->next++];
}

uint64_t shuflr_next_u64(shuflr_rng *rng)
{
    uint64_t low = shuflr_next_u32(rng);
    return low | (uint64_t)shuflr_next_u32(rng) << 32;
}

uint32_t shuflr_below32(shuflr_rng *rng, uint32_t n)
{
    const uint32_t zone = (n << __builtin_clz(n)) - 1;
    uint64_t m;

    do {
        m = (uint64_t)shuflr_next_u32(rng) * n;
    } while ((uint32_t)m > zone);
    return (uint32_t)(m >> 32);
}

uint64_t shuflr_below64(shuflr_rng *rng, uint64_t n)
{
    const uint64_t zone = (n << __builtin_clzll(n)) - 1;
    unsigned __int128 m;

    do {
        m = (unsigned __int128)shuflr_next_u64(rng) * n;
    } while ((uint64_t)m > zone);
    return (uint64_t)(m >> 64);
}

/* below(left), below(left - 1), .. : the partners of the next `batch` swaps. A quarter of the attempts is rejected at random,
 * which no branch predictor can foresee: a rejected draw is overwritten by the next instead of branched around. */
static void partners(shuflr_rng *rng, size_t left, size_t batch, size_t *out)
{
    size_t k = 0;

    if (left > UINT32_MAX || __builtin_clz((uint32_t)left) != __builtin_clz((uint32_t)(left - batch + 1))) {
        for (; k < batch; k++)
            out[k] = left - k <= UINT32_MAX ? shuflr_below32(rng, (uint32_t)(left - k)) : shuflr_below64(rng, left - k);
        return;
    }
    const int shift = __builtin_clz((uint32_t)left);
    uint32_t n = (uint32_t)left;
    while (k < batch) {
        uint64_t m;
        uint32_t taken;
        if (rng->next == SHUFLR_CHACHA20_BATCH_WORDS)
            refill(rng);
        m = (uint64_t)rng->words[rng->next++] * n;
        taken = (uint32_t)m <= (n << shift) - 1;
        out[k] = (size_t)(m >> 32);
        k += taken;
        n -= taken;
    }
}

#define DEFINE_SHUFFLE(name, type)                                \
    void name(shuflr_rng *rng, type *items, size_t n)             \
    {                                                             \
        size_t partner[AHEAD];                                    \
        size_t left = n;                                          \
                                                                  \
        while (left > 1) {                                        \
            size_t batch = left - 1 < AHEAD ? left - 1 : AHEAD;   \
            partners(rng, left, batch, partner);                  \
            for (size_t k = 0; k < batch; k++)                    \
                __builtin_prefetch(items + partner[k], 1);        \
            for (size_t k = 0; k < batch; k++) {                  \
                type last = items[left - 1 - k];                  \
                items[left - 1 - k] = items[partner[k]];          \
                items[partner[k]] = last;                         \
            }                                                     \
            left -= batch;                                        \
        }                                                         \
    }

DEFINE_SHUFFLE(shuflr_shuffle_u32, uint32_t)
DEFINE_SHUFFLE(shuflr_shuffle_u64, uint64_t)

void shuflr_permutation_u32(shuflr_rng *rng, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
    shuflr_shuffle_u32(rng, out, n);
}

void shuflr_permutation_u64(shuflr_rng *rng, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = i;
    shuflr_shuffle_u64(rng, out, n);
}

void shuflr_draw_below(shuflr_rng *rng, uint64_t bound, int wide, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = wide ? shuflr_below64(rng, bound) : shuflr_below32(rng, (uint32_t)bound);
}

void shuflr_draw_u64(shuflr_rng *rng, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = shuflr_next_u64(rng);
}
