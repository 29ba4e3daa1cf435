/* Where several ranks enter a pass: what pass.c and ffn.c ask of them, in the order of the calls. In a single process
 * each of these calls does nothing, and the share is the whole pass. Beside them, ranks enter where rows of tokens go
 * to experts (dispatch/dispatch.h), scores to routers (moe/scores.c) and gradients into sums (op/grad_chunks.h). */
#ifndef CH_MODEL_RANKS_H
#define CH_MODEL_RANKS_H

#include "model/prefetch.h"
#include "model/transformer.h"

/* This rank's part of a pass: whole sequences and whole shards. `token` and `route` stay those of all. */
ch_pass ch_ranks_share(const ch_exec *x, const ch_transformer *m, const ch_pass *p);

/* The losses of all ranks' shards. An update within the backward pass looks at their sum, as at everything that is to
 * be finite. */
void ch_ranks_gather_losses(ch_exec *x, const ch_pass *p);

/* Gradients of experts, each replica's from its own tokens, become the sum over replicas: in the order of their tokens,
 * on every rank that holds the experts, so that all update them alike. */
void ch_ranks_sum_experts(ch_exec *x, const ch_layer *b);

#endif
