/* How ranks share a model: the possible layouts, and the choice that training makes unless the user sets one. */
#ifndef CH_TRAIN_LAYOUT_H
#define CH_TRAIN_LAYOUT_H

#include <stddef.h>

#include "choir/model.h"
#include "config/config.h"
#include "handle/ranks.h"

/* ranks = replicas x experts x hidden: rank ((r * experts) + g) * hidden + j has the hidden shard j of the experts of
 * group g, of replica r (comm/grid.h). Every rank computes different tokens. */
typedef struct ch_layout {
  int ranks, replicas, experts, hidden;
  int dense_sharded; /* one rank of a replica owns each dense matrix of a layer; the others prefetch it */
} ch_layout;

/* Lists layouts in the order in which training tries them: fewest hidden shards, then fewest replicas, and whole dense
 * matrices before sharded ones. So the first two are the layouts that reproduce a single process bit for bit. Advances
 * *l to the next layout, starting from {.ranks = P}; 0: no more. */
int ch_layout_next(ch_layout *l);

/* Nonzero if the sizes of a model do not allow the layout; `text` then says why, else it is empty. */
int ch_layout_refused(const choir_config *config, const ch_layout *l, char *text, size_t size);

/* Nonzero if some ranks would have no expert. Such a layout is chosen only on request or if every other layout is
 * impossible. */
int ch_layout_idles(const choir_config *config, const ch_layout *l);

/* Chooses the first layout whose memory, found by a dry run, is available on all ranks; ranks of one machine share its
 * memory. Does nothing if the user has set a layout. `why`: the choice and its reason, for people; empty if there was
 * nothing to choose. Collective, with one code on all ranks. CHOIR_ERROR_MEMORY, with figures: no layout fits.
 * CHOIR_ERROR_ARGUMENT: ranks have different settings, or ch_trainer_plan refuses the config. */
int ch_layout_choose(const choir_config *config, const choir_model_options *options, choir_ranks *ranks, char *why,
                     size_t size);

#endif
