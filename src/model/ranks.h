/* Functions of pass.c and ffn.c for several ranks, in the order of the calls. In a single process they do nothing, and
 * ch_ranks_share returns the whole pass. docs/design.md lists the other files for several ranks. */
#ifndef CH_MODEL_RANKS_H
#define CH_MODEL_RANKS_H

#include "model/prefetch.h"
#include "model/transformer.h"

/* Returns this rank's part of a pass: whole sequences and whole gradient chunks. `token` and `route` still cover all
 * ranks. */
ch_pass ch_ranks_share(const ch_exec *x, const ch_transformer *m, const ch_pass *p);

/* Ids of the tokens of this rank's part p; p->route.tokens.id has those of all ranks. */
const int32_t CH_DEV *ch_ranks_tokens(const ch_exec *x, const ch_pass *p);

/* Gathers the losses of all gradient chunks. Updates within the backward pass check that their sum is finite. */
void ch_ranks_gather_losses(ch_exec *x, const ch_pass *p);

/* Sums the gradients of experts over replicas, in the order of the replicas' tokens, on every rank that has these
 * experts, so that all replicas make the same update. */
void ch_ranks_sum_experts(ch_exec *x, const ch_layer *b);

#endif
