/* XXH64 after the xxHash specification, and the low half of 64-bit FNV-1a. Pure functions of their bytes. */
#include "checksum.h"

#include <string.h>

#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u

static uint64_t read64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static uint32_t read32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t rotl64(uint64_t v, int n)
{
    return v << n | v >> (64 - n);
}

static uint64_t xxh_round(uint64_t acc, uint64_t lane)
{
    return rotl64(acc + lane * P2, 31) * P1;
}

static uint64_t xxh_merge(uint64_t h, uint64_t acc)
{
    return (h ^ xxh_round(0, acc)) * P1 + P4;
}

uint64_t shuflr_xxh64(const uint8_t *data, size_t len)
{
    const uint8_t *p = data, *end = data + len;
    uint64_t h;

    if (len >= 32) {
        uint64_t a = P1 + P2, b = P2, c = 0, d = 0 - P1;
        for (; end - p >= 32; p += 32) {
            a = xxh_round(a, read64(p));
            b = xxh_round(b, read64(p + 8));
            c = xxh_round(c, read64(p + 16));
            d = xxh_round(d, read64(p + 24));
        }
        h = rotl64(a, 1) + rotl64(b, 7) + rotl64(c, 12) + rotl64(d, 18);
        h = xxh_merge(xxh_merge(xxh_merge(xxh_merge(h, a), b), c), d);
    } else {
        h = P5;
    }
    h += len;
    for (; end - p >= 8; p += 8)
        h = rotl64(h ^ xxh_round(0, read64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        h = rotl64(h ^ read32(p) * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++)
        h = rotl64(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

/* Bits above the 32nd never reach the lower ones: xor and multiplication both carry upwards only. */
uint32_t shuflr_fnv1a_low32(const uint8_t *data, size_t len)
{
    uint32_t h = 0x84222325u; /* the offset basis 0xcbf29ce484222325 */

    for (size_t i = 0; i < len; i++)
        h = (h ^ data[i]) * 0x1b3u; /* the prime 0x100000001b3 */
    return h;
}
