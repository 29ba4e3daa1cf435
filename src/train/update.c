#include "train/update.h"

#include <math.h>

int ch_update_in_backward(const choir_train_config *config) {
  return config->clip_norm == 0 && config->accumulate == 1;
}

/* The norm that goes with no clipping: ch_optimizer_step looks at it for nothing else. */
static const double no_norm = 0;

void ch_update_layer(void *context, const ch_pass *pass, int layer) {
  ch_update *u = context;
  double CH_DEV *guard = pass->sums + CH_PASS_GUARD;
  ch_optimizer_squares(u->x, u->optimizer, layer, guard);
  ch_optimizer_step(u->x, u->optimizer, layer, u->step, no_norm, guard);
}

static double norm_of(ch_update *u) {
  ch_marks mark = ch_scratch_mark(u->x);
  const double *squares = ch_optimizer_read_squares(u->x, u->optimizer);
  double sum = 0;
  for (int i = 0; i < u->optimizer->params->count; i++) sum += squares[i];
  ch_scratch_release(u->x, mark);
  return sqrt(sum);
}

double ch_update_finish(ch_update *u, int in_backward, double loss) {
  int rest = in_backward ? CH_OUTSIDE_LAYERS : CH_EVERY_PARAM;
  ch_optimizer_squares(u->x, u->optimizer, rest, NULL);
  double norm = norm_of(u);
  if (!isfinite(norm) || !isfinite(loss)) u->stopped = 1;
  if (!u->stopped) ch_optimizer_step(u->x, u->optimizer, rest, u->step, norm, NULL);
  return norm;
}

void ch_update_count(ch_exec *x, ch_optimizer *optimizer) {
  ch_marks mark = ch_scratch_mark(x);
  ch_optimizer_squares(x, optimizer, CH_EVERY_PARAM, NULL);
  ch_optimizer_read_squares(x, optimizer);
  ch_scratch_release(x, mark);
  ch_optimizer_step(x, optimizer, CH_EVERY_PARAM, 1, no_norm, NULL);
}
