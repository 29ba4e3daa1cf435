/* A 64-bit checksum: XXH64 of Yann Collet's published specification, so that `xxhsum -H64` shows the same number.
 * Guards against accidents (truncation, flipped bits, mixed-up files), not against an adversary. */
#ifndef CH_BASE_HASH_H
#define CH_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t ch_hash64(const void *data, size_t size, uint64_t seed);

/* The same number for data that comes in pieces of any sizes. */
typedef struct ch_hash_state {
  uint64_t lane[4];
  uint64_t total; /* bytes so far */
  uint64_t seed;
  unsigned char buffer[32]; /* the last total % 32 bytes */
} ch_hash_state;

void ch_hash_begin(ch_hash_state *state, uint64_t seed);
void ch_hash_add(ch_hash_state *state, const void *data, size_t size);
uint64_t ch_hash_end(const ch_hash_state *state); /* may be asked in between */

#endif
