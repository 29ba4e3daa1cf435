/* Checksums of files: XXH64 by libxxhash, with seed 0 where nothing else is said; `xxhsum -H64` shows the same number.
 * It guards against accidents (truncation, flipped bits, mixed-up files), not against an adversary. */
#ifndef CH_BASE_HASH_H
#define CH_BASE_HASH_H

#define XXH_STATIC_LINKING_ONLY /* for a state on the stack: that of XXH64 is the same in all releases */
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

enum { CH_HEX_BYTES = 17 };

/* 64 bits as sixteen hexadecimal digits, which JSON's numbers cannot hold. text: CH_HEX_BYTES. Returns text. */
static inline const char *ch_hex(uint64_t value, char *text) {
  snprintf(text, CH_HEX_BYTES, "%016" PRIx64, value);
  return text;
}

#endif
