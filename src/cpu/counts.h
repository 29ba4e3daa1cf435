/* How much there is to do, where only the backend's memory knows. */
#ifndef CH_CPU_COUNTS_H
#define CH_CPU_COUNTS_H

#include "op/record.h"

/* Filled slots. */
static inline int ch_slots(const ch_record *r) { return r->expert_begin[r->experts]; }

/* Elements of args with `count` and `rows`. */
static inline int64_t ch_elements(int64_t count, const int *rows) { return rows ? *rows * count : count; }

#endif
