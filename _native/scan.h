/* Where records end: byte 0x0A and nothing else. */
#ifndef SHUFLR_SCAN_H
#define SHUFLR_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The length of the record that starts at p: its LF included, or all that is left. */
static inline size_t shuflr_record_len(const uint8_t *p, size_t left)
{
    const uint8_t *lf = memchr(p, 0x0A, left);
    return lf == NULL ? left : (size_t)(lf - p) + 1;
}

/* How many 0x0A the bytes hold. */
size_t shuflr_count_lf(const uint8_t *data, size_t len);

/* Writes `base` + the offset just past each 0x0A in data[*at..len), at most `cap` of them; returns how many.
 * *at becomes where the search stopped: len, or just past the last one written when `out` is full. */
size_t shuflr_find_ends(const uint8_t *data, size_t len, uint64_t base, size_t *at, uint64_t *out, size_t cap);

/* The offset just past the last 0x0A; 0 when there is none. */
size_t shuflr_after_last(const uint8_t *data, size_t len);

/* The offset just past the n-th 0x0A (n >= 1) and in *found how many there were; len when there are fewer. */
size_t shuflr_after_records(const uint8_t *data, size_t len, uint64_t n, uint64_t *found);

#endif
