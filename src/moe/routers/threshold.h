/* Threshold routing: expert i has token t if the score reaches the expert's threshold, a running mean of cut-off scores
 * (the dual variable of the constraint "expert i has k tokens"). So the decision depends on no other token, as causal
 * use requires. Training may use it, too, to match causal use. */
#ifndef CH_MOE_ROUTERS_THRESHOLD_H
#define CH_MOE_ROUTERS_THRESHOLD_H

#include "moe/router.h"

/* w_t = (1 - decay) / (1 - decay^t), t = observed + 1: mean += w_t (value - mean) is the bias-corrected running mean.
 */
double ch_router_mean_weight(double decay, uint64_t observed);

/* observe of routers with thresholds: state = bias-corrected running mean of counts->cutoff. */
void ch_router_observe_cutoffs(ch_exec *x, const ch_route_args *a);

/* Whether training has set thresholds [e] (host array): they are 0 initially, and nonzero after any observed
 * cut-off. */
int ch_thresholds_set(const real *thresholds, int e);

/* ch_router_by_thresholds (moe/router.h): token t is assigned to expert i if R[t,i] >= thresholds[i]; with a cap b,
 * only to the b experts of largest R - thresholds. R is the ranking of a plug-in that has one, else S. The gate is
 * S. */

/* Max slots of n tokens, in training with threshold routing. */
int64_t ch_threshold_choice_slots(const ch_router_spec *o, int n, int e);

/* Threshold routing in training, with bounded loads: expert i has every valid token with S[t,i] >=
 * a->router_state.thresholds[i], but at least its k/4 best tokens (an expert without tokens would not learn) and at
 * most its 2k best (planned memory). Fills expert_begin and slot_token of the record, and the counts; cut-offs are the
 * k-th best scores, which update the thresholds. */
void ch_threshold_choice(ch_exec *x, const ch_route_args *a);

#endif
