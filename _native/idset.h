/* A set of ids in a few bytes each: which rows of a dataset are done. See idset.c. */

#ifndef SATURATE_IDSET_H
#define SATURATE_IDSET_H

#include <stddef.h>
#include <stdint.h>

typedef struct saturate_idset saturate_idset;

/* An empty set whose hash has this key (any 16 bytes; random ones, so that nobody can choose ids that collide).
   NULL when there is no memory. */
saturate_idset *saturate_idset_new(const uint8_t key[16]);
void saturate_idset_free(saturate_idset *set);

/* 1 if the id is in the set, 0 if not. */
int saturate_idset_has(const saturate_idset *set, const char *id, size_t length);

/* Add an id: 1 if it is new, 0 if it was there, -1 when there is no memory. */
int saturate_idset_add(saturate_idset *set, const char *id, size_t length);

/* Have `count` ids line up to be added, as Arrow lays them out: id i is text[offsets[i] .. offsets[i + 1]). They are in
   the set after `saturate_idset_settle`, without which nothing else may be asked of it. Several threads may do this at
   once. Ids that are in `unless_in` (NULL: in nothing) are left out. 0 when there is no memory. */
int saturate_idset_line_up(saturate_idset *set, const saturate_idset *unless_in, const char *text,
                           const int32_t *offsets, int64_t count);
int saturate_idset_settle(saturate_idset *set);

uint64_t saturate_idset_count(const saturate_idset *set);

/* Memory that the set holds. */
uint64_t saturate_idset_bytes(const saturate_idset *set);

#endif
