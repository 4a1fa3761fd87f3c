/* Filters over whole records. Each copies what passes and keeps its counters in the caller's struct. */
#include "sieve.h"

#include <math.h>
#include <string.h>

#include "scan.h"

int shuflr_sieve_run(shuflr_sieve *sieve, const uint8_t *src, size_t len, uint8_t *out, size_t *out_len)
{
    uint8_t *to = out;

    for (size_t at = 0; at < len;) {
        size_t record = shuflr_record_len(src + at, len - at);
        uint32_t ordinal = (uint32_t)sieve->ordinal++;
        int mine = sieve->world <= 1 || ordinal % sieve->world == sieve->rank;

        if (record > sieve->max_line && sieve->policy != SHUFLR_PASS) {
            if (sieve->policy == SHUFLR_FAIL) {
                sieve->bad_offset = at;
                sieve->bad_len = record;
                *out_len = (size_t)(to - out);
                return SHUFLR_OVERSIZED;
            }
            sieve->dropped++;
        } else if (mine) {
            memcpy(to, src + at, record);
            to += record;
        }
        at += record;
    }
    *out_len = (size_t)(to - out);
    return SHUFLR_OK;
}

void shuflr_histogram(const uint8_t *data, size_t len, uint64_t bins[256])
{
    /* Four tables: two equal neighbours then do not wait for each other. */
    uint32_t part[4][256];

    while (len > 0) {
        size_t n = len < (1u << 30) ? len : 1u << 30, i = 0;
        memset(part, 0, sizeof part);
        for (; i + 4 <= n; i += 4) {
            part[0][data[i]]++;
            part[1][data[i + 1]]++;
            part[2][data[i + 2]]++;
            part[3][data[i + 3]]++;
        }
        for (; i < n; i++)
            part[0][data[i]]++;
        for (size_t b = 0; b < 256; b++)
            bins[b] += (uint64_t)part[0][b] + part[1][b] + part[2][b] + part[3][b];
        data += n;
        len -= n;
    }
}

static double entropy(const uint8_t *record, size_t len)
{
    uint64_t bins[256] = {0};
    double sum = 0;

    shuflr_histogram(record, len, bins);
    for (size_t b = 0; b < 256; b++) {
        if (bins[b] != 0) {
            double p = (double)bins[b] / (double)len;
            sum -= p * log(p);
        }
    }
    return sum;
}

int shuflr_filter_run(shuflr_filter *filter, const uint8_t *src, size_t len, uint8_t *out, size_t *out_len)
{
    uint8_t *to = out;

    for (size_t at = 0; at < len && filter->kept < filter->limit;) {
        size_t record = shuflr_record_len(src + at, len - at);
        const uint8_t *bytes = src + at;

        at += record;
        if (filter->sampled && shuflr_next_u64(&filter->rng) >= filter->threshold)
            continue;
        if (filter->gated) {
            double h = entropy(bytes, record);
            if (h < filter->min_entropy || h > filter->max_entropy)
                continue;
        }
        memcpy(to, bytes, record);
        to += record;
        filter->kept++;
    }
    *out_len = (size_t)(to - out);
    return SHUFLR_OK;
}
