/* The directory that a run works in: made where it was not there, and locked. */
#ifndef CH_FILE_CLAIM_H
#define CH_FILE_CLAIM_H

#include <stddef.h>

#include "base/error.h"

/* Takes DIRECTORY/lock for this process; CHOIR_ERROR_BUSY names the process that holds it. The kernel lets go when the
 * process ends. */
int ch_lock_take(const char *directory, int *lock);
void ch_lock_release(int lock);

typedef struct ch_claim {
  char path[4096];
  size_t stood; /* bytes of the path that were there before */
  int lock;     /* -1: not held */
} ch_claim;
#define CH_CLAIM_NONE ((ch_claim){.lock = -1})

/* Makes a directory, with its parents, and locks it. After an error nothing is held, and what was made is gone. */
int ch_claim_take(ch_claim *claim, const char *path);
/* Lets go. failed: a run that never came to be leaves no directory that was not there before it: what was made goes,
 * unless there is a file in it. */
void ch_claim_release(ch_claim *claim, int failed);

#endif
