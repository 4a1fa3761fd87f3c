/* One input of the fuzzer, or of the sanitizer test, through every function of the core that reads foreign bytes.
 *
 * Byte 0 chooses the function, bytes 1 to 15 its numbers, the rest is the data. Apart from what the sanitizers see, what
 * comes out must add up: a block is never longer than its content, every record is somewhere.
 * Built with -DSTANDALONE it runs the files named on its command line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "checksum.h"
#include "frame.h"
#include "idset.h"
#include "index.h"
#include "json.h"
#include "received.h"
#include "scan.h"
#include "sieve.h"
#include "slots.h"
#include "xxh3.h"

void *ZSTD_createDCtx(void);
size_t ZSTD_freeDCtx(void *);
size_t ZSTD_decompressDCtx(void *, void *, size_t, const void *, size_t);
size_t ZSTD_decompressStream(void *, void *, void *);
unsigned ZSTD_isError(size_t);
unsigned long long ZSTD_getFrameContentSize(const void *, size_t);
size_t ZSTD_findFrameCompressedSize(const void *, size_t);
void *ZSTD_createCCtx(void);
size_t ZSTD_freeCCtx(void *);
size_t ZSTD_compressCCtx(void *, void *, size_t, const void *, size_t, int);
size_t ZSTD_compressBound(size_t);

#define LIMIT (1u << 22) /* decoded bytes a fuzzed frame may claim */

static void must(int truth)
{
    if (!truth)
        abort();
}

static shuflr_zstd functions(void)
{
    return (shuflr_zstd){
        .create_dctx = (uintptr_t)ZSTD_createDCtx,
        .free_dctx = (uintptr_t)ZSTD_freeDCtx,
        .decompress_dctx = (uintptr_t)ZSTD_decompressDCtx,
        .decompress_stream = (uintptr_t)ZSTD_decompressStream,
        .is_error = (uintptr_t)ZSTD_isError,
        .frame_content_size = (uintptr_t)ZSTD_getFrameContentSize,
        .find_frame_compressed_size = (uintptr_t)ZSTD_findFrameCompressedSize,
        .create_cctx = (uintptr_t)ZSTD_createCCtx,
        .free_cctx = (uintptr_t)ZSTD_freeCCtx,
        .compress_cctx = (uintptr_t)ZSTD_compressCCtx,
        .compress_bound = (uintptr_t)ZSTD_compressBound,
    };
}

static void frame(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    static const uint8_t key[32] = {1, 2, 3};
    shuflr_zstd zstd = functions();
    shuflr_work *work = shuflr_work_new(&zstd);
    uint64_t size = numbers[0] & 1 ? UINT64_MAX : (uint64_t)numbers[1] | (uint64_t)numbers[2] << 8;
    int kind = numbers[0] & 2 ? -1 : numbers[0] >> 6;
    int prefix = (numbers[0] & 4) != 0;
    int policy = numbers[4] % 3;
    int status = shuflr_frame(work, data, len, size, LIMIT, numbers[3], &kind, numbers[0] & 8 ? key : NULL, numbers[5],
                              numbers[0] & 16 ? numbers[6] : UINT64_MAX, prefix,
                              numbers[0] & 32 ? numbers[7] : UINT64_MAX, policy);

    must(work->content_len <= LIMIT);
    if (status == SHUFLR_OK) {
        uint64_t total = 0;
        must(size == UINT64_MAX || work->content_len == size);
        must(work->out_len <= work->content_len + (prefix ? 4 * work->records : 0));
        while (work->next < work->records && status == SHUFLR_OK)
            status = shuflr_gather(work, 7, prefix, UINT64_MAX, SHUFLR_PASS);
        for (size_t i = 0; i < work->records; i++)
            total += work->spans[i] >> 32;
        must(total == work->content_len);
    }
    shuflr_work_free(work);
}

static void stream(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    shuflr_zstd zstd = functions();
    shuflr_work *work = shuflr_work_new(&zstd);
    uint8_t out[700];
    size_t at = 0, cap = 1 + numbers[0] * 2u, total = 0, out_len;
    int open = 0;

    do {
        out_len = 0;
        if (shuflr_decode_stream(work, data, len, &at, out, cap, &out_len, &open) != SHUFLR_OK)
            break;
        must(at <= len && out_len <= cap);
        total += out_len;
    } while ((at < len || out_len > 0) && total < LIMIT);
    shuflr_work_free(work);
}

static void slots(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    static const uint8_t key[32] = {9};
    uint64_t capacity = 1 + numbers[0] % 40;
    shuflr_slots *ring = shuflr_slots_new(capacity, key), *reservoir = shuflr_slots_new(capacity, key);
    uint8_t *out = malloc(len + 1);
    size_t at = 0, out_len = 0, needs = 0, cap = numbers[1] & 1 ? len + 1 : numbers[2] % (len + 1);
    uint64_t emitted = 0, records = 0, total = 0;

    for (size_t p = 0; p < len; records++)
        p += shuflr_record_len(data + p, len - p);
    for (;;) {
        out_len = 0;
        must(shuflr_ring_feed(ring, data, len, &at, out, cap, &out_len, &emitted, UINT64_MAX, &needs) == SHUFLR_OK);
        must(out_len <= cap);
        total += out_len;
        if (at == len)
            break;
        if (needs > cap)
            cap = len + 1;
    }
    while (ring->filled > 0) {
        out_len = 0;
        must(shuflr_ring_drain(ring, out, cap, &out_len, &emitted, UINT64_MAX, &needs) == SHUFLR_OK);
        total += out_len;
        if (needs > cap)
            cap = len + 1;
    }
    must(emitted == records && total == len);
    must(shuflr_reservoir_feed(reservoir, data, len) == SHUFLR_OK);
    emitted = 0;
    out_len = 0;
    must(shuflr_reservoir_drain(reservoir, out, len + 1, &out_len, &emitted, UINT64_MAX, &needs) == SHUFLR_OK);
    must(emitted == (records < capacity ? records : capacity));
    free(out);
    shuflr_slots_free(ring);
    shuflr_slots_free(reservoir);
}

static void text(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    uint64_t *ends = malloc((len + 1) * sizeof *ends), found = 0, bins[256] = {0};
    uint8_t *out = malloc(4 * len + 64);
    size_t at = 0, n = 0, out_len = 0;
    shuflr_sieve sieve = {.max_line = numbers[0], .policy = numbers[1] % 3, .rank = numbers[2] % 3, .world = 3};
    shuflr_filter filter = {.sampled = numbers[3] & 1, .gated = numbers[3] & 2, .threshold = 1ull << 63,
                            .min_entropy = 0.5, .max_entropy = 4, .limit = numbers[4]};
    static const uint8_t key[32] = {7};

    while (at < len)
        n += shuflr_find_ends(data, len, 5, &at, ends + n, numbers[5] % 9 + 1u < len - n ? numbers[5] % 9 + 1u : len - n + 1);
    must(n == shuflr_count_lf(data, len));
    for (size_t i = 0; i < n; i++)
        must(data[ends[i] - 6] == 0x0A);
    must(shuflr_after_records(data, len, numbers[6], &found) <= len);
    must(shuflr_after_last(data, len) == (n ? ends[n - 1] - 5 : 0));
    shuflr_sieve_run(&sieve, data, len, out, &out_len);
    must(out_len <= len);
    shuflr_rng_init(&filter.rng, key, 0);
    shuflr_filter_run(&filter, data, len, out, &out_len);
    must(out_len <= len && filter.kept <= filter.limit);
    must(shuflr_length_prefix(data, len, out) <= 4 * len + 4);
    shuflr_histogram(data, len, bins);
    must(bins[0x0A] == n);
    (void)shuflr_xxh64(data, len);
    (void)shuflr_fnv1a_low32(data, len);
    shuflr_json_check(data, len, &at);
    must(at <= len);
    free(ends);
    free(out);
}

/* The data is an index; its frames hold `content` bytes, and it may say anything about them. */
static void entries(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    size_t count = len / sizeof(shuflr_entry), content_len = numbers[0] * 4u, n;
    shuflr_entry *list = malloc(count * sizeof *list + 1);
    uint32_t *order = malloc(count * sizeof *order + 1);
    uint64_t *places = malloc(count * 8 + 8), *sorted = malloc(count * 8 + 8), bytes = 0;
    uint8_t *content = malloc(content_len + 1), *out;
    int status = SHUFLR_OK;

    memset(content, 'x', content_len + 1);
    memcpy(list, data, count * sizeof *list);
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)(count - 1 - i);
    n = shuflr_entry_plan(list, count, order, 0, 0, count, 1, 1 << 20, count, places, sorted, &bytes);
    must(n <= count);
    if (bytes < 1 << 21) {
        out = malloc(bytes + 1);
        for (size_t from = 0, to; from < n && status == SHUFLR_OK; from = to) {
            to = shuflr_entry_run(sorted, n, from);
            must(to > from);
            status = shuflr_entry_scatter(list, order, 0, 0, 1, places, sorted, from, to, content, content_len, out, bytes);
        }
        if (status == SHUFLR_OK)
            must(shuflr_entry_close(list, order, 0, 0, 1, places, n, out) <= bytes);
        free(out);
    }
    free(list);
    free(order);
    free(places);
    free(sorted);
    free(content);
}

/* The data is 16-bit offsets into a mapped file of `len` bytes, which it may name in any order. */
static void mapped(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    size_t count = len / 2 > 0 ? len / 2 - 1 : 0, n = 0;
    uint64_t *offsets = malloc((count + 1) * 8), *starts = malloc(count * 8 + 8), *places = malloc(count * 8 + 8);
    uint32_t *order = malloc(count * 4 + 4), *sorted = malloc(count * 4 + 4);
    uint8_t *map = aligned_alloc(4096, (len / 4096 + 1) * 4096), *out;

    memcpy(map, data, len);
    for (size_t i = 0; i <= count && len >= 2; i++)
        offsets[i] = numbers[0] & 1 ? i * numbers[1] : (uint64_t)data[2 * i] | (uint64_t)data[2 * i + 1] << 8;
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)(count - 1 - i);
    if (count > 0 && shuflr_map_plan(map, len, offsets, count, order, 0, numbers[2] % 3, count, 1 + numbers[2] % 2,
                                     numbers[3] * 9u, count, starts, places, sorted, &n) == SHUFLR_OK) {
        out = malloc(places[n] + 1);
        shuflr_map_gather(map, len, starts, places, sorted, 0, n / 2, out);
        shuflr_map_gather(map, len, starts, places, sorted, n / 2, n, out);
        free(out);
    }
    free(offsets);
    free(starts);
    free(places);
    free(order);
    free(sorted);
    free(map);
}

/* The data is ids, each after a byte for its length (bit 7: spelled as hex digits): some are added one by one, some line
 * up, some of those are held back by another set. A plain list knows which must be there. */
static void ids(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    saturate_idset *set = saturate_idset_new(numbers), *other = saturate_idset_new(numbers);
    char *text = malloc(2 * len + 1);
    int32_t *offsets = malloc((len + 1) * sizeof *offsets);
    size_t count = 0, one_by_one, distinct = 0;
    int held_back = numbers[1] & 1;

    must(set != NULL && other != NULL);
    offsets[0] = 0;
    for (size_t at = 0; at < len && count < 600; count++) {
        size_t size = data[at] % 41, hex = data[at] >> 7;
        int32_t end = offsets[count];
        at++;
        for (size_t i = 0; i < size && at < len; i++, at++) {
            if (hex)
                text[end++] = digits[data[at] >> 4];
            text[end++] = hex ? digits[data[at] & 15] : (char)data[at];
        }
        offsets[count + 1] = end;
    }
#define SAME(a, b)                                                        \
    (offsets[(a) + 1] - offsets[a] == offsets[(b) + 1] - offsets[b] &&    \
     !memcmp(text + offsets[a], text + offsets[b], offsets[(a) + 1] - offsets[a]))
    one_by_one = numbers[0] * count / 256;
    for (size_t i = 0; i < one_by_one; i++) {
        size_t first = 0;
        while (!SAME(first, i))
            first++;
        must(saturate_idset_add(set, text + offsets[i], offsets[i + 1] - offsets[i]) == (first == i));
        distinct += first == i;
    }
    for (size_t i = one_by_one; i < count && held_back; i += 3)
        saturate_idset_add(other, text + offsets[i], offsets[i + 1] - offsets[i]);
    must(saturate_idset_line_up(set, held_back ? other : NULL, text, offsets + one_by_one, count - one_by_one));
    must(saturate_idset_settle(set) && saturate_idset_settle(set));
    for (size_t i = 0; i < count; i++) {
        int there = 0, seen = 0, held = saturate_idset_has(other, text + offsets[i], offsets[i + 1] - offsets[i]);
        for (size_t j = 0; j < count; j++) {
            int same = SAME(i, j);
            there |= same && (j < one_by_one || !held);
            seen |= same && j < i;
        }
        must(saturate_idset_has(set, text + offsets[i], offsets[i + 1] - offsets[i]) == there);
        distinct += there && !seen && i >= one_by_one;
    }
    must(saturate_idset_count(set) == distinct);
    must(saturate_idset_bytes(set) > 0);
#undef SAME
    saturate_idset_free(set);
    saturate_idset_free(other);
    saturate_idset_free(NULL);
    free(text);
    free(offsets);
}

/* The data is records, which become batches, some in a first call and the rest, after what is left open, in a second.
 * Each message must be where the one before it ends, match its checksum, and hold as many records as it says. */
static void batches(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    shuflr_zstd zstd = functions();
    shuflr_work *work = shuflr_work_new(&zstd);
    shuflr_batches state = {.most_records = 1 + numbers[0] % 9, .most_bytes = 1 + numbers[1] * 4u,
                            .level = numbers[2] % 3 == 0};
    uint64_t emitted = 0, told = 0, expected = 0;
    uint8_t *carry = NULL;
    size_t carry_len = 0;

    must(shuflr_load(work, data, len) == SHUFLR_OK && shuflr_split(work, NULL) == SHUFLR_OK);
    for (int call = 0; call < 2; call++) {
        int status = shuflr_batch(work, &state, carry, carry_len, call ? UINT64_MAX : numbers[3], call,
                                  numbers[4] & 1 ? 5 + numbers[5] : UINT64_MAX, numbers[4] & 2 ? SHUFLR_SKIP : SHUFLR_PASS);
        must(status == SHUFLR_OK);
        emitted += work->emitted;
        if (!state.level) {
            size_t used, records;
            must(shuflr_measure_batches(work->out, work->out_len, &used, &records) == SHUFLR_OK && used == work->out_len);
        }
        for (size_t at = 0; at < work->out_len;) {
            const uint8_t *message = work->out + at;
            uint64_t sum = 0;
            size_t payload = message[1] | (size_t)message[2] << 8 | (size_t)message[3] << 16, body = 21;
            uint32_t records = message[17] | (uint32_t)message[18] << 8;
            for (int i = 8; i-- > 0;)
                sum = sum << 8 | message[5 + payload + i];
            must(message[0] == (state.level ? 2 : 3) && sum == shuflr_xxh3(message, 5 + payload));
            must(message[5] == (expected++ & 255) && records > 0 && records <= state.most_records);
            for (uint32_t i = 0; i < records && !state.level; i++)
                body += 4 + (message[body] | (size_t)message[body + 1] << 8 | (size_t)message[body + 2] << 16);
            must(state.level || body == 5 + payload);
            told += records;
            at += 5 + payload + 8;
        }
        free(carry);
        carry_len = (size_t)state.open_len;
        carry = malloc(carry_len + 1);
        if (carry_len > 0)
            memcpy(carry, work->out + work->out_len + SHUFLR_BATCH_HEAD, carry_len);
    }
    must(carry_len == 0 && told == emitted);
    free(carry);
    shuflr_work_free(work);
}

/* The data is a message, or several, from a peer that may lie; sealed, so that more than its checksum is looked at. */
static void received(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    uint8_t *copy = malloc(len + 1);
    size_t used, records, seen = 0, at = 0;
    int status;

    memcpy(copy, data, len);
    if (numbers[0] & 1 && len >= 13) {
        size_t payload = len - 13;
        uint64_t sum;
        copy[0] = 3;
        for (int i = 0; i < 4; i++)
            copy[1 + i] = (uint8_t)(payload >> 8 * i);
        sum = shuflr_xxh3(copy, 5 + payload);
        for (int i = 0; i < 8; i++)
            copy[5 + payload + i] = (uint8_t)(sum >> 8 * i);
    }
    status = shuflr_measure_batches(copy, len, &used, &records);
    must(used <= len);
    for (; status == SHUFLR_OK && at < used; at += shuflr_batch_size(copy + at)) {
        const uint8_t *record = shuflr_batch_records(copy + at);
        for (uint32_t n = shuflr_batch_count(copy + at); n > 0; n--, seen++)
            record += 4 + shuflr_load_u32(record);
        must(record + SHUFLR_BATCH_TRAILER <= copy + at + shuflr_batch_size(copy + at));
    }
    must(status != SHUFLR_OK || (at == used && seen == records));
    (void)shuflr_prefixed_fit(data, len, numbers[1]);
    free(copy);
}

/* A checksum does not depend on how its bytes come, nor on whether a frame is looked at or its sums. */
static void checksums(const uint8_t *numbers, const uint8_t *data, size_t len)
{
    shuflr_xxh3_state state;
    uint64_t whole = shuflr_xxh3(data, len);
    uint8_t *sums;
    size_t size;

    shuflr_xxh3_init(&state);
    for (size_t at = 0, step; at < len; at += step) {
        step = 1 + numbers[at % 15] * (numbers[0] & 1 ? 9u : 1u);
        step = step < len - at ? step : len - at;
        shuflr_xxh3_update(&state, data + at, step);
    }
    must(shuflr_xxh3_digest(&state) == whole);
    if (len < SHUFLR_RAW_HEAD || (size = shuflr_sums_size(len - SHUFLR_RAW_HEAD)) == 0)
        return;
    sums = malloc(size);
    shuflr_sums(data + SHUFLR_RAW_HEAD, len - SHUFLR_RAW_HEAD, sums);
    must(shuflr_sums_digest(data, sums, len - SHUFLR_RAW_HEAD) == whole);
    free(sums);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static void (*const targets[])(const uint8_t *, const uint8_t *, size_t) = {frame,   stream, slots,
                                                                              text,    entries, mapped};

    if (len < 17)
        return 0;
    if (data[0] % 16 == 6)
        ids(data + 1, data + 17, len - 17);
    else if (data[0] % 16 == 7)
        batches(data + 1, data + 16, len - 16);
    else if (data[0] % 16 == 8)
        checksums(data + 1, data + 16, len - 16);
    else if (data[0] % 16 == 9)
        received(data + 1, data + 16, len - 16);
    else
        targets[data[0] % 6](data + 1, data + 16, len - 16);
    return 0;
}

#ifdef STANDALONE
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        static uint8_t buffer[1 << 22];
        size_t len;
        uint8_t *exact;
        if (file == NULL)
            return 2;
        len = fread(buffer, 1, sizeof buffer, file);
        fclose(file);
        exact = malloc(len + 1); /* of its own size, so that the sanitizer sees its end */
        memcpy(exact, buffer, len);
        LLVMFuzzerTestOneInput(exact, len);
        free(exact);
    }
    printf("%d inputs\n", argc - 1);
    return 0;
}
#endif
