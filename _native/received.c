/* See received.h. */
#include "received.h"

#include "status.h"
#include "xxh3.h"

#define HEAD 5 /* kind u8, payload length u32 */
#define PLAIN_BATCH 3

static uint64_t load_u64(const uint8_t *p)
{
    return shuflr_load_u32(p) | (uint64_t)shuflr_load_u32(p + 4) << 32;
}

int shuflr_prefixed_fit(const uint8_t *data, size_t len, size_t n)
{
    size_t at = 0;

    for (; n > 0; n--) {
        if (len - at < 4 || len - at - 4 < shuflr_load_u32(data + at))
            return 0;
        at += 4 + (size_t)shuflr_load_u32(data + at);
    }
    return 1;
}

int shuflr_measure_batches(const uint8_t *data, size_t len, size_t *used, size_t *records)
{
    *used = *records = 0;
    while (len - *used >= HEAD && data[*used] == PLAIN_BATCH) {
        const uint8_t *message = data + *used;
        size_t whole = HEAD + (size_t)shuflr_load_u32(message + 1);
        if (len - *used < whole + SHUFLR_BATCH_TRAILER)
            break;
        if (shuflr_xxh3(message, whole) != load_u64(message + whole))
            return SHUFLR_WRONG_CHECKSUM;
        if (whole < SHUFLR_BATCH_HEAD ||
            !shuflr_prefixed_fit(message + SHUFLR_BATCH_HEAD, whole - SHUFLR_BATCH_HEAD, shuflr_batch_count(message)))
            return SHUFLR_BAD_INDEX;
        *records += shuflr_batch_count(message);
        *used += whole + SHUFLR_BATCH_TRAILER;
    }
    return SHUFLR_OK;
}
