/* Random draws and permutations, word for word those of rand 0.8 over ChaCha20 (shuflr's interoperability rules).
 * The state lives in the caller's struct. */
#ifndef SHUFLR_DRAW_H
#define SHUFLR_DRAW_H

#include <stddef.h>
#include <stdint.h>

#include "chacha20.h"

typedef struct {
    uint32_t key[8];
    uint64_t block;  /* first block not yet in words */
    uint32_t next;   /* index of the next unread word, BATCH_WORDS when none is left */
    uint32_t words[SHUFLR_CHACHA20_BATCH_WORDS];
} shuflr_rng;

/* Starts at word `position` of the stream of a 32-byte key. */
void shuflr_rng_init(shuflr_rng *rng, const uint8_t key[32], uint64_t position);

/* How many words have been read since word 0. */
uint64_t shuflr_rng_position(const shuflr_rng *rng);

uint32_t shuflr_next_u32(shuflr_rng *rng);
uint64_t shuflr_next_u64(shuflr_rng *rng); /* two words, the low one first */

/* Uniform in [0, n), n > 0: widening multiply with a rejection zone, one word (or pair of words) an attempt. */
uint32_t shuflr_below32(shuflr_rng *rng, uint32_t n);
uint64_t shuflr_below64(shuflr_rng *rng, uint64_t n);

/* Fisher-Yates from the last item down; draws are 32-bit while the bound fits in 32 bits. */
void shuflr_shuffle_u32(shuflr_rng *rng, uint32_t *items, size_t n);
void shuflr_shuffle_u64(shuflr_rng *rng, uint64_t *items, size_t n);

/* The shuffle of 0, 1, .. n-1. */
void shuflr_permutation_u32(shuflr_rng *rng, uint32_t *out, size_t n);
void shuflr_permutation_u64(shuflr_rng *rng, uint64_t *out, size_t n);

/* Draws for callers that keep their own lists. */
void shuflr_draw_below(shuflr_rng *rng, uint64_t bound, int wide, uint64_t *out, size_t n);
void shuflr_draw_u64(shuflr_rng *rng, uint64_t *out, size_t n);

#endif
