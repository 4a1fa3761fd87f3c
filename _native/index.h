/* Gathering by index: from an arena of decoded frames, from a plain file, and from frames of a seekable one. */
#ifndef SHUFLR_INDEX_H
#define SHUFLR_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Copies records order[from..to) of an arena whose record i ends at ends[i] into out, as shuflr_gather does; stops
 * before the one that does not fit. *done becomes the position reached. The arena has SHUFLR_SLACK bytes behind it. */
int shuflr_arena_gather(const uint8_t *arena, const uint64_t *ends, const uint32_t *order, uint64_t from, uint64_t to,
                        int prefix, uint64_t max_line, int policy, uint8_t *out, size_t cap, size_t *out_len,
                        uint64_t *done, uint64_t *emitted, uint64_t *dropped, uint64_t *bad);

/* A batch from a memory-mapped file of plain lines, record i being offsets[i]..offsets[i+1]: positions from, from+step, ..
 * < to, until `cap` bytes or `most` records are reached. starts[k] is where the k-th record lies, places[k] where it goes
 * in the block (places[n] is the block's length), sorted the k in order of their window. The last record of a file gets the
 * LF that it lacks. *n becomes the number of records. */
int shuflr_map_plan(const uint8_t *map, uint64_t map_len, const uint64_t *offsets, uint64_t count, const void *order,
                    int wide, uint64_t from, uint64_t to, uint64_t step, uint64_t cap, size_t most, uint64_t *starts,
                    uint64_t *places, uint32_t *sorted, size_t *n);

/* Copies records sorted[from..to) of a plan to their places, window after window, and gives each window's pages back to the
 * system behind it. */
void shuflr_map_gather(const uint8_t *map, uint64_t map_len, const uint64_t *starts, const uint64_t *places,
                       const uint32_t *sorted, size_t from, size_t to, uint8_t *out);

/* An entry of the seekable sidecar, as it lies in the file. */
typedef struct {
    uint32_t frame, offset, len;
} shuflr_entry;

/* Writes an entry for each of n records of a frame, from its spans in their natural order. */
void shuflr_entries(const uint64_t *spans, size_t n, uint32_t frame, shuflr_entry *out);

/* Plans a batch: positions from, from+step, .. < to, until `cap` bytes or `most` records are reached. places[k] is where
 * the k-th record goes in the block; sorted[k] = frame << 32 | k, in order. Returns how many; *bytes is their sum. */
size_t shuflr_entry_plan(const shuflr_entry *entries, uint64_t count, const void *order, int wide, uint64_t from,
                         uint64_t to, uint64_t step, uint64_t cap, size_t most, uint64_t *places, uint64_t *sorted,
                         uint64_t *bytes);

/* Where the run of equal frames that starts at sorted[from] ends. */
size_t shuflr_entry_run(const uint64_t *sorted, size_t n, size_t from);

/* Copies the records sorted[from..to), all of one frame with this content, to their places. */
int shuflr_entry_scatter(const shuflr_entry *entries, const void *order, int wide, uint64_t first, uint64_t step,
                         const uint64_t *places, const uint64_t *sorted, size_t from, size_t to,
                         const uint8_t *content, size_t content_len, uint8_t *out, size_t out_cap);

/* Closes the gaps that the plan left for missing LFs, and adds those LFs. Returns the length of the block. */
size_t shuflr_entry_close(const shuflr_entry *entries, const void *order, int wide, uint64_t first, uint64_t step,
                          const uint64_t *places, size_t n, uint8_t *out);

/* Rewrites a block of whole records as u32 length and bare bytes each; room for len + 3 bytes a record. Returns the
 * new length. */
size_t shuflr_length_prefix(const uint8_t *block, size_t len, uint8_t *out);

#endif
