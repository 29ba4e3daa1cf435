/* Checksums of files: XXH64 by libxxhash, with seed 0 where nothing else is said; `xxhsum -H64` shows the same number.
 * It guards against accidents (truncation, flipped bits, mixed-up files), not against an adversary. */
#ifndef CH_BASE_HASH_H
#define CH_BASE_HASH_H

#define XXH_STATIC_LINKING_ONLY /* for a state on the stack: that of XXH64 is the same in all releases */
#include <xxhash.h>

#endif
