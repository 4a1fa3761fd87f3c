/* A batch is written where it will be sent from: its head is left open while records are appended, and filled in with
 * the checksum behind it when it is closed. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "xxh3.h"

#define TRAILER 8
#define ZSTD_BATCH 2
#define PLAIN_BATCH 3
#define AHEAD 6

typedef size_t (*compress_fn)(void *, void *, size_t, const void *, size_t, int);
typedef size_t (*bound_fn)(size_t);
typedef unsigned (*is_error_fn)(size_t);
typedef void *(*create_fn)(void);

static void store_u64(uint8_t *p, uint64_t v)
{
    store_u32(p, (uint32_t)v);
    store_u32(p + 4, (uint32_t)(v >> 32));
}

/* Compresses the body of a batch in its place; 0 when memory or zstd gives out. */
static size_t compress_body(shuflr_work *work, uint8_t *body, size_t len, int level)
{
    size_t cap = ((bound_fn)work->zstd.compress_bound)(len), got = 0;
    uint8_t *packed = malloc(cap);

    if (work->cctx == NULL)
        work->cctx = ((create_fn)work->zstd.create_cctx)();
    if (packed != NULL && work->cctx != NULL) {
        got = ((compress_fn)work->zstd.compress_cctx)(work->cctx, packed, cap, body, len, level);
        if (((is_error_fn)work->zstd.is_error)(got))
            got = 0;
        else
            memcpy(body, packed, got);
    }
    free(packed);
    return got;
}

/* Completes the message at `head`, whose body ends at `end`; returns where the next one begins, NULL without memory. */
static uint8_t *close_batch(shuflr_work *work, shuflr_batches *batches, uint8_t *head, uint8_t *end)
{
    size_t body = (size_t)(end - head) - SHUFLR_BATCH_HEAD;

    if (batches->level != 0 && (body = compress_body(work, head + SHUFLR_BATCH_HEAD, body, batches->level)) == 0)
        return NULL;
    head[0] = batches->level != 0 ? ZSTD_BATCH : PLAIN_BATCH;
    store_u32(head + 1, (uint32_t)(body + SHUFLR_BATCH_HEAD - 5));
    store_u64(head + 5, batches->batch);
    store_u32(head + 13, batches->epoch);
    store_u32(head + 17, batches->records);
    end = head + SHUFLR_BATCH_HEAD + body;
    store_u64(end, shuflr_xxh3(head, (size_t)(end - head)));
    batches->batch++;
    batches->records = batches->unended = 0;
    return end + TRAILER;
}

/* Room for all of it in the worst case, what zstd may add among it. */
static uint64_t worst_case(const shuflr_batches *batches, uint64_t bytes, uint64_t records)
{
    uint64_t body = bytes + 4 * records;
    uint64_t count = records / batches->most_records + body / batches->most_bytes + 2;
    return body + count * (SHUFLR_BATCH_HEAD + TRAILER) + (batches->level ? body / 128 + 128 * count : 0);
}

int shuflr_batch(shuflr_work *work, shuflr_batches *batches, const uint8_t *carry, size_t carry_len, uint64_t limit,
                 int final, uint64_t max_line, int policy)
{
    const size_t n = work->records;
    const uint8_t *content = work->content;
    size_t i = (size_t)work->next;
    uint8_t *head, *to;

    work->out_len = 0;
    work->emitted = work->dropped = 0;
    if (shuflr_reserve(&work->out, &work->out_cap,
                       worst_case(batches, work->content_len + carry_len, n - i + batches->records)) != SHUFLR_OK)
        return SHUFLR_NO_MEMORY;
    head = work->out;
    to = head + SHUFLR_BATCH_HEAD;
    if (carry_len > 0)
        memcpy(to, carry, carry_len);
    to += carry_len;
    for (; i < n && work->emitted < limit; i++) {
        uint64_t span = work->spans[i];
        const uint8_t *from = content + (uint32_t)span;
        size_t len = (size_t)(span >> 32);

        if (i + AHEAD < n)
            prefetch_record(content + (uint32_t)work->spans[i + AHEAD]);
        if (len > max_line && policy != SHUFLR_PASS) {
            if (policy == SHUFLR_FAIL) {
                work->bad_offset = (uint32_t)span;
                work->bad_len = len;
                work->out_len = (size_t)(head - work->out);
                work->next = i;
                batches->open_len = (uint64_t)(to - head) - SHUFLR_BATCH_HEAD;
                return SHUFLR_OVERSIZED;
            }
            work->dropped++;
            continue;
        }
        int ended = from[len - 1] == 0x0A;
        len -= (size_t)ended;
        if (batches->unended) {
            batches->unended_len += (uint32_t)len;
            store_u32(to + len - batches->unended_len - 4, batches->unended_len);
        } else {
            store_u32(to, (uint32_t)len);
            to += 4;
            batches->unended_len = (uint32_t)len;
            work->emitted++;
            batches->records++;
        }
        copy_record(to, from, len);
        to += len;
        batches->unended = !ended;
        if (!ended)
            continue;
        if (batches->records >= batches->most_records ||
            (uint64_t)(to - head) - SHUFLR_BATCH_HEAD >= batches->most_bytes) {
            if ((head = close_batch(work, batches, head, to)) == NULL)
                return SHUFLR_NO_MEMORY;
            to = head + SHUFLR_BATCH_HEAD;
        }
    }
    if (final && batches->records > 0) {
        if ((head = close_batch(work, batches, head, to)) == NULL)
            return SHUFLR_NO_MEMORY;
        to = head + SHUFLR_BATCH_HEAD;
    }
    work->next = i;
    work->out_len = (size_t)(head - work->out);
    batches->open_len = (uint64_t)(to - head) - SHUFLR_BATCH_HEAD;
    return SHUFLR_OK;
}

int shuflr_load(shuflr_work *work, const uint8_t *block, size_t len)
{
    work->content_len = work->records = 0;
    work->next = 0;
    if (shuflr_reserve(&work->content, &work->content_cap, len) != SHUFLR_OK)
        return SHUFLR_NO_MEMORY;
    memcpy(work->content, block, len);
    work->content_len = len;
    return SHUFLR_OK;
}
