/* Records kept in numbered slots: the ring of the buffer shuffle and the reservoir. Each object belongs to one
 * thread at a time; its memory is what its records need, whatever passed through before. */
#ifndef SHUFLR_SLOTS_H
#define SHUFLR_SLOTS_H

#include <stddef.h>
#include <stdint.h>

#include "draw.h"
#include "status.h"

/* Raw draws of the ring made ahead of their use, so that the slots they name are in the cache by then. */
#define SHUFLR_DRAWN 16

typedef struct {
    uint8_t *bytes;
    uint32_t len, cap;
} shuflr_slot;

typedef struct {
    shuflr_rng rng;
    shuflr_slot *slots;
    uint64_t capacity, filled;
    uint64_t seen;                 /* records fed */
    uint64_t drawn[SHUFLR_DRAWN];  /* ring: raw draws in order of use, from index `used` on */
    uint64_t seat[SHUFLR_DRAWN];   /* the slot that each names while the ring is full */
    uint32_t used;
    uint64_t next; /* reservoir: the next slot to hand out */
    int mixed;     /* reservoir: the final shuffle is done */
} shuflr_slots;

shuflr_slots *shuflr_slots_new(uint64_t capacity, const uint8_t key[32]);
void shuflr_slots_free(shuflr_slots *slots);

/* Feeds whole records, from src + *at on; each once the ring is full pushes one out into `out`. Stops when src is used up,
 * `limit` records came out, or the next would not fit: then *needs is its length. *out_len and *emitted count up. */
int shuflr_ring_feed(shuflr_slots *ring, const uint8_t *src, size_t len, size_t *at, uint8_t *out, size_t cap,
                     size_t *out_len, uint64_t *emitted, uint64_t limit, size_t *needs);

/* Hands out what the ring still holds, under the same rules. */
int shuflr_ring_drain(shuflr_slots *ring, uint8_t *out, size_t cap, size_t *out_len, uint64_t *emitted,
                      uint64_t limit, size_t *needs);

/* Feeds whole records to a reservoir. */
int shuflr_reservoir_feed(shuflr_slots *reservoir, const uint8_t *src, size_t len);

/* Shuffles the reservoir, once, and hands it out. */
int shuflr_reservoir_drain(shuflr_slots *reservoir, uint8_t *out, size_t cap, size_t *out_len, uint64_t *emitted,
                           uint64_t limit, size_t *needs);

#endif
