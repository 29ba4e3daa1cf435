/* The directory of a run. */
#ifndef CH_TRAIN_DIRECTORY_H
#define CH_TRAIN_DIRECTORY_H

#include "file/claim.h"

/* CHOIR_ERROR_ARGUMENT where `out` holds built data, which no run may be written into. */
int ch_run_directory_check(const char *out);

/* Makes a run's directory and that of its checkpoints, locks the first, and removes what dead processes left there.
 * Release the claim after an error, too. */
int ch_run_directory_take(ch_claim *claim, const char *out);

#endif
