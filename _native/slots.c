/* The ring of the buffer shuffle and the reservoir. Their draws are those of the public program, one u64 a record. */
#include "slots.h"

#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "scan.h"

/* A slot keeps its memory for a shorter record unless more than this would lie idle. */
#define IDLE_MAX 128

shuflr_slots *shuflr_slots_new(uint64_t capacity, const uint8_t key[32])
{
    shuflr_slots *slots = malloc(sizeof *slots);

    if (slots == NULL)
        return NULL;
    memset(slots, 0, sizeof *slots);
    slots->capacity = capacity;
    slots->used = SHUFLR_DRAWN;
    shuflr_rng_init(&slots->rng, key, 0);
    slots->slots = capacity == 0 || capacity > SIZE_MAX / sizeof *slots->slots
                       ? NULL
                       : calloc((size_t)capacity, sizeof *slots->slots);
    if (slots->slots == NULL) {
        free(slots);
        return NULL;
    }
    return slots;
}

void shuflr_slots_free(shuflr_slots *slots)
{
    if (slots == NULL)
        return;
    for (uint64_t i = 0; i < slots->filled; i++)
        free(slots->slots[i].bytes);
    free(slots->slots);
    free(slots);
}

static int put(shuflr_slot *slot, const uint8_t *src, size_t len)
{
    if (len > UINT32_MAX - 2 * SHUFLR_SLACK)
        return SHUFLR_OVERSIZED;
    if (slot->bytes == NULL || len > slot->cap || (slot->cap - len > IDLE_MAX && slot->cap / 2 > len)) {
        size_t cap = (len + 63) / 64 * 64;
        uint8_t *fresh = malloc(cap);
        if (fresh == NULL)
            return SHUFLR_NO_MEMORY;
        free(slot->bytes);
        slot->bytes = fresh;
        slot->cap = (uint32_t)cap;
    }
    memcpy(slot->bytes, src, len);
    slot->len = (uint32_t)len;
    return SHUFLR_OK;
}

/* Makes the next draws and, while the ring is full, asks for the slots they name. */
static void draw(shuflr_slots *ring)
{
    shuflr_draw_u64(&ring->rng, ring->drawn, SHUFLR_DRAWN);
    ring->used = 0;
    for (int i = 0; i < SHUFLR_DRAWN; i++) {
        ring->seat[i] = ring->drawn[i] % ring->capacity;
        __builtin_prefetch(&ring->slots[ring->seat[i]], 1);
    }
}

/* Asks for the bytes of the slot that the draw `ahead` of the next names. */
static void prefetch_soon(const shuflr_slots *ring, uint32_t ahead)
{
    if (ring->used + ahead < SHUFLR_DRAWN)
        prefetch_record(ring->slots[ring->seat[ring->used + ahead]].bytes);
}

static int emit(const shuflr_slot *slot, uint8_t *out, size_t cap, size_t *out_len, size_t *needs)
{
    if (slot->len > cap - *out_len) {
        *needs = slot->len;
        return 0;
    }
    memcpy(out + *out_len, slot->bytes, slot->len);
    *out_len += slot->len;
    return 1;
}

int shuflr_ring_feed(shuflr_slots *ring, const uint8_t *src, size_t len, size_t *at, uint8_t *out, size_t cap,
                     size_t *out_len, uint64_t *emitted, uint64_t limit, size_t *needs)
{
    *needs = 0;
    while (*at < len && *emitted < limit) {
        size_t record = shuflr_record_len(src + *at, len - *at);
        shuflr_slot *slot = &ring->slots[ring->filled];
        int status;

        if (ring->filled == ring->capacity) {
            if (ring->used == SHUFLR_DRAWN)
                draw(ring);
            slot = &ring->slots[ring->seat[ring->used]];
            prefetch_soon(ring, 4);
            if (!emit(slot, out, cap, out_len, needs))
                return SHUFLR_OK;
            ++*emitted;
            ring->used++;
        }
        if ((status = put(slot, src + *at, record)) != SHUFLR_OK)
            return status;
        ring->filled += ring->filled < ring->capacity;
        ring->seen++;
        *at += record;
    }
    return SHUFLR_OK;
}

int shuflr_ring_drain(shuflr_slots *ring, uint8_t *out, size_t cap, size_t *out_len, uint64_t *emitted,
                      uint64_t limit, size_t *needs)
{
    *needs = 0;
    while (ring->filled > 0 && *emitted < limit) {
        shuflr_slot *slot;

        if (ring->used == SHUFLR_DRAWN)
            draw(ring);
        slot = &ring->slots[ring->drawn[ring->used] % ring->filled];
        if (!emit(slot, out, cap, out_len, needs))
            return SHUFLR_OK;
        ++*emitted;
        ring->used++;
        free(slot->bytes);
        *slot = ring->slots[--ring->filled];
    }
    return SHUFLR_OK;
}

int shuflr_reservoir_feed(shuflr_slots *reservoir, const uint8_t *src, size_t len)
{
    for (size_t at = 0; at < len;) {
        size_t record = shuflr_record_len(src + at, len - at);
        uint64_t seat = reservoir->filled;
        int status;

        if (reservoir->filled == reservoir->capacity)
            seat = shuflr_below64(&reservoir->rng, reservoir->seen + 1);
        if (seat < reservoir->capacity) {
            if ((status = put(&reservoir->slots[seat], src + at, record)) != SHUFLR_OK)
                return status;
            reservoir->filled += seat == reservoir->filled;
        }
        reservoir->seen++;
        at += record;
    }
    return SHUFLR_OK;
}

int shuflr_reservoir_drain(shuflr_slots *reservoir, uint8_t *out, size_t cap, size_t *out_len, uint64_t *emitted,
                           uint64_t limit, size_t *needs)
{
    *needs = 0;
    if (!reservoir->mixed) {
        for (uint64_t pos = reservoir->filled; pos-- > 1;) {
            uint64_t other = shuflr_next_u64(&reservoir->rng) % (pos + 1);
            shuflr_slot slot = reservoir->slots[pos];
            reservoir->slots[pos] = reservoir->slots[other];
            reservoir->slots[other] = slot;
        }
        reservoir->mixed = 1;
    }
    while (reservoir->next < reservoir->filled && *emitted < limit) {
        if (!emit(&reservoir->slots[reservoir->next], out, cap, out_len, needs))
            return SHUFLR_OK;
        reservoir->next++;
        ++*emitted;
    }
    return SHUFLR_OK;
}
