/* Training by thresholds: experts decide as they will in causal use, with loads held near k. */
#ifndef CH_MOE_ROUTERS_THRESHOLD_CHOICE_H
#define CH_MOE_ROUTERS_THRESHOLD_CHOICE_H

#include "moe/router.h"

/* Slots of n tokens at most. */
int64_t ch_threshold_choice_slots(const choir_router_options *o, int n, int e);

/* Expert i takes every valid token with S[t,i] >= a->thresholds[i], but no fewer than its k/4 best (an expert that
 * nobody reaches would never learn) and no more than its 2k best (memory is planned). Fills expert_begin and
 * slot_token of the record, and the counts; cut-offs are those of k, which the thresholds follow. */
void ch_threshold_choice(ch_exec *x, const ch_route_args *a);

#endif
