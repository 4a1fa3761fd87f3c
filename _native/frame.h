/* One frame at a time: decode, check, find the records, shuffle them, gather them into one block.
 *
 * A work area belongs to one thread at a time and keeps its buffers from frame to frame, so a steady stream
 * allocates nothing. zstd itself is not linked: its functions come in as addresses. */
#ifndef SHUFLR_FRAME_H
#define SHUFLR_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Addresses of the zstd functions used, all of its stable interface. */
typedef struct {
    uintptr_t create_dctx, free_dctx, decompress_dctx, decompress_stream, is_error;
    uintptr_t frame_content_size, find_frame_compressed_size;
    uintptr_t create_cctx, free_cctx, compress_cctx, compress_bound;
} shuflr_zstd;

/* Fills the table from a shared library by name; its version number (10507 for 1.5.7), or 0 when it is not there or lacks
 * one of them. The library stays loaded. */
unsigned shuflr_zstd_load(const char *library, shuflr_zstd *zstd);

typedef struct {
    shuflr_zstd zstd;
    void *dctx, *cctx;

    uint8_t *content; /* the decoded frame */
    size_t content_len, content_cap;
    uint64_t *spans; /* its records in the order they are handed out: start | length << 32 */
    size_t records, spans_cap;
    uint8_t *out; /* the block gathered last */
    size_t out_len, out_cap;

    uint64_t next;               /* how many records have been gathered or dropped */
    uint64_t emitted, dropped;   /* in the block gathered last */
    uint64_t bad_offset, bad_len; /* of the record that SHUFLR_OVERSIZED is about */
} shuflr_work;

/* How a checksum was found right; CHECK_ANY asks for either, the first being tried first. */
enum { SHUFLR_CHECK_NONE = 0, SHUFLR_CHECK_XXH64 = 1, SHUFLR_CHECK_FNV = 2 };

/* Makes room for `need` bytes and SHUFLR_SLACK behind them; what was there is lost when it has to grow. */
int shuflr_reserve(uint8_t **bytes, size_t *cap, uint64_t need);

/* NULL when memory or zstd gives out. */
shuflr_work *shuflr_work_new(const shuflr_zstd *zstd);
void shuflr_work_free(shuflr_work *work);

/* What the zstd frames in src declare to hold, added up; UINT64_MAX when one does not say or the bytes are no frames. */
uint64_t shuflr_declared_size(const shuflr_zstd *zstd, const uint8_t *src, size_t len);

/* Decodes src (one or more zstd frames) into work->content. `size` is what it must come to, or UINT64_MAX for
 * "up to `limit`". Nothing is allocated before the frames' own headers have been asked. */
int shuflr_decode(shuflr_work *work, const uint8_t *src, size_t len, uint64_t size, uint64_t limit);

/* The same into the caller's memory, exactly `size` bytes. */
int shuflr_decode_into(shuflr_work *work, const uint8_t *src, size_t len, uint8_t *dst, uint64_t size);

/* Decodes on from src + *at into out + *out_len, as far as either reaches; *open says whether a frame has begun and
 * not ended. For zstd that has no seek table. */
int shuflr_decode_stream(shuflr_work *work, const uint8_t *src, size_t len, size_t *at, uint8_t *out, size_t cap,
                         size_t *out_len, int *open);

/* Compares the low 32 bits of the checksum of data; *kind is the kind to try first and becomes the one that agreed. */
int shuflr_check(const uint8_t *data, size_t len, uint32_t expected, int *kind);

/* Exchanges the memory that the next block is gathered into for another, so that a block outlives the work area's next
 * frame. *out and *cap are NULL and 0 at first, and are freed with shuflr_block_free. */
void shuflr_swap_block(shuflr_work *work, uint8_t **out, size_t *cap);
void shuflr_block_free(uint8_t *out);

/* Finds the records of work->content and shuffles them with a 32-byte key (NULL keeps their order). */
int shuflr_split(shuflr_work *work, const uint8_t *key);

/* Fills work->spans with base + where each record of data ends, and work->records with their number; what follows the last
 * LF is a record. For content that was decoded elsewhere. */
int shuflr_ends(shuflr_work *work, const uint8_t *data, size_t len, uint64_t base);

/* Gathers the next records into work->out: at most `limit` of them. prefix 0: the bytes as they are; prefix 1: each
 * as u32 length and bytes, without its LF. A record longer than max_line meets `policy`. */
int shuflr_gather(shuflr_work *work, uint64_t limit, int prefix, uint64_t max_line, int policy);

/* All of it: decode, check (*kind < 0: no check), split, shuffle, pass over `first` records, gather. */
int shuflr_frame(shuflr_work *work, const uint8_t *src, size_t len, uint64_t size, uint64_t limit_bytes,
                 uint32_t expected, int *kind, const uint8_t *key, uint64_t first, uint64_t limit, int prefix,
                 uint64_t max_line, int policy);

/* Compresses one frame; *out_len becomes its length, *checksum the low half of its content's XXH64. */
int shuflr_compress(shuflr_work *work, const uint8_t *src, size_t len, int level, uint8_t *out, size_t cap,
                    size_t *out_len, uint32_t *checksum);
size_t shuflr_compress_bound(const shuflr_zstd *zstd, size_t len);

#endif
