/* What may pass before any order sees it: the size policy, the partition of ranks, and the filters of convert. */
#ifndef SHUFLR_SIEVE_H
#define SHUFLR_SIEVE_H

#include <stddef.h>
#include <stdint.h>

#include "draw.h"
#include "status.h"

typedef struct {
    uint64_t max_line;
    int policy;
    uint32_t rank, world;  /* world <= 1: no partition */
    uint64_t ordinal;      /* of the next record, counting all of them */
    uint64_t dropped;
    uint64_t bad_offset, bad_len; /* of the record that SHUFLR_OVERSIZED is about: offset in src */
} shuflr_sieve;

/* Copies the whole records of src that pass to out (room for len bytes). */
int shuflr_sieve_run(shuflr_sieve *sieve, const uint8_t *src, size_t len, uint8_t *out, size_t *out_len);

typedef struct {
    shuflr_rng rng;
    int sampled, gated;           /* whether the draw, the entropy gate, apply */
    uint64_t threshold;           /* a record is drawn when its u64 is below */
    double min_entropy, max_entropy; /* nats over the record's bytes, its LF among them */
    uint64_t limit, kept;         /* stops after `limit` kept records */
} shuflr_filter;

/* The same for convert, in this order: draw, entropy, limit. */
int shuflr_filter_run(shuflr_filter *filter, const uint8_t *src, size_t len, uint8_t *out, size_t *out_len);

/* Adds each byte of data to its bin. */
void shuflr_histogram(const uint8_t *data, size_t len, uint64_t bins[256]);

#endif
