/* How ranks share a model: the layouts that there are, and the one that training takes where nobody has named one. */
#ifndef CH_TRAIN_LAYOUT_H
#define CH_TRAIN_LAYOUT_H

#include <stddef.h>

#include "api/ranks.h"
#include "choir/config.h"
#include "choir/model.h"

/* ranks = replicas x experts x hidden: rank ((r * experts) + g) * hidden + j has the hidden shard j of the experts of
 * group g, of replica r (comm/grid.h). All ranks have tokens of their own. */
typedef struct ch_layout {
  int ranks, replicas, experts, hidden;
  int dense_sharded; /* every dense matrix of a layer lives on one rank of a replica, and visits the others */
} ch_layout;

/* The layouts of some ranks in the order in which training would have them: hidden shards, then replicas, as few as may
 * be, dense matrices whole before sharded. So the first two are those whose bits are one process's. Sets the next one,
 * from {.ranks = P} on; 0: there is none. */
int ch_layout_next(ch_layout *l);

/* Why the sizes of a model do not go with it, as `text`; 0: they do. */
int ch_layout_refused(const choir_config *config, const ch_layout *l, char *text, size_t size);

/* Nonzero: the layout is possible, but some ranks would have no expert. It is chosen only where no other one is
 * possible, or on request. */
int ch_layout_idles(const choir_config *config, const ch_layout *l);

/* Lays out ranks that nobody has laid out: the first layout whose memory, by a dry run, all ranks have, of which those
 * of one machine share what it has. `why`: which it is and why, for people; empty where there was nothing to choose.
 * Collective, with one code on all ranks. CHOIR_ERROR_MEMORY, with figures: there is none. CHOIR_ERROR_ARGUMENT: ranks
 * that were told different things, or what ch_trainer_plan refuses. */
int ch_layout_choose(const choir_config *config, const choir_run_options *options, choir_ranks *ranks, char *why,
                     size_t size);

#endif
