/* XXH3-64 with seed 0, the checksum of every wire message: of bytes at once, and of bytes that come in pieces. */
#ifndef SHUFLR_XXH3_H
#define SHUFLR_XXH3_H

#include <stddef.h>
#include <stdint.h>

#define SHUFLR_XXH3_BLOCK 1024
#define SHUFLR_XXH3_STRIPE 64

typedef struct {
    uint64_t acc[8];
    uint64_t total;
    uint32_t held;                       /* bytes in block */
    uint8_t last[SHUFLR_XXH3_STRIPE];    /* the end of the block before */
    uint8_t block[SHUFLR_XXH3_BLOCK];    /* digested as soon as more follows */
} shuflr_xxh3_state;

uint64_t shuflr_xxh3(const uint8_t *data, size_t len);

void shuflr_xxh3_init(shuflr_xxh3_state *state);
void shuflr_xxh3_update(shuflr_xxh3_state *state, const uint8_t *data, size_t len);
/* The checksum of all so far; more may follow. */
uint64_t shuflr_xxh3_digest(const shuflr_xxh3_state *state);

#endif
