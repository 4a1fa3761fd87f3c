/* Gathering by index. An index is a file like any other: every entry is compared with its data before it is used. */
#define _DEFAULT_SOURCE
#include "index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy.h"
#include "scan.h"

#define AHEAD 8

static uint64_t numbered(const void *order, int wide, uint64_t i)
{
    return wide ? ((const uint64_t *)order)[i] : ((const uint32_t *)order)[i];
}

static uint64_t start_of(const uint64_t *ends, uint32_t record)
{
    return record == 0 ? 0 : ends[record - 1];
}

int shuflr_arena_gather(const uint8_t *arena, const uint64_t *ends, const uint32_t *order, uint64_t from, uint64_t to,
                        int prefix, uint64_t max_line, int policy, uint8_t *out, size_t cap, size_t *out_len,
                        uint64_t *done, uint64_t *emitted, uint64_t *dropped, uint64_t *bad)
{
    size_t used = 0;
    uint64_t i = from;
    int status = SHUFLR_OK;

    *emitted = *dropped = 0;
    for (; i < to; i++) {
        uint64_t start = start_of(ends, order[i]);
        uint64_t len = ends[order[i]] - start;

        if (i + 2 * AHEAD < to)
            __builtin_prefetch(&ends[order[i + 2 * AHEAD]]);
        if (i + AHEAD < to)
            prefetch_far_record(arena + start_of(ends, order[i + AHEAD]));
        if (len > max_line && policy != SHUFLR_PASS) {
            if (policy == SHUFLR_FAIL) {
                bad[0] = start;
                bad[1] = len;
                status = SHUFLR_OVERSIZED;
                break;
            }
            ++*dropped;
            continue;
        }
        if (len + SHUFLR_SLACK > cap - used)
            break;
        if (prefix) {
            len -= arena[start + len - 1] == 0x0A;
            store_u32(out + used, (uint32_t)len);
            used += 4;
        }
        copy_record(out + used, arena + start, (size_t)len);
        used += (size_t)len;
        ++*emitted;
    }
    *out_len = used;
    *done = i;
    return status;
}

/* A file is visited in windows of 4 MiB: small enough to keep few of its pages, large enough to share the work of
 * mapping them among many records. */
#define WINDOW_BITS 22

int shuflr_map_plan(const uint8_t *map, uint64_t map_len, const uint64_t *offsets, uint64_t count, const void *order,
                    int wide, uint64_t from, uint64_t to, uint64_t step, uint64_t cap, size_t most, uint64_t *starts,
                    uint64_t *places, uint32_t *sorted, size_t *n)
{
    size_t windows = (size_t)(map_len >> WINDOW_BITS) + 2, taken = 0;
    size_t *first = calloc(windows, sizeof *first);
    uint64_t used = 0;

    if (first == NULL)
        return SHUFLR_NO_MEMORY;
    for (uint64_t i = from; i < to && taken < most; i += step) {
        uint64_t record = numbered(order, wide, i), len;
        if (i + 2 * AHEAD * step < to)
            __builtin_prefetch(&offsets[numbered(order, wide, i + 2 * AHEAD * step)]);
        if (record >= count || offsets[record] >= offsets[record + 1] || offsets[record + 1] > map_len) {
            free(first);
            return SHUFLR_BAD_INDEX;
        }
        len = offsets[record + 1] - offsets[record];
        len += record + 1 == count && map[offsets[count] - 1] != 0x0A;
        if (taken > 0 && len > cap - used)
            break;
        starts[taken] = offsets[record];
        places[taken++] = used;
        used += len;
        first[(offsets[record] >> WINDOW_BITS) + 1]++;
        if (used >= cap)
            break;
    }
    places[taken] = used;
    for (size_t w = 1; w < windows; w++)
        first[w] += first[w - 1];
    for (size_t k = 0; k < taken; k++)
        sorted[first[starts[k] >> WINDOW_BITS]++] = (uint32_t)k;
    free(first);
    *n = taken;
    return SHUFLR_OK;
}

/* Lets go of the mapped pages of from..to; they stay in the page cache. */
static void forget(const uint8_t *map, uint64_t from, uint64_t to)
{
    uint64_t start = from & ~(uint64_t)((1u << WINDOW_BITS) - 1);

    (void)madvise((void *)(uintptr_t)(map + start), (size_t)(to - start), MADV_DONTNEED);
}

void shuflr_map_gather(const uint8_t *map, uint64_t map_len, const uint64_t *starts, const uint64_t *places,
                       const uint32_t *sorted, size_t from, size_t to, uint8_t *out)
{
    uint64_t window = 0, reach = 0; /* how far the records of this window go */

    for (size_t s = from; s < to; s++) {
        uint32_t k = sorted[s];
        uint64_t len = places[k + 1] - places[k], stored = len;

        if (s + AHEAD < to) {
            prefetch_record(map + starts[sorted[s + AHEAD]]);
            __builtin_prefetch(out + places[sorted[s + AHEAD]], 1);
        }
        if (s > from && starts[k] >> WINDOW_BITS != window) {
            forget(map, window << WINDOW_BITS, reach);
            reach = 0;
        }
        window = starts[k] >> WINDOW_BITS;
        if (stored > map_len - starts[k]) /* the last record, which lacks its LF */
            stored = map_len - starts[k];
        memcpy(out + places[k], map + starts[k], (size_t)stored);
        if (stored < len)
            out[places[k] + stored] = 0x0A;
        if (starts[k] + stored > reach)
            reach = starts[k] + stored;
    }
    if (from < to)
        forget(map, window << WINDOW_BITS, reach);
}

void shuflr_entries(const uint64_t *spans, size_t n, uint32_t frame, shuflr_entry *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (shuflr_entry){frame, (uint32_t)spans[i], (uint32_t)(spans[i] >> 32)};
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

size_t shuflr_entry_plan(const shuflr_entry *entries, uint64_t count, const void *order, int wide, uint64_t from,
                         uint64_t to, uint64_t step, uint64_t cap, size_t most, uint64_t *places, uint64_t *sorted,
                         uint64_t *bytes)
{
    size_t n = 0;
    uint64_t used = 0;

    for (uint64_t i = from; i < to && n < most; i += step) {
        uint64_t record = numbered(order, wide, i);
        uint64_t len;
        if (i + AHEAD * step < to)
            __builtin_prefetch(&entries[numbered(order, wide, i + AHEAD * step)]);
        if (record >= count)
            break;
        len = (uint64_t)entries[record].len + 1; /* room for an LF that is missing */
        if (n > 0 && len > cap - used)
            break;
        places[n] = used;
        sorted[n] = (uint64_t)entries[record].frame << 32 | n;
        used += len;
        n++;
    }
    qsort(sorted, n, sizeof *sorted, ascending);
    *bytes = used;
    return n;
}

size_t shuflr_entry_run(const uint64_t *sorted, size_t n, size_t from)
{
    size_t to = from;

    while (to < n && sorted[to] >> 32 == sorted[from] >> 32)
        to++;
    return to;
}

int shuflr_entry_scatter(const shuflr_entry *entries, const void *order, int wide, uint64_t first, uint64_t step,
                         const uint64_t *places, const uint64_t *sorted, size_t from, size_t to,
                         const uint8_t *content, size_t content_len, uint8_t *out, size_t out_cap)
{
    for (size_t s = from; s < to; s++) {
        size_t k = (size_t)(uint32_t)sorted[s];
        const shuflr_entry *entry = &entries[numbered(order, wide, first + k * step)];

        if (entry->len == 0 || entry->offset > content_len || entry->len > content_len - entry->offset ||
            places[k] > out_cap || entry->len > out_cap - places[k])
            return SHUFLR_BAD_INDEX;
        memcpy(out + places[k], content + entry->offset, entry->len);
    }
    return SHUFLR_OK;
}

size_t shuflr_entry_close(const shuflr_entry *entries, const void *order, int wide, uint64_t first, uint64_t step,
                          const uint64_t *places, size_t n, uint8_t *out)
{
    size_t used = 0;

    for (size_t k = 0; k < n; k++) {
        size_t len = entries[numbered(order, wide, first + k * step)].len;
        memmove(out + used, out + places[k], len);
        used += len;
        if (out[used - 1] != 0x0A)
            out[used++] = 0x0A;
    }
    return used;
}

size_t shuflr_length_prefix(const uint8_t *block, size_t len, uint8_t *out)
{
    uint8_t *to = out;

    for (size_t at = 0; at < len;) {
        size_t record = shuflr_record_len(block + at, len - at);
        size_t bare = record - (block[at + record - 1] == 0x0A);
        store_u32(to, (uint32_t)bare);
        memcpy(to + 4, block + at, bare);
        to += 4 + bare;
        at += record;
    }
    return (size_t)(to - out);
}
