/* Matrices of layers that are dealt out, as they visit the ranks on which they do not live: those of the next layer are
 * on their way while one computes, and two layers' have room. */
#ifndef CH_MODEL_DEAL_H
#define CH_MODEL_DEAL_H

#include "model/param.h"
#include "op/visits.h"

typedef struct ch_visits {
  const ch_params *params;
  ch_spread *matrix; /* those of a layer */
  ch_spreading under_way;
} ch_visits;

/* Makes ready for the visits of a pass: x->visits until it has ended. Collective, all of them; they do nothing where no
 * matrices are dealt out. */
void ch_visits_init(ch_exec *x, const ch_params *params, ch_visits *v);

/* Those of a layer are to set out with ch_visits_next, as they are then where they live: what products read of them,
 * w16 or w. They need the room of the layer but one. When they have ended they are here. */
void ch_visits_begin(ch_exec *x, ch_visits *v, int layer);
void ch_visits_end(ch_exec *x, ch_visits *v);

#endif
