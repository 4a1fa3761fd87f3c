/* The copy under every gather: short records move in whole vectors, past their end, into room that is kept for it. */
#ifndef SHUFLR_COPY_H
#define SHUFLR_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Room kept behind every buffer that records are copied from or to with copy_record. */
#define SHUFLR_SLACK 64

static inline void copy_record(uint8_t *dst, const uint8_t *src, size_t len)
{
    if (len > 512) {
        memcpy(dst, src, len);
        return;
    }
    for (size_t i = 0; i < len; i += 32)
        memcpy(dst + i, src + i, 32);
}

static inline void store_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

/* The first lines of a record that will be copied soon; the hardware fetches the rest. */
static inline void prefetch_record(const uint8_t *p)
{
    __builtin_prefetch(p);
    __builtin_prefetch(p + 64);
    __builtin_prefetch(p + 128);
    __builtin_prefetch(p + 192);
}

/* The same for a record that lies far off, beyond the second cache: asked for up to there only, where more requests can
 * wait than at the first. */
static inline void prefetch_far_record(const uint8_t *p)
{
    __builtin_prefetch(p, 0, 2);
    __builtin_prefetch(p + 64, 0, 2);
    __builtin_prefetch(p + 128, 0, 2);
    __builtin_prefetch(p + 192, 0, 2);
}

#endif
