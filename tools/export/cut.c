/* The limit K of experts per token, and its cost: the loss with the limit, and with rounded weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "choir/train.h"
#include "export/plan.h"
#include "handle/model.h"
#include "moe/router.h"

typedef struct measuring {
  const choir_export_options *options;
  const char *what;
} measuring;

static int show_progress(void *context, const choir_progress *p) {
  const measuring *m = context;
  return m->options->progress &&
         m->options->progress(m->options->context, m->what, p->total ? (double)p->done / (double)p->total : 0);
}

static int evaluate_cut(choir_model *model, const choir_export_options *options, const char *what,
                        choir_eval_result *result) {
  measuring m = {options, what};
  const choir_eval_options o = {.size = sizeof o,
                                .data = options->data,
                                .sequences = options->sequences,
                                .progress = show_progress,
                                .context = &m};
  int code = choir_eval(model, NULL, &o, result);
  free(result->sources); /* losses of single sources are not needed */
  result->sources = NULL, result->source_count = 0;
  return code;
}

/* over [e+1]: over[k] is the share of tokens, over all MoE layers, that have more than k experts. */
static int count_over(const choir_model *model, double *over) {
  int e = model->config.model.experts, layers = choir_model_moe_layer_count(model);
  double tokens = 0, above = 0;
  for (int k = 0; k <= e; k++) over[k] = 0;
  for (int layer = 0; layer < layers; layer++) {
    choir_route_stats stats;
    CH_TRY(choir_model_get_route_stats(model, layer, &stats));
    for (int k = 0; k <= e; k++) over[k] += (double)stats.histogram[k], tokens += (double)stats.histogram[k];
    choir_route_stats_clear(&stats);
  }
  for (int k = e; k >= 0; k--) {
    double have = over[k];
    over[k] = tokens > 0 ? above / tokens : 0;
    above += have;
  }
  return CHOIR_OK;
}

/* The maximum number of experts that a token can have. */
static int max_experts(const ch_export_plan *plan) {
  int cap = plan->config.model.router.cap;
  return cap ? cap : plan->config.model.experts;
}

/* The smallest K for which at most this share of tokens has more experts. */
static int min(const ch_export_plan *plan, const double *over, double share) {
  int k = 1, max = max_experts(plan);
  while (k < max && over[k] > share) k++;
  return k;
}

/* Replaces a weight of the model by its value after rounding. In transposed tensors a row of the file is a column
 * here. */
static int round_weight(choir_model *model, int index, const ch_export_tensor *t, int64_t experts) {
  choir_parameter p;
  CH_TRY(choir_model_parameter_at(model, index, &p));
  int64_t blocks = p.dims == 3 ? experts : 1, n = t->columns;
  int turned = t->transform == CH_TRANSFORM_TRANSPOSE;
  float *row;
  CH_TRY(CH_ALLOC(&row, 2 * n, "a row of weights"));
  for (int64_t r = 0; r < blocks * t->source_rows; r++) {
    int64_t block = r / t->source_rows, step = turned ? t->source_rows : 1;
    float *at = p.data + block * t->source_rows * n + (turned ? r % t->source_rows : r % t->source_rows * n);
    for (int64_t i = 0; i < n; i++) row[i] = (float)(t->factor * at[i * step]);
    ch_export_round(t->dtype, row, n, row + n);
    for (int64_t i = 0; i < n; i++)
      at[i * step] = (float)(ch_export_value(ch_export_stored[t->dtype], row + n, i) / t->factor);
  }
  free(row);
  return CHOIR_OK;
}

static int round_weights(choir_model *model, const ch_export_plan *plan) {
  for (int i = 0; i < plan->count; i++) {
    const ch_export_tensor *t = &plan->tensor[i];
    int index = -1;
    if (!t->from || t->dtype == CH_EXPORT_F32 || t->first) continue;
    for (int j = 0; j < choir_model_parameter_count(model) && index < 0; j++) {
      choir_parameter p;
      CH_TRY(choir_model_parameter_at(model, j, &p));
      if (!strcmp(p.name, t->from->name)) index = j;
    }
    if (index >= 0) CH_TRY(round_weight(model, index, t, plan->config.model.experts));
  }
  ch_model_weights_changed(model);
  return CHOIR_OK;
}

int ch_export_measure_written(const ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                              choir_export_result *result) {
  choir_eval_result r;
  result->loss_written = (double)NAN;
  if (plan->dtype == CH_EXPORT_F32) return CHOIR_OK; /* nothing is rounded */
  CH_TRY(round_weights(model, plan));
  CH_TRY(evaluate_cut(model, options, "loss with rounded weights", &r));
  result->loss_written = r.loss;
  return CHOIR_OK;
}

/* Measures the loss without a limit, and the experts per token. */
static int measure_loss(const ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                        double *over, choir_export_result *result) {
  choir_eval_result r;
  if (plan->moe_layers) CH_TRY(choir_model_set_routing(model, "threshold"));
  CH_TRY(evaluate_cut(model, options, "loss", &r));
  result->measured = 1;
  snprintf(result->objective, sizeof result->objective, "%s", r.objective);
  result->tokens = r.tokens;
  result->loss = result->loss_cut = r.loss;
  return plan->moe_layers ? count_over(model, over) : CHOIR_OK;
}

/* Sets K: with token choice the router's; with expert choice the maximum number of experts of a token unless
 * limited. */
static int decide(ch_export_plan *plan, const double *over, const choir_export_options *options) {
  int given = options->experts_per_token, choices = ch_router_choices(&plan->config.model.router);
  int max = max_experts(plan);
  if (choices && given && given != choices)
    return ch_error(CHOIR_ERROR_ARGUMENT, "experts per token: router '%s' gives every token %d, not %d",
                    plan->config.model.router.kind->name, choices, given);
  if (!choices && given > max)
    return ch_error(CHOIR_ERROR_ARGUMENT, "experts per token: a token has %d at most (model.%s), not %d", max,
                    plan->config.model.router.cap ? "router.cap" : "experts", given);
  if (!choices && !given && options->cut > 0 && !over)
    return ch_error(CHOIR_ERROR_ARGUMENT, "cut: it takes held-out text; give experts per token instead, or 0");
  plan->K = choices ? choices : given ? given : options->cut > 0 ? min(plan, over, options->cut) : max;
  plan->nulls = choices ? 0 : plan->K;
  return CHOIR_OK;
}

int ch_export_cut(ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                  choir_export_result *result) {
  double *over;
  choir_eval_result r;
  CH_TRY(CH_ALLOC(&over, plan->config.model.experts + 1, "a histogram"));
  int code = model ? measure_loss(plan, model, options, over, result) : CHOIR_OK;
  if (!code && plan->moe_layers) code = decide(plan, model ? over : NULL, options);
  result->cut = code || !plan->nulls ? 0 : over[plan->K];
  result->twentieth = code || !plan->nulls ? 0 : min(plan, over, 0.05);
  free(over);
  if (code || !model || result->cut <= 0) return code;
  ch_transformer_set_cap(&model->net, plan->K);
  CH_TRY(evaluate_cut(model, options, "loss with fewer experts", &r));
  result->loss_cut = r.loss;
  return CHOIR_OK;
}
