/* The two checksums that seekable files carry: XXH64 (the format's own) and FNV-1a (what the public shuflr writes). */
#ifndef SHUFLR_CHECKSUM_H
#define SHUFLR_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* XXH64 with seed 0. */
uint64_t shuflr_xxh64(const uint8_t *data, size_t len);

/* The low 32 bits of the 64-bit FNV-1a. */
uint32_t shuflr_fnv1a_low32(const uint8_t *data, size_t len);

#endif
