/* An ordered pipeline: one thread produces jobs, several work on them, the calling thread consumes them in the order in
 * which they were produced. So the outcome does not depend on the number of threads, and neither does which error is
 * reported: the first in order. */
#ifndef CH_DATA_PIPELINE_H
#define CH_DATA_PIPELINE_H

#include <stddef.h>

#include "base/error.h"

typedef struct ch_pipeline {
  void *context;
  int workers, jobs; /* jobs: how many may be under way; bounds memory */
  void *job;         /* [jobs], of job_bytes each: the caller's, used over and over */
  size_t job_bytes;
  int (*produce)(void *context, void *job, int *more); /* more = 0: no job was produced; the input has ended */
  int (*work)(void *context, int worker, void *job);
  int (*consume)(void *context, void *job);
} ch_pipeline;

/* Returns the first error in order. */
int ch_pipeline_run(const ch_pipeline *pipeline);

#endif
