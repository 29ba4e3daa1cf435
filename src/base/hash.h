/* Checksums of files: XXH64 of libxxhash, with seed 0 unless stated otherwise; `xxhsum -H64` prints the same number.
 * Detects accidents (truncation, flipped bits, mixed-up files), not attacks. */
#ifndef CH_BASE_HASH_H
#define CH_BASE_HASH_H

#define XXH_STATIC_LINKING_ONLY /* for a state on the stack; XXH64's is equal in all releases */
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

enum { CH_HEX_BYTES = 17 };

/* 64 bits as sixteen hexadecimal digits, because JSON numbers cannot represent them. text: CH_HEX_BYTES. Returns
 * text. */
static inline const char *ch_hex(uint64_t value, char *text) {
  snprintf(text, CH_HEX_BYTES, "%016" PRIx64, value);
  return text;
}

#endif
