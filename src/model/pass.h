/* Builds a Transformer and runs passes over it. */
#ifndef CH_MODEL_PASS_H
#define CH_MODEL_PASS_H

#include "model/transformer.h"

/* Builds the parameter table and binds names to roles; no memory for weights yet. */
int ch_transformer_create(const choir_model_config *config, ch_transformer *m);
void ch_transformer_free(ch_transformer *m);

/* Runs a pass, or counts it. Empties the tape when done. Waits for the device once, at the end, for the results. */
void ch_transformer_run(ch_exec *x, ch_transformer *m, ch_pass *all);

/* A pass over any tokens begins and ends with these: p->route but for its tokens, and room for the pass's numbers, on
 * the tape; and these numbers on the host, the layers' statistics among them. */
void ch_pass_begin(ch_exec *x, const ch_transformer *m, ch_pass *p);
void ch_pass_end(ch_exec *x, ch_transformer *m, ch_pass *p);

void ch_transformer_clear_stats(ch_transformer *m);

#endif
