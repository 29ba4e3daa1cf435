/* Dense matrices that are dealt out: each lives on one rank of a replica, which updates it, and visits the others. */
#include "comm/collective.h"
#include "model/param.h"
#include "op/op.h"

void ch_params_deal(ch_params *params, const ch_comm *replica) {
  int64_t has[CH_RANKS] = {0};
  for (int i = 0; i < params->count; i++) {
    ch_param *p = &params->p[i];
    if (!ch_param_is_dealt(p)) continue;
    p->owner = 0;
    for (int r = 1; r < replica->size; r++)
      if (has[r] < has[p->owner]) p->owner = r;
    has[p->owner] += p->whole;
    p->away = p->owner != replica->rank;
  }
}

void ch_params_fetch(ch_exec *x, const ch_params *params, int layer) {
  for (int i = ch_params_first(params, layer); i < params->count && params->p[i].layer == layer; i++) {
    const ch_param *p = &params->p[i];
    if (p->owner < 0 || ch_counting(x)) continue;
    ch_comm_spread(&x->grid.replica, "dense weights", p->owner, CH_AS_HOST(real, p->w), p->whole, sizeof(real));
    if (p->away && p->w16) x->ops->round_bf16(x, &(ch_round_args){.count = p->whole, .x = p->w, .y = p->w16});
  }
}
