#include "train/update.h"

#include <math.h>

int ch_update_in_backward(const choir_train_config *config, int ranks) {
  return config->clip_norm == 0 && config->accumulate == 1 && ranks == 1;
}

/* The norm that goes with no clipping: ch_optimizer_step looks at it for nothing else. */
static const double no_norm = 0;

void ch_update_layer(void *context, const ch_pass *pass, int layer) {
  ch_update *u = context;
  double squares = ch_optimizer_squares(u->x, u->optimizer, layer);
  if (u->stopped || !isfinite(squares) || !isfinite(pass->loss_sum)) {
    u->stopped = 1; /* the gradients stay as they are: whoever looks for the bad one needs them no more */
    return;
  }
  ch_optimizer_step(u->x, u->optimizer, layer, u->step, no_norm);
}

double ch_update_finish(ch_update *u, int in_backward, double loss) {
  int rest = in_backward ? CH_OUTSIDE_LAYERS : CH_EVERY_PARAM;
  ch_optimizer_squares(u->x, u->optimizer, rest);
  double norm = ch_optimizer_norm(u->optimizer);
  if (!isfinite(norm) || !isfinite(loss)) u->stopped = 1;
  if (!u->stopped) ch_optimizer_step(u->x, u->optimizer, rest, u->step, norm);
  return norm;
}

void ch_update_count(ch_exec *x, ch_optimizer *optimizer) {
  ch_optimizer_squares(x, optimizer, CH_EVERY_PARAM);
  ch_optimizer_step(x, optimizer, CH_EVERY_PARAM, 1, no_norm);
}
