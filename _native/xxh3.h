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

/* The checksum of a raw frame, whose first SHUFLR_RAW_HEAD bytes change from stream to stream while the stored frame
 * behind them stays: what the frame contributes to each block, 64 bytes a KiB, is summed up once, and the checksum under
 * any head then costs no look at the frame. shuflr_sums_size is 0 for frames too short to be worth it. */
#define SHUFLR_RAW_HEAD 41
size_t shuflr_sums_size(size_t len);
void shuflr_sums(const uint8_t *frame, size_t len, uint8_t *sums);
uint64_t shuflr_sums_digest(const uint8_t head[SHUFLR_RAW_HEAD], const uint8_t *sums, size_t len);

#endif
