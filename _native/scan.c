/* The search for 0x0A: one 64-byte group becomes one 64-bit mask, and the mask is walked bit by bit. */
#include "scan.h"

#include <string.h>

#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define GROUP 64

/* Bit i is set where p[i] is 0x0A, for the 64 bytes from p. */
static inline __attribute__((always_inline)) uint64_t group_mask(const uint8_t *p)
{
#if defined(__x86_64__)
    const __m128i lf = _mm_set1_epi8(0x0A);
    uint64_t mask = 0;
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, lf)) << (16 * i);
    }
    return mask;
#else
    uint64_t mask = 0;
    for (int i = 0; i < GROUP; i++)
        mask |= (uint64_t)(p[i] == 0x0A) << i;
    return mask;
#endif
}

#ifdef SHUFLR_HAS_AVX2
static inline __attribute__((always_inline)) SHUFLR_AVX2 uint64_t group_mask_avx2(const uint8_t *p)
{
    const __m256i lf = _mm256_set1_epi8(0x0A);
    __m256i low = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)p), lf);
    __m256i high = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(p + 32)), lf);
    return (uint64_t)(uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}
#endif

/* The mask of a last group shorter than 64 bytes. */
static uint64_t tail_mask(const uint8_t *p, size_t n)
{
    uint64_t mask = 0;
    for (size_t i = 0; i < n; i++)
        mask |= (uint64_t)(p[i] == 0x0A) << i;
    return mask;
}

/* The three searches are written once, over a mask function, and built for each target. */
#define DEFINE_SCAN(suffix, target, mask_of)                                                                   \
    static target size_t count_##suffix(const uint8_t *data, size_t len)                                       \
    {                                                                                                          \
        size_t n = 0, i = 0;                                                                                   \
        for (; i + GROUP <= len; i += GROUP)                                                                   \
            n += (size_t)__builtin_popcountll(mask_of(data + i));                                              \
        return n + (size_t)__builtin_popcountll(tail_mask(data + i, len - i));                                 \
    }                                                                                                          \
    static target size_t ends_##suffix(const uint8_t *data, size_t len, uint64_t base, size_t *at,             \
                                       uint64_t *out, size_t cap)                                              \
    {                                                                                                          \
        size_t n = 0, i = *at;                                                                                 \
        for (; i < len; i += GROUP) {                                                                          \
            uint64_t mask = len - i >= GROUP ? mask_of(data + i) : tail_mask(data + i, len - i);               \
            while (mask != 0) {                                                                                \
                size_t end = i + (size_t)__builtin_ctzll(mask) + 1;                                            \
                if (n == cap) {                                                                                \
                    *at = (size_t)(out[n - 1] - base);                                                         \
                    return n;                                                                                  \
                }                                                                                              \
                out[n++] = base + end;                                                                         \
                mask &= mask - 1;                                                                              \
            }                                                                                                  \
        }                                                                                                      \
        *at = len;                                                                                             \
        return n;                                                                                              \
    }                                                                                                          \
    static target size_t after_##suffix(const uint8_t *data, size_t len, uint64_t n, uint64_t *found)          \
    {                                                                                                          \
        uint64_t seen = 0;                                                                                     \
        for (size_t i = 0; i < len; i += GROUP) {                                                              \
            uint64_t mask = len - i >= GROUP ? mask_of(data + i) : tail_mask(data + i, len - i);               \
            uint64_t here = (uint64_t)__builtin_popcountll(mask);                                              \
            if (seen + here >= n) {                                                                            \
                for (; seen + 1 < n; seen++)                                                                   \
                    mask &= mask - 1;                                                                          \
                *found = n;                                                                                    \
                return i + (size_t)__builtin_ctzll(mask) + 1;                                                  \
            }                                                                                                  \
            seen += here;                                                                                      \
        }                                                                                                      \
        *found = seen;                                                                                         \
        return len;                                                                                            \
    }

DEFINE_SCAN(plain, , group_mask)
#ifdef SHUFLR_HAS_AVX2
DEFINE_SCAN(avx2, SHUFLR_AVX2, group_mask_avx2)
#define CHOOSE(name, ...) \
    (__builtin_cpu_supports("avx2") ? name##_avx2(__VA_ARGS__) : name##_plain(__VA_ARGS__))
#else
#define CHOOSE(name, ...) name##_plain(__VA_ARGS__)
#endif

size_t shuflr_count_lf(const uint8_t *data, size_t len)
{
    return CHOOSE(count, data, len);
}

size_t shuflr_find_ends(const uint8_t *data, size_t len, uint64_t base, size_t *at, uint64_t *out, size_t cap)
{
    return cap == 0 ? 0 : CHOOSE(ends, data, len, base, at, out, cap);
}

size_t shuflr_after_records(const uint8_t *data, size_t len, uint64_t n, uint64_t *found)
{
    *found = 0;
    return n == 0 ? 0 : CHOOSE(after, data, len, n, found);
}

size_t shuflr_after_last(const uint8_t *data, size_t len)
{
    while (len > 0 && data[len - 1] != 0x0A)
        len--;
    return len;
}
