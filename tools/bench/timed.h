/* An executor whose ops take their time: the table is wrapped, so whatever runs on it is measured without knowing. */
#ifndef CH_BENCH_TIMED_H
#define CH_BENCH_TIMED_H

#include "bench/cases.h"

enum { CH_PART_PRODUCTS, CH_PART_ROUTER, CH_PART_DISPATCH, CH_PART_COMBINE, CH_PART_ROUTING, CH_PARTS };

typedef struct ch_timed {
  ch_exec x;           /* first: an op that is handed x finds the rest behind it */
  const ch_ops *inner; /* what x.ops was */
  ch_ops wrapped;
  double begin, seconds[CH_PARTS];
} ch_timed;

void ch_timed_start(ch_timed *t); /* wraps t->x.ops */
void ch_timed_stop(ch_timed *t);  /* puts it back, so that ch_exec_free frees the right one */
void ch_timed_reset(ch_timed *t);

/* Parts of one repetition and the share that is not in products; what no op took is routing's. After ch_bench_time. */
void ch_timed_report(const ch_timed *t, ch_bench_result *result);

#endif
