"""Builds `shuflr._native`: the C core, through cffi in API mode against the stable ABI.

The declarations below are the whole boundary: what is not here cannot be called from Python. cffi
releases the GIL around every call, so no function here may keep or share state.
"""

from pathlib import Path

import cffi

# setuptools runs this file with the project's root as the working directory and without `__file__`.
HERE = Path("_native")
UNITS = (
    "chacha20", "checksum", "draw", "scan", "frame", "slots", "sieve", "index", "json", "idset", "xxh3", "batch",
    "gate",
)  # fmt: skip

ffi = cffi.FFI()
ffi.cdef(
    """
    enum { SHUFLR_OK, SHUFLR_NO_MEMORY, SHUFLR_BAD_FRAME, SHUFLR_WRONG_SIZE, SHUFLR_WRONG_CHECKSUM, SHUFLR_OVERSIZED,
           SHUFLR_BAD_INDEX, ... };
    enum { SHUFLR_SKIP, SHUFLR_FAIL, SHUFLR_PASS, ... };
    enum { SHUFLR_CHECK_NONE, SHUFLR_CHECK_XXH64, SHUFLR_CHECK_FNV, ... };
    #define SHUFLR_BATCH_HEAD ...
    #define SHUFLR_RAW_HEAD ...
    enum { SHUFLR_JSON_OK, SHUFLR_JSON_VALUE, SHUFLR_JSON_STRING, SHUFLR_JSON_NUMBER, SHUFLR_JSON_PUNCTUATION,
           SHUFLR_JSON_TRAILING, SHUFLR_JSON_DEPTH, ... };

    void shuflr_chacha20_block(const uint8_t key[32], uint32_t counter, const uint8_t nonce[12], uint8_t out[64]);

    typedef struct { ...; } shuflr_rng;
    void shuflr_rng_init(shuflr_rng *rng, const uint8_t key[32], uint64_t position);
    uint64_t shuflr_rng_position(const shuflr_rng *rng);
    uint32_t shuflr_next_u32(shuflr_rng *rng);
    uint64_t shuflr_next_u64(shuflr_rng *rng);
    uint32_t shuflr_below32(shuflr_rng *rng, uint32_t n);
    uint64_t shuflr_below64(shuflr_rng *rng, uint64_t n);
    void shuflr_permutation_u32(shuflr_rng *rng, uint32_t *out, size_t n);
    void shuflr_permutation_u64(shuflr_rng *rng, uint64_t *out, size_t n);
    void shuflr_draw_u64(shuflr_rng *rng, uint64_t *out, size_t n);

    uint64_t shuflr_xxh64(const uint8_t *data, size_t len);
    uint32_t shuflr_fnv1a_low32(const uint8_t *data, size_t len);

    typedef struct { ...; } shuflr_xxh3_state;
    uint64_t shuflr_xxh3(const uint8_t *data, size_t len);
    void shuflr_xxh3_init(shuflr_xxh3_state *state);
    void shuflr_xxh3_update(shuflr_xxh3_state *state, const uint8_t *data, size_t len);
    uint64_t shuflr_xxh3_digest(const shuflr_xxh3_state *state);
    size_t shuflr_sums_size(size_t len);
    void shuflr_sums(const uint8_t *frame, size_t len, uint8_t *sums);
    uint64_t shuflr_sums_digest(const uint8_t *head, const uint8_t *sums, size_t len);

    size_t shuflr_count_lf(const uint8_t *data, size_t len);
    size_t shuflr_find_ends(const uint8_t *data, size_t len, uint64_t base, size_t *at, uint64_t *out, size_t cap);
    size_t shuflr_after_last(const uint8_t *data, size_t len);
    size_t shuflr_after_records(const uint8_t *data, size_t len, uint64_t n, uint64_t *found);

    typedef struct {
        uintptr_t create_dctx, free_dctx, decompress_dctx, decompress_stream, is_error;
        uintptr_t frame_content_size, find_frame_compressed_size;
        uintptr_t create_cctx, free_cctx, compress_cctx, compress_bound;
    } shuflr_zstd;
    unsigned shuflr_zstd_load(const char *library, shuflr_zstd *zstd);
    typedef struct {
        uint8_t *content;
        size_t content_len, content_cap;
        uint64_t *spans;
        size_t records, spans_cap;
        uint8_t *out;
        size_t out_len, out_cap;
        uint64_t next, emitted, dropped, bad_offset, bad_len;
        ...;
    } shuflr_work;
    shuflr_work *shuflr_work_new(const shuflr_zstd *zstd);
    void shuflr_work_free(shuflr_work *work);
    uint64_t shuflr_declared_size(const shuflr_zstd *zstd, const uint8_t *src, size_t len);
    int shuflr_decode(shuflr_work *work, const uint8_t *src, size_t len, uint64_t size, uint64_t limit);
    int shuflr_decode_into(shuflr_work *work, const uint8_t *src, size_t len, uint8_t *dst, uint64_t size);
    int shuflr_decode_stream(shuflr_work *work, const uint8_t *src, size_t len, size_t *at, uint8_t *out, size_t cap,
                             size_t *out_len, int *open);
    void shuflr_swap_block(shuflr_work *work, uint8_t **out, size_t *cap);
    void shuflr_block_free(uint8_t *out);
    int shuflr_check(const uint8_t *data, size_t len, uint32_t expected, int *kind);
    int shuflr_split(shuflr_work *work, const uint8_t *key);
    int shuflr_ends(shuflr_work *work, const uint8_t *data, size_t len, uint64_t base);
    int shuflr_gather(shuflr_work *work, uint64_t limit, int prefix, uint64_t max_line, int policy);
    int shuflr_frame(shuflr_work *work, const uint8_t *src, size_t len, uint64_t size, uint64_t limit_bytes,
                     uint32_t expected, int *kind, const uint8_t *key, uint64_t first, uint64_t limit, int prefix,
                     uint64_t max_line, int policy);
    int shuflr_compress(shuflr_work *work, const uint8_t *src, size_t len, int level, uint8_t *out, size_t cap,
                        size_t *out_len, uint32_t *checksum);
    size_t shuflr_compress_bound(const shuflr_zstd *zstd, size_t len);

    typedef struct {
        uint32_t epoch, most_records;
        uint64_t most_bytes;
        int level;
        uint64_t batch;
        uint32_t records;
        uint64_t open_len;
        uint32_t unended, unended_len;
    } shuflr_batches;
    int shuflr_batch(shuflr_work *work, shuflr_batches *batches, const uint8_t *carry, size_t carry_len,
                     uint64_t limit, int final, uint64_t max_line, int policy);
    int shuflr_load(shuflr_work *work, const uint8_t *block, size_t len);

    typedef struct shuflr_gate shuflr_gate;
    shuflr_gate *shuflr_gate_new(unsigned permits);
    void shuflr_gate_free(shuflr_gate *gate);
    void shuflr_gate_enter(shuflr_gate *gate);
    void shuflr_gate_leave(shuflr_gate *gate);
    int shuflr_gate_poll(shuflr_gate *gate, int fd, int events, int wake, int timeout_ms);

    typedef struct { uint64_t filled, seen; ...; } shuflr_slots;
    shuflr_slots *shuflr_slots_new(uint64_t capacity, const uint8_t key[32]);
    void shuflr_slots_free(shuflr_slots *slots);
    int shuflr_ring_feed(shuflr_slots *ring, const uint8_t *src, size_t len, size_t *at, uint8_t *out, size_t cap,
                         size_t *out_len, uint64_t *emitted, uint64_t limit, size_t *needs);
    int shuflr_ring_drain(shuflr_slots *ring, uint8_t *out, size_t cap, size_t *out_len, uint64_t *emitted,
                          uint64_t limit, size_t *needs);
    int shuflr_reservoir_feed(shuflr_slots *reservoir, const uint8_t *src, size_t len);
    int shuflr_reservoir_drain(shuflr_slots *reservoir, uint8_t *out, size_t cap, size_t *out_len, uint64_t *emitted,
                               uint64_t limit, size_t *needs);

    typedef struct {
        uint64_t max_line;
        int policy;
        uint32_t rank, world;
        uint64_t ordinal, dropped, bad_offset, bad_len;
    } shuflr_sieve;
    int shuflr_sieve_run(shuflr_sieve *sieve, const uint8_t *src, size_t len, uint8_t *out, size_t *out_len);
    typedef struct {
        shuflr_rng rng;
        int sampled, gated;
        uint64_t threshold;
        double min_entropy, max_entropy;
        uint64_t limit, kept;
    } shuflr_filter;
    int shuflr_filter_run(shuflr_filter *filter, const uint8_t *src, size_t len, uint8_t *out, size_t *out_len);
    void shuflr_histogram(const uint8_t *data, size_t len, uint64_t bins[256]);

    int shuflr_arena_gather(const uint8_t *arena, const uint64_t *ends, const uint32_t *order, uint64_t from,
                            uint64_t to, int prefix, uint64_t max_line, int policy, uint8_t *out, size_t cap,
                            size_t *out_len, uint64_t *done, uint64_t *emitted, uint64_t *dropped, uint64_t *bad);
    int shuflr_map_plan(const uint8_t *map, uint64_t map_len, const uint64_t *offsets, uint64_t count,
                        const void *order, int wide, uint64_t from, uint64_t to, uint64_t step, uint64_t cap,
                        size_t most, uint64_t *starts, uint64_t *places, uint32_t *sorted, size_t *n);
    void shuflr_map_gather(const uint8_t *map, uint64_t map_len, const uint64_t *starts, const uint64_t *places,
                           const uint32_t *sorted, size_t from, size_t to, uint8_t *out);
    typedef struct { uint32_t frame, offset, len; } shuflr_entry;
    void shuflr_entries(const uint64_t *spans, size_t n, uint32_t frame, shuflr_entry *out);
    size_t shuflr_entry_plan(const shuflr_entry *entries, uint64_t count, const void *order, int wide, uint64_t from,
                             uint64_t to, uint64_t step, uint64_t cap, size_t most, uint64_t *places,
                             uint64_t *sorted, uint64_t *bytes);
    size_t shuflr_entry_run(const uint64_t *sorted, size_t n, size_t from);
    int shuflr_entry_scatter(const shuflr_entry *entries, const void *order, int wide, uint64_t first, uint64_t step,
                             const uint64_t *places, const uint64_t *sorted, size_t from, size_t to,
                             const uint8_t *content, size_t content_len, uint8_t *out, size_t out_cap);
    size_t shuflr_entry_close(const shuflr_entry *entries, const void *order, int wide, uint64_t first, uint64_t step,
                              const uint64_t *places, size_t n, uint8_t *out);
    size_t shuflr_length_prefix(const uint8_t *block, size_t len, uint8_t *out);

    int shuflr_json_check(const uint8_t *record, size_t len, size_t *at);

    typedef struct saturate_idset saturate_idset;
    saturate_idset *saturate_idset_new(const uint8_t key[16]);
    void saturate_idset_free(saturate_idset *set);
    int saturate_idset_has(const saturate_idset *set, const char *id, size_t length);
    int saturate_idset_add(saturate_idset *set, const char *id, size_t length);
    int saturate_idset_line_up(saturate_idset *set, const saturate_idset *unless_in, const char *text,
                               const int32_t *offsets, int64_t count);
    int saturate_idset_settle(saturate_idset *set);
    uint64_t saturate_idset_count(const saturate_idset *set);
    uint64_t saturate_idset_bytes(const saturate_idset *set);
    """
)
ffi.set_source(
    "shuflr._native",
    "\n".join(f'#include "{unit}.h"' for unit in UNITS),
    sources=[str(HERE / f"{unit}.c") for unit in UNITS],
    include_dirs=[str(HERE)],
    depends=[str(path) for path in sorted(HERE.glob("*.h"))],
    extra_compile_args=["-O3", "-std=c99"],
    libraries=["m", "dl", "pthread"],
    py_limited_api=True,
)
