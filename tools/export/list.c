/* Lists the tensors of a plan: the model's parameter table with the format's names and shapes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "export/names.h"
#include "export/plan.h"
#include "model/param.h"

/* The factor of a tensor: scales of the embedding and of the logits are multiplied into the embedding and the last
 * norm. */
static double factor_of(const ch_export_plan *plan, const ch_export_row *r) {
  const ch_model_config *c = &plan->config.model;
  double head = c->head_scale != 0 ? c->head_scale : 1 / sqrt((double)c->d_model);
  if (!strcmp(r->from, "embed.weight") || (c->tied && !strcmp(r->from, "head.weight"))) return c->embed_scale;
  if (!strcmp(r->from, "final_norm.weight")) return c->tied ? head / c->embed_scale : head;
  return 1;
}

/* The dtype of a tensor. Routers and their biases stay F32 in both formats, as in transformers; in GGUF files also
 * norms, and tensors whose rows are not whole blocks of 32 for Q8_0. */
static ch_export_dtype dtype_of(const ch_export_plan *plan, ch_export_role role, int dims, int64_t columns) {
  if (role == CH_ROLE_ROUTER || role == CH_ROLE_BIAS || (plan->format == CH_EXPORT_GGUF && dims == 1))
    return CH_EXPORT_F32;
  return plan->dtype == CH_EXPORT_Q8_0 && columns % 32 ? CH_EXPORT_F32 : plan->dtype;
}

static ch_export_transform transform_of(const ch_export_plan *plan, const ch_export_row *r) {
  if (r->role == CH_ROLE_BIAS) return ch_export_by_thresholds(plan) ? CH_TRANSFORM_THRESHOLDS : CH_TRANSFORM_BIASES;
  if (r->role == CH_ROLE_ROTATED && ch_export_is_interleaved(plan->kind, plan->format)) return CH_TRANSFORM_INTERLEAVE;
  return r->turned ? CH_TRANSFORM_TRANSPOSE : CH_TRANSFORM_NONE;
}

/* Appends a tensor; the array grows by doubling. */
static int append_tensor(ch_export_plan *plan, const ch_export_tensor *tensor) {
  if (!(plan->count & (plan->count - 1)))
    CH_TRY(CH_RESIZE(&plan->tensor, plan->count ? 2 * (size_t)plan->count : 1, "a list of tensors"));
  plan->tensor[plan->count++] = *tensor;
  return CHOIR_OK;
}

/* Appends the experts, including null experts: one tensor per expert in a folder, one per layer in a GGUF file. */
static int append_experts(ch_export_plan *plan, const ch_export_row *r, int layer, ch_export_tensor *t) {
  int e = plan->config.model.experts, all = e + plan->nulls;
  if (plan->format == CH_EXPORT_GGUF) {
    t->blocks = all, t->source_blocks = e;
    ch_export_name(plan->kind, plan->format, r, layer, 0, t->name);
    return append_tensor(plan, t);
  }
  t->dims = 2;
  memmove(t->shape, t->shape + 1, 2 * sizeof *t->shape);
  for (int i = 0; i < all; i++) {
    t->first = i < e ? i * t->rows * t->columns : 0;
    t->source_blocks = i < e;
    ch_export_name(plan->kind, plan->format, r, layer, i, t->name);
    CH_TRY(append_tensor(plan, t));
  }
  return CHOIR_OK;
}

/* Appends a tensor whose source has `dims` dimensions `shape`; from NULL: zeros. */
static int append_row(ch_export_plan *plan, const ch_export_row *r, int layer, int dims, const int64_t *shape,
                      const choir_tensor *from) {
  const ch_model_config *c = &plan->config.model;
  ch_export_tensor t = {.dims = dims,
                        .transform = transform_of(plan, r),
                        .from = from,
                        .blocks = 1,
                        .source_blocks = from != NULL,
                        .rows = dims > 1 ? shape[dims - 2 + r->turned] : 1,
                        .columns = shape[dims - 1 - r->turned],
                        .head = ch_config_d_head(c),
                        .factor = factor_of(plan, r)};
  t.source_rows = t.rows;
  if (r->role == CH_ROLE_ROUTER) t.rows += plan->nulls;
  if (r->role == CH_ROLE_BIAS) t.columns += plan->nulls;
  t.dtype = dtype_of(plan, r->role, dims, t.columns);
  t.shape[0] = r->role == CH_ROLE_EXPERTS ? c->experts + plan->nulls : t.rows;
  t.shape[dims - 1] = t.columns;
  if (dims == 3) t.shape[1] = t.rows;
  if (r->role == CH_ROLE_EXPERTS) return append_experts(plan, r, layer, &t);
  ch_export_name(plan->kind, plan->format, r, layer, 0, t.name);
  return append_tensor(plan, &t);
}

static int append_param(ch_export_plan *plan, const ch_param *p) {
  const ch_export_row *r = ch_export_find(p->name);
  const choir_tensor *from = choir_tensors_find(plan->weights, p->name);
  if (!r)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s has no counterpart in %s", p->name, ch_export_architecture(plan));
  if (!from || from->dtype != CHOIR_F32 || from->dims != p->dims ||
      memcmp(from->shape, p->shape, sizeof *p->shape * (size_t)p->dims))
    return ch_error(CHOIR_ERROR_FORMAT, "tensor '%s' is missing, or not F32 of the shape that config.json says",
                    p->name);
  if (r->role == CH_ROLE_BIAS && !ch_export_has_bias(plan->kind)) return CHOIR_OK; /* checked to be zeros */
  if (!strcmp(p->name, "embed.weight") && plan->config.model.tied && !plan->tied)
    CH_TRY(append_row(plan, ch_export_find("head.weight"), -1, p->dims, p->shape, from));
  return append_row(plan, r, p->layer, p->dims, p->shape, from);
}

/* Appends zeros for tensors that the architecture has in every MoE layer and choir's layer may not have. Without a
 * shared expert's tensors llama.cpp computes something else, although its converter accepts the folder. */
static int append_zeros(ch_export_plan *plan, int layer, int has_bias) {
  const ch_model_config *c = &plan->config.model;
  int64_t d = c->d_model, h = ch_config_d_expert(c), e = c->experts;
  if (!has_bias) CH_TRY(append_row(plan, ch_export_find("layers.0.moe.thresholds"), layer, 1, (int64_t[]){e}, NULL));
  if (c->shared_experts) return CHOIR_OK;
  CH_TRY(append_row(plan, ch_export_find("layers.0.moe.shared.gate.weight"), layer, 2, (int64_t[]){h, d}, NULL));
  CH_TRY(append_row(plan, ch_export_find("layers.0.moe.shared.up.weight"), layer, 2, (int64_t[]){h, d}, NULL));
  return append_row(plan, ch_export_find("layers.0.moe.shared.down.weight"), layer, 2, (int64_t[]){d, h}, NULL);
}

int ch_export_list(ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  ch_params params;
  CH_TRY(ch_params_build(c, &params));
  int code = CHOIR_OK;
  plan->shared = c->shared_experts ? c->shared_experts : ch_export_has_bias(plan->kind);
  for (int i = 0; i < params.count + params.buffers && !code; i++) code = append_param(plan, &params.p[i]);
  for (int layer = 0; layer < c->layers && ch_export_has_bias(plan->kind) && !code; layer++)
    if (ch_config_is_moe(c, layer)) code = append_zeros(plan, layer, params.buffers > 0);
  ch_params_free(&params);
  return code;
}
