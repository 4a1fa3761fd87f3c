/* Records as framed messages of shuflr-wire/1: plain batches and zstd batches, many at once, ready for the socket. */
#ifndef SHUFLR_BATCH_H
#define SHUFLR_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"

/* kind u8, length u32, batch u64, epoch u32, records u32 */
#define SHUFLR_BATCH_HEAD 21

typedef struct {
    uint32_t epoch;
    uint32_t most_records; /* a batch is closed when it has so many records (at least 1), */
    uint64_t most_bytes;   /* or so many bytes (at least 1) */
    int level;             /* of zstd; 0: plain batches */
    uint64_t batch;        /* the id of the open batch, */
    uint32_t records;      /* how many records it has, */
    uint64_t open_len;     /* and how many bytes: they lie in work->out behind out_len and a head */
    uint32_t unended;      /* whether its last record came without LF: what follows is the rest of it; and how */
    uint32_t unended_len;  /* long it is so far */
} shuflr_batches;

/* Writes the next `limit` records of the work area's content as messages into work->out. They continue the open batch,
 * whose bytes are `carry`; the last one is left open unless `final`. work->out_len is where the closed messages end. A
 * record longer than max_line meets `policy`, as in shuflr_gather. A record without LF, which only frames that were not cut
 * at records have, runs on into the next one, as it does in the bytes of a stream. */
int shuflr_batch(shuflr_work *work, shuflr_batches *batches, const uint8_t *carry, size_t carry_len, uint64_t limit,
                 int final, uint64_t max_line, int policy);

/* Takes a block of whole records in, as if it had been decoded. */
int shuflr_load(shuflr_work *work, const uint8_t *block, size_t len);

#endif
