/* Writes a model and its tokenizer as one GGUF file. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "export/gguf.h"
#include "export/plan.h"
#include "model/config.h"
#include "model/param.h"

/* A key of the model, prefixed by the architecture. */
static const char *key(const ch_export_plan *plan, const char *name) {
  static _Thread_local char text[96];
  snprintf(text, sizeof text, "%s.%s", ch_export_architecture(plan), name);
  return text;
}

static void put_number(ch_gguf *g, const ch_export_plan *plan, const char *name, int64_t value) {
  ch_gguf_put_u32(g, key(plan, name), (uint32_t)value);
}

/* Writes the model's keys, including the number of rotated dimensions, whose default would be the head's width. */
static void put_model(ch_gguf *g, const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  static const uint32_t file_types[] = {0, 32, 7}; /* mostly F32, BF16, Q8_0 */
  int head = ch_config_d_head(c);
  ch_gguf_put_text(g, "general.architecture", ch_export_architecture(plan));
  ch_gguf_put_text(g, "general.name", *c->name ? c->name : "choir");
  ch_gguf_put_u32(g, "general.file_type", file_types[plan->dtype]);
  ch_gguf_put_u32(g, "general.quantization_version", 2);
  put_number(g, plan, "vocab_size", c->vocab_size);
  put_number(g, plan, "block_count", c->layers);
  put_number(g, plan, "context_length", plan->config.train.sequence_length);
  put_number(g, plan, "embedding_length", c->d_model);
  put_number(g, plan, "feed_forward_length", ch_export_hidden(plan));
  put_number(g, plan, "attention.head_count", c->heads);
  put_number(g, plan, "attention.head_count_kv", ch_config_kv_heads(c));
  put_number(g, plan, "attention.key_length", head);
  put_number(g, plan, "attention.value_length", head);
  ch_gguf_put_f32(g, key(plan, "attention.layer_norm_rms_epsilon"), (float)c->norm_eps);
  put_number(g, plan, "rope.dimension_count", ch_config_rotated(c));
  ch_gguf_put_f32(g, key(plan, "rope.freq_base"), (float)c->rope_theta);
}

/* Keys of a model that is trained by masking: token i is predicted at position i, where stock programs expect the
 * next token. */
static void put_masks(ch_gguf *g, const ch_export_plan *plan) {
  ch_gguf_put_flag(g, key(plan, "attention.causal"), 0);
  ch_gguf_put_flag(g, "diffusion.shift_logits", 0);
  ch_gguf_put_u32(g, "tokenizer.ggml.mask_token_id", (uint32_t)choir_config_mask_token(&plan->config));
}

static void put_moe(ch_gguf *g, const ch_export_plan *plan) {
  enum { SIGMOID = 2 };
  const ch_model_config *c = &plan->config.model;
  int64_t h = ch_config_d_expert(c);
  put_number(g, plan, "expert_count", c->experts + plan->nulls);
  put_number(g, plan, "expert_used_count", plan->K);
  if (plan->kind >= CH_KIND_QWEN3_MOE) put_number(g, plan, "expert_feed_forward_length", h);
  if (!ch_export_has_bias(plan->kind)) return;
  put_number(g, plan, "expert_gating_func", SIGMOID);
  ch_gguf_put_flag(g, key(plan, "expert_weights_norm"), plan->normalize);
  ch_gguf_put_f32(g, key(plan, "expert_weights_scale"), 1);
  put_number(g, plan, "expert_shared_count", plan->shared);
  if (plan->kind == CH_KIND_GLM4_MOE) put_number(g, plan, "leading_dense_block_count", plan->first_moe);
  if (plan->kind == CH_KIND_EXAONE_MOE) put_number(g, plan, "expert_shared_feed_forward_length", h * plan->shared);
}

static int64_t bytes_of(const ch_export_tensor *t) {
  return t->blocks * t->rows * ch_export_row_bytes(t->dtype, t->columns);
}

/* Writes a tensor block by block, row by row. */
static int write_tensor(ch_gguf *g, const ch_export_tensor *t, float *values, void *row) {
  for (int64_t block = 0; block < t->blocks; block++) {
    CH_TRY(ch_export_fill(t, block, values));
    for (int64_t r = 0; r < t->rows; r++) {
      ch_export_round(t->dtype, values + r * t->columns, t->columns, row);
      ch_gguf_write(g, row, (size_t)ch_export_row_bytes(t->dtype, t->columns));
    }
  }
  ch_gguf_end_tensor(g);
  return CHOIR_OK;
}

static int write_tensors(ch_gguf *g, const ch_export_plan *plan, const choir_export_options *options) {
  int64_t largest = ch_export_largest(plan), done = 0, total = 0, widest = 0;
  for (int i = 0; i < plan->count; i++) {
    total += bytes_of(&plan->tensor[i]);
    if (plan->tensor[i].columns > widest) widest = plan->tensor[i].columns;
  }
  float *values; /* a block, and one of its rows as bytes */
  int code = CH_ALLOC(&values, largest + widest, "the largest tensor");
  for (int i = 0; i < plan->count && !code; i++) {
    code = write_tensor(g, &plan->tensor[i], values, values + largest);
    done += bytes_of(&plan->tensor[i]);
    if (plan->tensor[i].from) ch_tensors_forget(plan->weights, plan->tensor[i].from);
    if (!code && options->progress && options->progress(options->context, "writing", (double)done / (double)total))
      code = ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; nothing was written");
  }
  free(values);
  return code;
}

int ch_export_gguf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options) {
  static const uint32_t types[] = {0, 30, 8}; /* ggml's numbers of F32, BF16, Q8_0 */
  ch_gguf g = {0};
  put_model(&g, plan);
  if (plan->moe_layers) put_moe(&g, plan);
  if (ch_config_masked(&plan->config)) put_masks(&g, plan);
  int code = ch_gguf_put_tokenizer(&g, tokenizer, ch_config_masked(&plan->config), &plan->imported);
  for (int i = 0; i < plan->count; i++) {
    const ch_export_tensor *t = &plan->tensor[i];
    ch_gguf_add_tensor(&g, t->name, t->dims, t->shape, types[t->dtype], (uint64_t)bytes_of(t));
  }
  if (!code) code = ch_gguf_start(&g, options->out);
  if (!code) code = write_tensors(&g, plan, options);
  return ch_gguf_close(&g, code);
}
