/* An exact, add-only set of ids that spends 9 to 18 bytes on an id of 16 lower-case hex digits and 18 to 23 on any
 * other.
 *
 * Ids of 16 lower-case hex digits (what content ids are) are their own 64 bits, so nothing can be mistaken for them.
 * Any other id is represented by 128 bits of SipHash-2-4 (Aumasson and Bernstein, 2012) under the set's key: among ten
 * million ids two share them with a probability of 1.5e-25.
 *
 * Each kind has 256 shards, chosen by eight bits of the hash, and each shard is a table with linear probing whose
 * order is that of the hash. A full shard, at 7/8, is copied into one of twice the size (hex) or of 5/4 of it: so at any
 * moment only 1/256 of the set is there twice. Tables are mapped, not taken from the heap, which the many sizes
 * would fragment.
 *
 * Ids that come in bulk line up in front of their shards first, since each shard fits the processor's cache and all of
 * them do not.
 *
 * No state is shared between sets. Ids may line up from several threads at once, which a lock in here sees to: one
 * outside would be held while its thread waits for the interpreter. Nothing else may be called by two threads at once.
 */

#define _DEFAULT_SOURCE
#define _DARWIN_C_SOURCE

#include "idset.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SHARDS = 256, FIRST_SLOTS = 16, HEX_DIGITS = 16 };

/* Ids that wait for their shard. Enough for a shard of ten million ids to pass through the cache once for all of them;
   then one at a time would each be a cache miss, and a page of its own. */
enum { WAITING = 2048, AHEAD = 16 };

/* Mapping less than this would cost more than it saves. */
static const size_t MAPPED_BYTES = 1 << 16;

/* Words of a slot: one for a hex id, two for a hash. All zero is an empty slot. */
typedef struct {
    uint64_t *slots;
    uint64_t capacity, used;
    uint64_t *waiting; /* as slots */
    uint64_t waiting_count;
} shard;

typedef struct {
    int words;
    shard shards[SHARDS];
} table;

struct saturate_idset {
    uint64_t key[2];
    table hex, hashed;
    int has_zero; /* the hex id of sixteen zeros, which looks like an empty slot */
    int is_settled; /* nothing waits */
    pthread_mutex_t lining_up;
    uint64_t count, bytes;
};

/* What an id is to the set: its table, its one or two words, and where in the table to look. */
typedef struct {
    int hex;
    uint64_t words[2];
    uint64_t hash;
} item;

static uint64_t load64(const unsigned char *from)
{
    return (uint64_t)from[0] | (uint64_t)from[1] << 8 | (uint64_t)from[2] << 16 | (uint64_t)from[3] << 24 |
           (uint64_t)from[4] << 32 | (uint64_t)from[5] << 40 | (uint64_t)from[6] << 48 | (uint64_t)from[7] << 56;
}

static uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

static void siphash128(const uint64_t key[2], const unsigned char *data, size_t length, uint64_t out[2])
{
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d ^ 0xee, key[0] ^ 0x6c7967656e657261,
                     key[1] ^ 0x7465646279746573};
    unsigned char last[8] = {0};
    size_t whole = length - length % 8;
    for (size_t at = 0; at <= whole; at += 8) {
        uint64_t word;
        if (at < whole) {
            word = load64(data + at);
        } else {
            memcpy(last, data + whole, length % 8);
            last[7] = (unsigned char)length;
            word = load64(last);
        }
        v[3] ^= word;
        sip_round(v), sip_round(v);
        v[0] ^= word;
    }
    for (int half = 0; half < 2; half++) {
        if (half == 0)
            v[2] ^= 0xee;
        else
            v[1] ^= 0xdd;
        for (int i = 0; i < 4; i++)
            sip_round(v);
        out[half] = v[0] ^ v[1] ^ v[2] ^ v[3];
    }
}

/* The 64 bits that 16 lower-case hex digits spell; 0 (no) for any other text. Eight digits at a time, without a branch
   on any of them, since no branch on a digit could be predicted. */
static int from_hex(const unsigned char *text, uint64_t *value)
{
    const uint64_t each = 0x0101010101010101, high = 0x80 * each;
    uint64_t halves[2], wrong = 0;
    for (int half = 0; half < 2; half++) {
        uint64_t bytes = load64(text + 8 * half), low = bytes & ~high;
        /* The high bit of each byte: whether the byte is at least that character (as all are below 128). */
        uint64_t from_0 = low + (0x80 - '0') * each, past_9 = low + (0x80 - '9' - 1) * each;
        uint64_t from_a = low + (0x80 - 'a') * each, past_f = low + (0x80 - 'f' - 1) * each;
        wrong |= bytes | ~((from_0 & ~past_9) | (from_a & ~past_f));
        uint64_t letters = from_a >> 7 & each;
        uint64_t digits = low - '0' * each - letters * ('a' - '0' - 10);
        /* Pairs of digits, then of bytes, then of words; the first digit is in the lowest byte. */
        digits = (digits << 4 | digits >> 8) & 0x00ff00ff00ff00ff;
        digits = (digits << 8 | digits >> 16) & 0x0000ffff0000ffff;
        halves[half] = (digits << 16 | digits >> 32) & 0xffffffff;
    }
    *value = halves[0] << 32 | halves[1];
    return !(wrong & high);
}

/* A bijection of 64 bits (the finalizer of splitmix64), for ids that count up. */
static uint64_t spread(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

static item item_of(const saturate_idset *set, const char *id, size_t length)
{
    item found = {0, {0, 0}, 0};
    const unsigned char *text = (const unsigned char *)id;
    if (length == HEX_DIGITS && from_hex(text, &found.words[0])) {
        found.hex = 1;
        found.hash = spread(found.words[0] ^ set->key[0]);
        return found;
    }
    siphash128(set->key, text, length, found.words);
    found.words[1] += !(found.words[0] | found.words[1]);
    found.hash = found.words[0];
    return found;
}

static uint64_t first_slot(uint64_t hash, uint64_t capacity)
{
    return (uint64_t)((unsigned __int128)(hash << 8) * capacity >> 64);
}

/* The slot that holds these words, or the empty one where they belong. */
static uint64_t *find(const shard *in, int words, const uint64_t *value, uint64_t hash)
{
    uint64_t *slot = in->slots + first_slot(hash, in->capacity) * words, *end = in->slots + in->capacity * words;
    for (;;) {
        if (words == 1) {
            if (!slot[0] || slot[0] == value[0])
                return slot;
        } else if (!(slot[0] | slot[1]) || (slot[0] == value[0] && slot[1] == value[1])) {
            return slot;
        }
        slot += words;
        if (slot == end)
            slot = in->slots;
    }
}

static uint64_t *take(size_t bytes)
{
    if (bytes < MAPPED_BYTES)
        return calloc(1, bytes);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static void give_back(uint64_t *slots, size_t bytes)
{
    if (bytes < MAPPED_BYTES)
        free(slots);
    else
        munmap(slots, bytes);
}

static size_t bytes_of(const table *of, const shard *in) { return in->capacity * of->words * sizeof(uint64_t); }

/* Doubling a table of hashes would leave it with more than 24 bytes for an id. */
static uint64_t larger_than(uint64_t capacity, int words)
{
    if (!capacity)
        return FIRST_SLOTS;
    return words == 1 ? 2 * capacity : capacity + capacity / 4;
}

static uint64_t hash_of(const saturate_idset *set, const table *of, const uint64_t *words)
{
    return of->words == 1 ? spread(words[0] ^ set->key[0]) : words[0];
}

static int grow(saturate_idset *set, table *of, shard *full)
{
    shard larger = *full;
    larger.capacity = larger_than(full->capacity, of->words);
    larger.slots = take(bytes_of(of, &larger));
    if (!larger.slots)
        return 0;
    for (uint64_t i = 0; i < full->capacity; i++) {
        const uint64_t *slot = full->slots + i * of->words;
        if (slot[0] || (of->words == 2 && slot[1])) {
            memcpy(find(&larger, of->words, slot, hash_of(set, of, slot)), slot, of->words * sizeof(uint64_t));
        }
    }
    if (full->slots)
        give_back(full->slots, bytes_of(of, full));
    set->bytes += bytes_of(of, &larger) - bytes_of(of, full);
    *full = larger;
    return 1;
}

static int is_taken(const uint64_t *slot, int words) { return slot[0] || (words == 2 && slot[1]); }

/* 1 if the words are new to the table, 0 if not, -1 when there is no memory. */
static int insert(saturate_idset *set, table *in, shard *where, const uint64_t *words, uint64_t hash)
{
    if ((where->used + 1) * 8 > where->capacity * 7 && !grow(set, in, where))
        return -1;
    uint64_t *slot = find(where, in->words, words, hash);
    if (is_taken(slot, in->words))
        return 0;
    memcpy(slot, words, in->words * sizeof(uint64_t));
    where->used++;
    set->count++;
    return 1;
}

/* Let everything that waits for a shard into its table. 0 when there is no memory. */
static int admit(saturate_idset *set, table *in, shard *where)
{
    for (uint64_t i = 0; i < where->waiting_count; i++) {
        const uint64_t *words = where->waiting + i * in->words;
        if (i + AHEAD < where->waiting_count && where->capacity) {
            uint64_t later = hash_of(set, in, words + AHEAD * in->words);
            __builtin_prefetch(where->slots + first_slot(later, where->capacity) * in->words);
        }
        if (insert(set, in, where, words, hash_of(set, in, words)) < 0)
            return 0;
    }
    where->waiting_count = 0;
    return 1;
}

static void free_waiting(table *of)
{
    for (int i = 0; i < SHARDS; i++) {
        free(of->shards[i].waiting);
        of->shards[i].waiting = NULL;
    }
}

int saturate_idset_settle(saturate_idset *set)
{
    table *tables[] = {&set->hex, &set->hashed};
    if (set->is_settled)
        return 1;
    for (int each = 0; each < 2; each++) {
        for (int i = 0; i < SHARDS; i++)
            if (!admit(set, tables[each], &tables[each]->shards[i]))
                return 0;
        free_waiting(tables[each]);
    }
    set->is_settled = 1;
    return 1;
}

static int has(const saturate_idset *set, const item *wanted)
{
    const table *in = wanted->hex ? &set->hex : &set->hashed;
    const shard *where = &in->shards[wanted->hash >> 56];
    if (wanted->hex && !wanted->words[0])
        return set->has_zero;
    return where->capacity && is_taken(find(where, in->words, wanted->words, wanted->hash), in->words);
}

static int add_zero(saturate_idset *set)
{
    int is_new = !set->has_zero;
    set->has_zero = 1;
    set->count += is_new;
    return is_new;
}

/* Have an id wait for its shard. 0 when there is no memory. */
static int line_up(saturate_idset *set, const item *wanted)
{
    table *in = wanted->hex ? &set->hex : &set->hashed;
    shard *where = &in->shards[wanted->hash >> 56];
    if (!where->waiting && !(where->waiting = malloc(WAITING * in->words * sizeof(uint64_t))))
        return 0;
    memcpy(where->waiting + where->waiting_count++ * in->words, wanted->words, in->words * sizeof(uint64_t));
    return where->waiting_count < WAITING || admit(set, in, where);
}

saturate_idset *saturate_idset_new(const uint8_t key[16])
{
    saturate_idset *set = calloc(1, sizeof(saturate_idset));
    if (set && pthread_mutex_init(&set->lining_up, NULL)) {
        free(set);
        set = NULL;
    }
    if (set) {
        set->key[0] = load64(key);
        set->key[1] = load64(key + 8);
        set->hex.words = 1;
        set->hashed.words = 2;
        set->is_settled = 1;
        set->bytes = sizeof(saturate_idset);
    }
    return set;
}

static void free_table(const table *of)
{
    for (int i = 0; i < SHARDS; i++)
        if (of->shards[i].slots)
            give_back(of->shards[i].slots, bytes_of(of, &of->shards[i]));
}

void saturate_idset_free(saturate_idset *set)
{
    if (!set)
        return;
    free_table(&set->hex);
    free_table(&set->hashed);
    free_waiting(&set->hex);
    free_waiting(&set->hashed);
    pthread_mutex_destroy(&set->lining_up);
    free(set);
}

int saturate_idset_has(const saturate_idset *set, const char *id, size_t length)
{
    item wanted = item_of(set, id, length);
    return has(set, &wanted);
}

int saturate_idset_add(saturate_idset *set, const char *id, size_t length)
{
    item wanted = item_of(set, id, length);
    table *in = wanted.hex ? &set->hex : &set->hashed;
    if (wanted.hex && !wanted.words[0])
        return add_zero(set);
    return insert(set, in, &in->shards[wanted.hash >> 56], wanted.words, wanted.hash);
}

int saturate_idset_line_up(saturate_idset *set, const saturate_idset *unless_in, const char *text,
                           const int32_t *offsets, int64_t count)
{
    int had_memory = 1;
    pthread_mutex_lock(&set->lining_up);
    set->is_settled = 0;
    for (int64_t i = 0; i < count && had_memory; i++) {
        const char *id = text + offsets[i];
        size_t length = (size_t)(offsets[i + 1] - offsets[i]);
        item wanted = item_of(set, id, length);
        if (unless_in && saturate_idset_has(unless_in, id, length))
            continue;
        if (wanted.hex && !wanted.words[0])
            add_zero(set);
        else
            had_memory = line_up(set, &wanted);
    }
    pthread_mutex_unlock(&set->lining_up);
    return had_memory;
}

uint64_t saturate_idset_count(const saturate_idset *set) { return set->count; }

uint64_t saturate_idset_bytes(const saturate_idset *set) { return set->bytes; }
