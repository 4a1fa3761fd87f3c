/* The frame shuffler. Every length that comes from a file is compared before it is believed. */
#include "frame.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "copy.h"
#include "draw.h"
#include "scan.h"

/* How many records ahead the gather asks for its sources. */
#define AHEAD 6

/* zstd's answers for "not in the header" and "not a frame"; a skippable frame counts as empty. */
#define CONTENT_SIZE_UNKNOWN UINT64_MAX
#define CONTENT_SIZE_ERROR (UINT64_MAX - 1)

typedef void *(*create_fn)(void);
typedef size_t (*free_fn)(void *);
typedef size_t (*decompress_fn)(void *, void *, size_t, const void *, size_t);
typedef size_t (*decompress_stream_fn)(void *, void *, void *);
typedef size_t (*compress_fn)(void *, void *, size_t, const void *, size_t, int);
typedef unsigned (*is_error_fn)(size_t);
typedef unsigned long long (*content_size_fn)(const void *, size_t);
typedef size_t (*frame_size_fn)(const void *, size_t);
typedef size_t (*bound_fn)(size_t);

static int is_error(const shuflr_zstd *zstd, size_t code)
{
    return ((is_error_fn)zstd->is_error)(code) != 0;
}

unsigned shuflr_zstd_load(const char *library, shuflr_zstd *zstd)
{
    static const char *const names[] = {
        "ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_decompressDCtx", "ZSTD_decompressStream", "ZSTD_isError",
        "ZSTD_getFrameContentSize", "ZSTD_findFrameCompressedSize", "ZSTD_createCCtx", "ZSTD_freeCCtx",
        "ZSTD_compressCCtx", "ZSTD_compressBound", "ZSTD_versionNumber",
    };
    uintptr_t found[sizeof names / sizeof *names];
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((found[i] = (uintptr_t)dlsym(handle, names[i])) == 0)
            return 0;
    *zstd = (shuflr_zstd){found[0], found[1], found[2], found[3], found[4], found[5],
                          found[6], found[7], found[8], found[9], found[10]};
    return ((unsigned (*)(void))found[11])();
}

shuflr_work *shuflr_work_new(const shuflr_zstd *zstd)
{
    shuflr_work *work = calloc(1, sizeof *work);

    if (work != NULL)
        work->zstd = *zstd;
    return work;
}

void shuflr_work_free(shuflr_work *work)
{
    if (work == NULL)
        return;
    if (work->dctx != NULL)
        ((free_fn)work->zstd.free_dctx)(work->dctx);
    if (work->cctx != NULL)
        ((free_fn)work->zstd.free_cctx)(work->cctx);
    free(work->content);
    free(work->spans);
    free(work->out);
    free(work);
}

int shuflr_reserve(uint8_t **bytes, size_t *cap, uint64_t need)
{
    uint8_t *fresh;

    if (need > SIZE_MAX / 2)
        return SHUFLR_NO_MEMORY;
    if (*bytes != NULL && need <= *cap)
        return SHUFLR_OK;
    need += need / 16; /* frames differ a little in size: a slightly larger one finds room */
    fresh = malloc((size_t)need + SHUFLR_SLACK);
    if (fresh == NULL)
        return SHUFLR_NO_MEMORY;
    free(*bytes);
    *bytes = fresh;
    *cap = (size_t)need;
    return SHUFLR_OK;
}

void shuflr_swap_block(shuflr_work *work, uint8_t **out, size_t *cap)
{
    uint8_t *mine = work->out;
    size_t mine_cap = work->out_cap;

    work->out = *out;
    work->out_cap = *cap;
    *out = mine;
    *cap = mine_cap;
}

void shuflr_block_free(uint8_t *out)
{
    free(out);
}

uint64_t shuflr_declared_size(const shuflr_zstd *zstd, const uint8_t *src, size_t len)
{
    uint64_t total = 0;

    while (len > 0) {
        uint64_t here = ((content_size_fn)zstd->frame_content_size)(src, len);
        size_t step = ((frame_size_fn)zstd->find_frame_compressed_size)(src, len);
        if (here >= CONTENT_SIZE_ERROR || is_error(zstd, step) || step == 0 || step > len)
            return UINT64_MAX;
        if (total + here < total)
            return UINT64_MAX;
        total += here;
        src += step;
        len -= step;
    }
    return total;
}

int shuflr_decode_into(shuflr_work *work, const uint8_t *src, size_t len, uint8_t *dst, uint64_t size)
{
    size_t got;

    if (work->dctx == NULL && (work->dctx = ((create_fn)work->zstd.create_dctx)()) == NULL)
        return SHUFLR_NO_MEMORY;
    got = ((decompress_fn)work->zstd.decompress_dctx)(work->dctx, dst, (size_t)size, src, len);
    if (is_error(&work->zstd, got))
        return SHUFLR_BAD_FRAME;
    return got == size ? SHUFLR_OK : SHUFLR_WRONG_SIZE;
}

/* Frames that do not declare their size: guess, and double until they fit or the limit is reached. */
static int decode_undeclared(shuflr_work *work, const uint8_t *src, size_t len, uint64_t limit)
{
    uint64_t cap = (uint64_t)len * 8 + (1 << 16);

    for (;;) {
        size_t got;
        if (cap > limit)
            cap = limit;
        if (shuflr_reserve(&work->content, &work->content_cap, cap) != SHUFLR_OK)
            return SHUFLR_NO_MEMORY;
        got = ((decompress_fn)work->zstd.decompress_dctx)(work->dctx, work->content, (size_t)cap, src, len);
        if (!is_error(&work->zstd, got)) {
            work->content_len = got;
            return SHUFLR_OK;
        }
        if (cap == limit)
            return SHUFLR_BAD_FRAME;
        cap *= 2;
    }
}

int shuflr_decode(shuflr_work *work, const uint8_t *src, size_t len, uint64_t size, uint64_t limit)
{
    uint64_t declared = shuflr_declared_size(&work->zstd, src, len);
    int status;

    work->content_len = work->records = 0;
    work->next = 0;
    if (work->dctx == NULL && (work->dctx = ((create_fn)work->zstd.create_dctx)()) == NULL)
        return SHUFLR_NO_MEMORY;
    if (size != UINT64_MAX && size < limit)
        limit = size;
    if (declared == UINT64_MAX)
        status = decode_undeclared(work, src, len, limit);
    else if (declared > limit)
        return size == UINT64_MAX ? SHUFLR_BAD_FRAME : SHUFLR_WRONG_SIZE;
    else if ((status = shuflr_reserve(&work->content, &work->content_cap, declared)) == SHUFLR_OK &&
             (status = shuflr_decode_into(work, src, len, work->content, declared)) == SHUFLR_OK)
        work->content_len = (size_t)declared;
    if (status == SHUFLR_OK && size != UINT64_MAX && work->content_len != size)
        return SHUFLR_WRONG_SIZE;
    return status;
}

int shuflr_decode_stream(shuflr_work *work, const uint8_t *src, size_t len, size_t *at, uint8_t *out, size_t cap,
                         size_t *out_len, int *open)
{
    /* zstd's stream buffers: pointer, size, position */
    struct {
        const void *src;
        size_t size, pos;
    } in = {src, len, *at};
    struct {
        void *dst;
        size_t size, pos;
    } to = {out, cap, *out_len};

    if (work->dctx == NULL && (work->dctx = ((create_fn)work->zstd.create_dctx)()) == NULL)
        return SHUFLR_NO_MEMORY;
    do {
        size_t hint = ((decompress_stream_fn)work->zstd.decompress_stream)(work->dctx, &to, &in);
        if (is_error(&work->zstd, hint))
            return SHUFLR_BAD_FRAME;
        *open = hint != 0;
    } while (in.pos < in.size && to.pos < to.size);
    *at = in.pos;
    *out_len = to.pos;
    return SHUFLR_OK;
}

int shuflr_check(const uint8_t *data, size_t len, uint32_t expected, int *kind)
{
    int first = *kind == SHUFLR_CHECK_FNV ? SHUFLR_CHECK_FNV : SHUFLR_CHECK_XXH64;

    for (int attempt = 0; attempt < 2; attempt++) {
        int now = attempt == 0 ? first : SHUFLR_CHECK_XXH64 + SHUFLR_CHECK_FNV - first;
        uint32_t got = now == SHUFLR_CHECK_FNV ? shuflr_fnv1a_low32(data, len) : (uint32_t)shuflr_xxh64(data, len);
        if (got == expected) {
            *kind = now;
            return SHUFLR_OK;
        }
    }
    return SHUFLR_WRONG_CHECKSUM;
}

/* Room for at least one group of 64 more spans. */
static int grow_spans(shuflr_work *work)
{
    size_t cap = work->spans_cap < 4096 ? 4096 : work->spans_cap * 2;
    uint64_t *fresh = realloc(work->spans, cap * sizeof *fresh);

    if (fresh == NULL)
        return SHUFLR_NO_MEMORY;
    work->spans = fresh;
    work->spans_cap = cap;
    return SHUFLR_OK;
}

int shuflr_ends(shuflr_work *work, const uint8_t *data, size_t len, uint64_t base)
{
    size_t n = 0, at = 0;

    work->next = work->records = 0;
    while (at < len) {
        if (n == work->spans_cap && grow_spans(work) != SHUFLR_OK)
            return SHUFLR_NO_MEMORY;
        n += shuflr_find_ends(data, len, base, &at, work->spans + n, work->spans_cap - n);
    }
    if (len > 0 && data[len - 1] != 0x0A) {
        if (n == work->spans_cap && grow_spans(work) != SHUFLR_OK)
            return SHUFLR_NO_MEMORY;
        work->spans[n++] = base + len;
    }
    work->records = n;
    return SHUFLR_OK;
}

int shuflr_split(shuflr_work *work, const uint8_t *key)
{
    uint64_t start = 0;

    work->next = work->records = 0;
    if (work->content_len > UINT32_MAX) /* spans hold 32-bit starts; the format cannot hold such a frame either */
        return SHUFLR_WRONG_SIZE;
    if (shuflr_ends(work, work->content, work->content_len, 0) != SHUFLR_OK)
        return SHUFLR_NO_MEMORY;
    for (size_t i = 0; i < work->records; i++) {
        uint64_t end = work->spans[i];
        work->spans[i] = start | (end - start) << 32;
        start = end;
    }
    if (key != NULL) {
        shuflr_rng rng;
        shuflr_rng_init(&rng, key, 0);
        shuflr_shuffle_u64(&rng, work->spans, work->records);
    }
    return SHUFLR_OK;
}

int shuflr_gather(shuflr_work *work, uint64_t limit, int prefix, uint64_t max_line, int policy)
{
    const size_t n = work->records;
    const uint8_t *content = work->content;
    size_t i = (size_t)work->next;
    uint64_t room = work->content_len;
    uint8_t *to;

    work->out_len = 0;
    work->emitted = work->dropped = 0;
    if (prefix)
        room += 4 * (uint64_t)(n - i);
    if (shuflr_reserve(&work->out, &work->out_cap, room) != SHUFLR_OK)
        return SHUFLR_NO_MEMORY;
    to = work->out;
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
                work->out_len = (size_t)(to - work->out);
                work->next = i;
                return SHUFLR_OVERSIZED;
            }
            work->dropped++;
            continue;
        }
        if (prefix) {
            size_t bare = len - (from[len - 1] == 0x0A);
            store_u32(to, (uint32_t)bare);
            to += 4;
            len = bare;
        }
        copy_record(to, from, len);
        to += len;
        work->emitted++;
    }
    work->out_len = (size_t)(to - work->out);
    work->next = i;
    return SHUFLR_OK;
}

int shuflr_frame(shuflr_work *work, const uint8_t *src, size_t len, uint64_t size, uint64_t limit_bytes,
                 uint32_t expected, int *kind, const uint8_t *key, uint64_t first, uint64_t limit, int prefix,
                 uint64_t max_line, int policy)
{
    int status = shuflr_decode(work, src, len, size, limit_bytes);

    work->out_len = 0;
    if (status == SHUFLR_OK && *kind >= 0)
        status = shuflr_check(work->content, work->content_len, expected, kind);
    if (status == SHUFLR_OK)
        status = shuflr_split(work, key);
    if (status != SHUFLR_OK)
        return status;
    work->next = first < work->records ? first : work->records;
    return shuflr_gather(work, limit, prefix, max_line, policy);
}

int shuflr_compress(shuflr_work *work, const uint8_t *src, size_t len, int level, uint8_t *out, size_t cap,
                    size_t *out_len, uint32_t *checksum)
{
    size_t got;

    if (work->cctx == NULL && (work->cctx = ((create_fn)work->zstd.create_cctx)()) == NULL)
        return SHUFLR_NO_MEMORY;
    got = ((compress_fn)work->zstd.compress_cctx)(work->cctx, out, cap, src, len, level);
    if (is_error(&work->zstd, got))
        return SHUFLR_BAD_FRAME;
    *out_len = got;
    *checksum = (uint32_t)shuflr_xxh64(src, len);
    return SHUFLR_OK;
}

size_t shuflr_compress_bound(const shuflr_zstd *zstd, size_t len)
{
    return ((bound_fn)zstd->compress_bound)(len);
}
