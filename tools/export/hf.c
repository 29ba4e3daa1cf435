/* Writes a folder for transformers' from_pretrained: config.json, generation_config.json, model.safetensors. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "export/plan.h"
#include "file/dir.h"
#include "file/json.h"
#include "model/param.h"

static void put_int(json_t *root, const char *key, int64_t value) { ch_json_put(root, key, json_integer(value)); }
static void put_flag(json_t *root, const char *key, int value) { ch_json_put(root, key, json_boolean(value)); }
static void put_text(json_t *root, const char *key, const char *value) { ch_json_put(root, key, json_string(value)); }

/* Writes the fraction of rotated dimensions at both places where readers look for it: without it they assume one
 * half. */
static void put_rope(json_t *root, const ch_model_config *c) {
  json_t *rope = json_object();
  put_text(rope, "rope_type", "default");
  ch_json_put(rope, "rope_theta", json_real(c->rope_theta));
  ch_json_put(rope, "partial_rotary_factor", json_real(c->rope_fraction));
  ch_json_put(root, "rope_parameters", rope);
  ch_json_put(root, "rope_theta", json_real(c->rope_theta));
  ch_json_put(root, "partial_rotary_factor", json_real(c->rope_fraction));
}

/* Fields of architectures with softmax scores. */
static void put_softmax(json_t *root, const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  put_int(root, "num_experts_per_tok", plan->K);
  put_int(root, ch_kind_names[plan->kind].experts, c->experts);
  if (plan->kind != CH_KIND_MIXTRAL) put_flag(root, "norm_topk_prob", plan->normalize);
  if (plan->kind != CH_KIND_QWEN3_MOE) return;
  json_t *dense = json_array();
  for (int layer = 0; layer < c->layers; layer++)
    if (!ch_config_is_moe(c, layer)) ch_json_add(dense, json_integer(layer));
  put_int(root, "moe_intermediate_size", ch_config_d_expert(c));
  put_int(root, "decoder_sparse_step", 1);
  ch_json_put(root, "mlp_only_layers", dense);
}

/* Only layers of type "sliding_attention" use rope; their window covers the whole context. */
static void put_layer_types(json_t *root, const ch_export_plan *plan) {
  json_t *attention = json_array(), *mlp = json_array();
  for (int layer = 0; layer < plan->config.model.layers; layer++) {
    ch_json_add(attention, json_string("sliding_attention"));
    ch_json_add(mlp, json_string(ch_config_is_moe(&plan->config.model, layer) ? "sparse" : "dense"));
  }
  ch_json_put(root, "layer_types", attention);
  ch_json_put(root, "mlp_layer_types", mlp);
  put_int(root, "sliding_window", plan->config.train.sequence_length);
}

static void put_sigmoid(json_t *root, const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  put_int(root, "moe_intermediate_size", ch_config_d_expert(c));
  put_int(root, "num_experts_per_tok", plan->K);
  put_flag(root, "norm_topk_prob", plan->normalize);
  ch_json_put(root, "routed_scaling_factor", json_real(1));
  put_int(root, "n_group", 1);
  put_int(root, "topk_group", 1);
  put_int(root, ch_kind_names[plan->kind].experts, c->experts + plan->nulls);
  put_int(root, ch_kind_names[plan->kind].shared, plan->shared);
  put_int(root, "first_k_dense_replace", plan->first_moe);
  if (plan->kind == CH_KIND_EXAONE_MOE) {
    put_layer_types(root, plan);
  } else {
    put_flag(root, "use_qk_norm", c->qk_norm);
    put_int(root, "num_nextn_predict_layers", 0);
  }
}

/* Writes the tokens that begin, end and pad texts: choir's, or those of an imported model's config, which also has
 * the load-balancing settings of its experts. */
static void put_makers(json_t *root, const ch_export_plan *plan, int eos) {
  static const char *const keys[] = {"bos_token_id", "pad_token_id", "eos_token_id", "router_aux_loss_coef",
                                     "router_jitter_noise"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    json_t *made = json_object_get(plan->imported.config, keys[i]);
    if (i >= 3 && (!made || plan->kind < CH_KIND_MIXTRAL)) continue;
    ch_json_put(root, keys[i], made ? json_incref(made) : i == 2 && eos >= 0 ? json_integer(eos) : json_null());
  }
}

static json_t *config_json(const ch_export_plan *plan, int eos) {
  const ch_model_config *c = &plan->config.model;
  json_t *root = json_pack("{s:[s], s:s, s:s, s:s}", "architectures", ch_export_architecture(plan), "model_type",
                           ch_kind_names[plan->kind].type, "dtype",
                           plan->dtype == CH_EXPORT_BF16 ? "bfloat16" : "float32", "hidden_act", "silu");
  if (!root) return NULL;
  put_int(root, "vocab_size", c->vocab_size);
  put_int(root, "hidden_size", c->d_model);
  put_int(root, "intermediate_size", ch_export_hidden(plan));
  put_int(root, "num_hidden_layers", c->layers);
  put_int(root, "num_attention_heads", c->heads);
  put_int(root, "num_key_value_heads", ch_config_kv_heads(c));
  put_int(root, "head_dim", ch_config_d_head(c));
  put_int(root, "max_position_embeddings", plan->config.train.sequence_length);
  ch_json_put(root, "rms_norm_eps", json_real(c->norm_eps));
  put_flag(root, "tie_word_embeddings", plan->tied);
  put_flag(root, "attention_bias", 0);
  put_makers(root, plan, eos);
  put_rope(root, c);
  if (plan->moe_layers) (ch_export_has_bias(plan->kind) ? put_sigmoid : put_softmax)(root, plan);
  return root;
}

/* State of the callback that passes bytes to the safetensors writer. */
typedef struct writing {
  const ch_export_plan *plan;
  const choir_export_options *options;
  choir_tensor *tensor; /* [plan->count], in its order */
  float *values;        /* space for the largest block */
  void *bytes;
  int64_t done, total;
  int code;
} writing;

static const void *fetch_export(void *context, const choir_tensor *tensor) {
  writing *w = context;
  const ch_export_tensor *t = &w->plan->tensor[tensor - w->tensor];
  w->done += (int64_t)tensor->bytes;
  if (w->options->progress && w->options->progress(w->options->context, "writing", (double)w->done / (double)w->total))
    w->code = ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; nothing was written");
  else
    w->code = ch_export_fill(t, 0, w->values);
  if (t->from) ch_tensors_forget(w->plan->weights, t->from);
  if (w->code) return NULL;
  if (t->dtype == CH_EXPORT_F32) return w->values;
  ch_export_round(t->dtype, w->values, t->rows * t->columns, w->bytes);
  return w->bytes;
}

static int write_weights(const ch_export_plan *plan, const choir_export_options *options, const char *folder) {
  static const char *const metadata[] = {"format", "pt", NULL}; /* required by transformers */
  char path[PATH_MAX];
  writing w = {.plan = plan, .options = options};
  size_t max = (size_t)ch_export_largest(plan);
  int code = CH_ALLOC(&w.tensor, plan->count, "the model's tensors");
  if (!code) code = CH_ALLOC(&w.values, max, "the largest tensor");
  if (!code) code = CH_ALLOC(&w.bytes, plan->dtype == CH_EXPORT_F32 ? 1 : max * 2, "the largest tensor's bytes");
  for (int i = 0; !code && i < plan->count; i++) {
    const ch_export_tensor *t = &plan->tensor[i];
    choir_tensor *to = &w.tensor[i];
    *to = (choir_tensor){.dtype = ch_export_stored[t->dtype],
                         .dims = t->dims,
                         .bytes = (size_t)(t->rows * ch_export_row_bytes(t->dtype, t->columns))};
    snprintf(to->name, sizeof to->name, "%s", t->name);
    memcpy(to->shape, t->shape, sizeof t->shape);
    w.total += (int64_t)to->bytes;
  }
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  if (!code)
    code = ch_export_files(path, w.tensor, plan->count, plan->config.train.file_bytes, metadata, fetch_export, &w,
                           &w.code);
  free(w.tensor);
  free(w.values);
  free(w.bytes);
  return code;
}

/* Writes generation_config.json, which lists the tokens that end a text. */
static int write_ends(const json_t *config, const char *folder) {
  json_t *eos = json_object_get(config, "eos_token_id");
  if (!eos || json_is_null(eos)) return CHOIR_OK;
  return ch_json_save(json_pack("{s:O}", "eos_token_id", eos), CH_IN(folder, "generation_config.json"));
}

static int write_hf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options,
                    const char *checkpoint, const char *folder) {
  json_t *config = config_json(plan, tokenizer ? choir_tokenizer_eos(tokenizer) : -1);
  int code = write_weights(plan, options, folder);
  if (!code) code = write_ends(config, folder);
  if (!code) code = ch_json_save(json_incref(config), CH_IN(folder, "config.json"));
  json_decref(config);
  if (!code && tokenizer && !plan->imported.tokenizer)
    code = ch_export_tokenizer(tokenizer, plan->config.train.sequence_length, folder);
  return code ? code : ch_imported_restore(checkpoint, folder);
}

int ch_export_hf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options,
                 const char *checkpoint) {
  ch_dir dir;
  CH_TRY(ch_dir_begin(&dir, options->out));
  return ch_dir_end(&dir, write_hf(plan, tokenizer, options, checkpoint, dir.temporary));
}
