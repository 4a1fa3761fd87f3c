/* Plain batches as a client received them: every length in them is compared before it is believed. */
#ifndef SHUFLR_RECEIVED_H
#define SHUFLR_RECEIVED_H

#include <stddef.h>
#include <stdint.h>

#include "batch.h"

#define SHUFLR_BATCH_TRAILER 8 /* xxh3 u64 */

static inline uint32_t shuflr_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Of a batch that was measured: its bytes with all around it, how many records it has, and where they begin. */
static inline size_t shuflr_batch_size(const uint8_t *message)
{
    return 5 + (size_t)shuflr_load_u32(message + 1) + SHUFLR_BATCH_TRAILER;
}

static inline uint32_t shuflr_batch_count(const uint8_t *message)
{
    return shuflr_load_u32(message + 17);
}

static inline const uint8_t *shuflr_batch_records(const uint8_t *message)
{
    return message + SHUFLR_BATCH_HEAD;
}

/* Whether n records, each behind its u32 length, lie within the memory. */
int shuflr_prefixed_fit(const uint8_t *data, size_t len, size_t n);

/* The whole plain batches at the beginning of a buffer: their bytes and records. SHUFLR_WRONG_CHECKSUM for one that does
 * not match its checksum, SHUFLR_BAD_INDEX for one whose records reach beyond it. */
int shuflr_measure_batches(const uint8_t *data, size_t len, size_t *used, size_t *records);

#endif
