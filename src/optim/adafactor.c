/* Adafactor (Shazeer & Stern 2018) without momentum. The state of a matrix is the mean squared gradient of each row and
 * each column; the state of a vector is that of each element. */
#include <math.h>

#include "comm/collective.h"
#include "optim/optim.h"

enum { ROW, COLUMN };

static void shape(ch_optim_tensor *t) {
  t->state_count[ROW] = t->rows > 1 ? t->batch * t->rows : 0;
  t->state_count[COLUMN] = t->batch * t->cols;
}

/* beta2 including the bias correction, so that the state is the corrected mean. */
static double corrected(double beta, int64_t step) {
  return beta * (1 - pow(beta, (double)(step - 1))) / (1 - pow(beta, (double)step));
}

/* Updates matrices whose columns are sharded over the ranks of x->grid.tp_group; collective. Squares are summed over
 * all columns before the update, so that each rank applies the update of the whole matrix. */
static void update_cut(ch_exec *x, ch_adafactor_args *update) {
  const ch_comm *hidden = &x->grid.tp_group;
  int64_t count = update->batch * update->rows * CH_MEASURES;
  CH_SCRATCH(x);
  update->measures = CH_NEW(&x->scratch, real, count);
  real *measures = CH_AS_HOST(real, update->measures);
  update->stage = CH_ADAFACTOR_MEASURE;
  x->ops->adafactor(x, update);
  const ch_comm_array array = {.piece = &measures, .count = count, .max = count};
  ch_comm_sum_in(&ch_host(x)->scratch, hidden, "sums over rows", hidden->size, &array, 1);
  update->stage = CH_ADAFACTOR_APPLY;
  x->ops->adafactor(x, update);
}

static void step_adafactor(ch_exec *x, const ch_optim_args *a) {
  const ch_optim_tensor *t = a->tensor;
  ch_adafactor_args update = {.batch = t->batch,
                              .rows = t->rows,
                              .cols = t->cols,
                              .all_cols = t->all_cols,
                              .w = t->w,
                              .g = t->g,
                              .row = t->state[ROW],
                              .col = t->state[COLUMN],
                              .learning_rate = a->learning_rate,
                              .beta2 = corrected(a->config->beta2, a->step),
                              .eps1 = 1e-30,
                              .eps2 = 1e-3,
                              .clip = 1,
                              .grad_scale = a->grad_scale,
                              .finite = a->finite,
                              .w16 = t->w16};
  if (t->all_cols > t->cols)
    update_cut(x, &update);
  else
    x->ops->adafactor(x, &update);
}

const ch_optim ch_optim_adafactor = {
    .name = "adafactor", .options = CH_OPTIM_TAKES(beta2), .shape = shape, .step = step_adafactor};
