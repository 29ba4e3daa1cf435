/* Staging: what ranks send each other goes through the host's memory, also where it stands on a device. Every arena of
 * a device's memory has a twin of the same size on the host, which takes no memory before something is staged there. */
#ifndef CH_BASE_STAGE_H
#define CH_BASE_STAGE_H

#include "base/memory.h"

/* An arena of a device's memory begins or ends. CHOIR_ERROR_MEMORY. */
int ch_stage_add(const ch_memory *memory, const void CH_DEV *base, size_t bytes);
void ch_stage_remove(const void CH_DEV *base);

/* Whether there is such an arena. */
int ch_stage_is_used(void);

/* Where the host has room for what stands at `p`, and whose memory that is; NULL: `p` leads into the host's own. */
void *ch_stage_twin(const void *p, const ch_memory **memory);

/* A copy from either side to either side. */
void ch_stage_copy(void *to, const void *from, size_t bytes);

#endif
