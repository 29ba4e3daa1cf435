/* AdamW (Loshchilov & Hutter 2019): state: first and second moment of every element. Vectors (norms) have no weight
 * decay; the table of relative position biases has. */
#include "optim/optim.h"

enum { MEAN, SQUARE };

static void shape(ch_optim_tensor *t) { t->state_count[MEAN] = t->state_count[SQUARE] = t->batch * t->rows * t->cols; }

static void step_adamw(ch_exec *x, const ch_optim_args *a) {
  const ch_optim_tensor *t = a->tensor;
  const ch_train_config *c = a->config;
  CH_OP(x, adamw, .count = t->batch * t->rows * t->cols, .w = t->w, .g = t->g, .m = t->state[MEAN],
        .v = t->state[SQUARE], .step = a->step, .learning_rate = a->learning_rate, .beta1 = c->beta1, .beta2 = c->beta2,
        .eps = 1e-8, .weight_decay = t->rows > 1 ? c->weight_decay : 0, .grad_scale = a->grad_scale,
        .finite = a->finite, .w16 = t->w16);
}

const ch_optim ch_optim_adamw = {
    .name = "adamw",
    .options = CH_OPTIM_TAKES(beta1) | CH_OPTIM_TAKES(beta2) | CH_OPTIM_TAKES(weight_decay),
    .shape = shape,
    .step = step_adamw};
