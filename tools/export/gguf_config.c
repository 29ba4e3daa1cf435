/* Converts the keys of a GGUF file to Hugging Face's config.json, so that one parser checks both. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "export/gguf_read.h"
#include "export/names.h"

/* Keys after "ARCHITECTURE.", and the corresponding fields. */
static const struct {
  const char *key, *field;
} renamed[] = {{"context_length", "max_position_embeddings"},
               {"embedding_length", "hidden_size"},
               {"feed_forward_length", "intermediate_size"},
               {"block_count", "num_hidden_layers"},
               {"attention.head_count", "num_attention_heads"},
               {"attention.head_count_kv", "num_key_value_heads"},
               {"attention.key_length", "head_dim"},
               {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
               {"attention.sliding_window", "sliding_window"},
               {"rope.freq_base", "rope_theta"},
               {"rope.scaling.type", "rope_scaling"},
               {"expert_used_count", "num_experts_per_tok"},
               {"expert_feed_forward_length", "moe_intermediate_size"},
               {"expert_shared_count", "n_shared_experts"},
               {"leading_dense_block_count", "first_k_dense_replace"},
               {"expert_weights_norm", "norm_topk_prob"},
               {"expert_weights_scale", "routed_scaling_factor"},
               {"expert_group_count", "n_group"},
               {"expert_group_used_count", "topk_group"},
               {"nextn_predict_layers", "num_nextn_predict_layers"}};

/* Keys that are read below, or that repeat properties of the tensors. */
static const char *const others[] = {"vocab_size",   "attention.value_length", "rope.dimension_count",
                                     "expert_count", "expert_gating_func",     "expert_shared_feed_forward_length"};

typedef struct {
  const ch_gguf_in *in;
  const char *name, *architecture;
  json_t *root; /* the resulting config */
} gguf_job;

static json_t *value(const gguf_job *j, const char *key) {
  char whole[192];
  snprintf(whole, sizeof whole, "%s.%s", j->architecture, key);
  return json_object_get(j->in->keys, whole);
}

static int add_key(const gguf_job *j, const char *key, json_t *found) {
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
    if (!strcmp(renamed[i].key, key)) {
      if (!strcmp(key, "rope.scaling.type") &&
          !strcmp(json_string_value(found) ? json_string_value(found) : "", "none"))
        return CHOIR_OK;
      if (json_is_null(found))
        return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: '%s.%s' is an array: choir's layers are all alike", j->name,
                        j->architecture, key);
      return json_object_set(j->root, renamed[i].field, found) ? ch_error(CHOIR_ERROR_MEMORY, "%s: no memory", j->name)
                                                               : CHOIR_OK;
    }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (!strcmp(others[i], key)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s.%.60s' is not known here, so what the model computes is not certain",
                  j->name, j->architecture, key);
}

/* General keys, the tokenizer's keys and notes on the file's origin do not affect the computation. */
static int add_keys(const gguf_job *j) {
  const char *key;
  json_t *found;
  size_t length = strlen(j->architecture);
  json_object_foreach(j->in->keys, key, found) {
    if (!strncmp(key, j->architecture, length) && key[length] == '.') CH_TRY(add_key(j, key + length + 1, found));
  }
  return CHOIR_OK;
}

static int find_kind(const gguf_job *j, ch_kind *kind) {
  int experts = json_integer_value(value(j, "expert_count")) > 0;
  for (int k = 0; k < CH_KINDS; k++)
    if (!strcmp(ch_kind_names[k].architecture[CH_EXPORT_GGUF], j->architecture) &&
        (strcmp(j->architecture, "llama") || experts == (k == CH_KIND_MIXTRAL))) {
      *kind = (ch_kind)k;
      return CHOIR_OK;
    }
  return ch_error(
      CHOIR_ERROR_UNSUPPORTED,
      "%s: \"general.architecture\" is \"%.40s\": choir reads llama, qwen3, olmoe, qwen3moe, glm4moe and hy_v3",
      j->name, j->architecture);
}

static int has(const gguf_job *j, const char *tensor) { return choir_tensors_find(j->in->tensors, tensor) != NULL; }

/* Checks the function from logits to scores, which is a number in GGUF: 1 softmax, 2 sigmoid. */
static int check_gates(const gguf_job *j, ch_kind k) {
  const json_t *given = value(j, "expert_gating_func");
  int wanted = ch_export_has_bias(k) ? 2 : 1;
  if (!given || json_integer_value(given) == wanted) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: '%s.expert_gating_func' is %lld: choir takes %d for this architecture",
                  j->name, j->architecture, (long long)json_integer_value(given), wanted);
}

/* Adds the MoE layers: GGUF has no key for them; they are the layers with expert tensors. */
static void add_pattern(const gguf_job *j) {
  json_t *types = json_array();
  for (int64_t i = 0, n = json_integer_value(value(j, "block_count")); i < n && i < choir_tensors_count(j->in->tensors);
       i++) {
    char router[64];
    snprintf(router, sizeof router, "blk.%lld.ffn_gate_inp.weight", (long long)i);
    json_array_append_new(types, json_string(has(j, router) ? "sparse" : "dense"));
  }
  json_object_set_new(j->root, "mlp_layer_types", types);
  json_object_set(j->root, "num_shared_experts", value(j, "expert_shared_count"));
  json_object_del(j->root, "n_shared_experts");
}

/* A fraction of `whole` that, multiplied by it and truncated to an integer, gives `part`: 60 of 88. */
static double share_of(double part, double whole) {
  double share = part / whole;
  return share * whole < part ? nextafter(share, INFINITY) : share;
}

static int add_derived(const gguf_job *j, ch_kind k) {
  const json_t *rotated = value(j, "rope.dimension_count"), *heads = value(j, "attention.head_count"),
               *width = value(j, "attention.key_length"), *d = value(j, "embedding_length"),
               *other = value(j, "attention.value_length");
  const choir_tensor *embedding = choir_tensors_find(j->in->tensors, "token_embd.weight");
  if (!embedding || embedding->dims != 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor 'token_embd.weight' is missing", j->name);
  double head = width ? json_number_value(width) : json_number_value(d) / json_number_value(heads);
  if (other && json_number_value(other) != head)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: heads' values are %g wide and their keys %g: choir has one width",
                    j->name, json_number_value(other), head);
  if (k == CH_KIND_GLM4_MOE || (rotated && json_number_value(rotated) != head))
    json_object_set_new(j->root, "partial_rotary_factor",
                        json_real(rotated && head > 0 ? share_of(json_number_value(rotated), head) : 1));
  if (ch_kind_names[k].experts) json_object_set(j->root, ch_kind_names[k].experts, value(j, "expert_count"));
  if (k == CH_KIND_QWEN3_MOE) json_object_set_new(j->root, "norm_topk_prob", json_true());
  if (k == CH_KIND_GLM4_MOE &&
      !value(j, "expert_weights_norm")) /* transformers would normalize gates, llama.cpp does not */
    json_object_set_new(j->root, "norm_topk_prob", json_false());
  if (k == CH_KIND_GLM4_MOE)
    json_object_set_new(j->root, "use_qk_norm", json_boolean(has(j, "blk.0.attn_q_norm.weight")));
  if (k == CH_KIND_EXAONE_MOE) add_pattern(j);
  json_object_set_new(j->root, "model_type", json_string(ch_kind_names[k].type));
  json_object_set_new(j->root, "vocab_size", json_integer(embedding->shape[0]));
  json_object_set_new(j->root, "tie_word_embeddings", json_boolean(!has(j, "output.weight")));
  return check_gates(j, k);
}

/* Refuses a model in several files: only the first has the keys, and none has all tensors. */
static int check_whole(const gguf_job *j) {
  json_int_t files = json_integer_value(json_object_get(j->in->keys, "split.count"));
  return files < 2 ? CHOIR_OK
                   : ch_error(CHOIR_ERROR_UNSUPPORTED,
                              "%s: one of %lld files of a model: join them first, with llama-gguf-split --merge",
                              j->name, (long long)files);
}

int ch_gguf_config(const ch_gguf_in *in, const char *name, json_t **root) {
  gguf_job j = {in, name, json_string_value(json_object_get(in->keys, "general.architecture")), json_object()};
  ch_kind kind = CH_KIND_LLAMA;
  int code = check_whole(&j);
  if (!code && !j.architecture)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: \"general.architecture\" is missing, or no text", name);
  if (!code) code = find_kind(&j, &kind);
  if (!code) code = add_keys(&j);
  if (!code) code = add_derived(&j, kind);
  *root = code ? NULL : j.root;
  if (code) json_decref(j.root);
  return code;
}
