/* An ordered pipeline: one thread produces jobs, several process them, and the calling thread consumes them in the
 * order of production. So neither the result nor the reported error, the first in this order, depends on the number of
 * threads. */
#ifndef CH_DATA_PIPELINE_H
#define CH_DATA_PIPELINE_H

#include <stddef.h>

#include "base/error.h"

typedef struct ch_pipeline {
  void *context;
  int workers, jobs; /* jobs: maximum number in progress; bounds memory */
  void *job;         /* [jobs], of job_bytes each: the caller's memory, reused */
  size_t job_bytes;
  int (*produce)(void *context, void *job, int *more); /* more = 0: no job was produced, because the input has ended */
  int (*work)(void *context, int worker, void *job);
  int (*consume)(void *context, void *job);
} ch_pipeline;

/* Runs the pipeline; returns the first error in the order of production. */
int ch_pipeline_run(const ch_pipeline *pipeline);

#endif
