/* Routing by thresholds: the multiplier of "expert i takes k tokens" is the expert's cut-off score, so a running mean
 * of cut-offs lets an expert decide about a token without a look at any other token. Causal use needs this; training
 * may use it, too, to match causal use. */
#ifndef CH_MOE_ROUTERS_THRESHOLD_H
#define CH_MOE_ROUTERS_THRESHOLD_H

#include "moe/router.h"

/* w_t = (1 - decay) / (1 - decay^t), t = observed + 1: mean += w_t (value - mean) is the bias-corrected running mean.
 */
double ch_router_mean_weight(double decay, uint64_t observed);

/* observe of routers with thresholds: state = bias-corrected running mean of counts->cutoff. */
void ch_router_observe_cutoffs(ch_exec *x, const ch_route_args *a);

/* Whether training has set thresholds [e], on the host: they start at 0, and no observed cut-off leaves them there. */
int ch_thresholds_set(const real *thresholds, int e);

/* ch_router_by_thresholds (moe/router.h): t goes to i where R[t,i] >= thresholds[i]; with a cap b to the best b of
 * R - thresholds only. R is the ranking of a plug-in that has one, else S. The gate is S. */

/* Slots of n tokens at most, in training by thresholds. */
int64_t ch_threshold_choice_slots(const ch_router_spec *o, int n, int e);

/* Training by thresholds, with loads held near k: expert i takes every valid token with S[t,i] >=
 * a->router_state.thresholds[i], but no fewer than its k/4 best (an expert that nobody reaches would never learn) and
 * no more than its 2k best (memory is planned). Fills expert_begin and slot_token of the record, and the counts;
 * cut-offs are those of k, which the thresholds follow. */
void ch_threshold_choice(ch_exec *x, const ch_route_args *a);

#endif
