/* ChaCha20 as a block function (RFC 8439) and as the word stream that every shuffle draws from.
 * No global state; safe to call from any thread. */
#ifndef SHUFLR_CHACHA20_H
#define SHUFLR_CHACHA20_H

#include <stdint.h>

/* Blocks computed by one call of shuflr_chacha20_words, and the words they hold. */
#define SHUFLR_CHACHA20_BATCH 8
#define SHUFLR_CHACHA20_BATCH_WORDS (16 * SHUFLR_CHACHA20_BATCH)

/* Writes the 64-byte key-stream block for a 256-bit key, a 32-bit block counter and a 96-bit nonce. */
void shuflr_chacha20_block(const uint8_t key[32], uint32_t counter, const uint8_t nonce[12], uint8_t out[64]);

/* Writes 8 consecutive blocks as words: Bernstein's layout, a 64-bit block counter and stream id 0. */
void shuflr_chacha20_words(const uint32_t key[8], uint64_t block, uint32_t out[SHUFLR_CHACHA20_BATCH_WORDS]);

#endif
