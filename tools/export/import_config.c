/* Reads config.json of another program's model: every field is read, known to have no effect, or refused by name. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "export/import.h"
#include "model/config.h"
#include "model/param.h"

/* Size fields, and the fields of choir's config that they set. */
static const struct {
  const char *theirs, *ours;
  ch_kind from, to; /* the first and the last kind that has this field; it is required there */
} sizes[] = {{"vocab_size", "model.vocab_size", CH_KIND_LLAMA, CH_KIND_EXAONE_MOE},
             {"hidden_size", "model.d_model", CH_KIND_LLAMA, CH_KIND_EXAONE_MOE},
             {"intermediate_size", "model.d_hidden", CH_KIND_LLAMA, CH_KIND_EXAONE_MOE},
             {"num_hidden_layers", "model.layers", CH_KIND_LLAMA, CH_KIND_EXAONE_MOE},
             {"num_attention_heads", "model.heads", CH_KIND_LLAMA, CH_KIND_EXAONE_MOE},
             {"moe_intermediate_size", "model.d_expert", CH_KIND_QWEN3_MOE, CH_KIND_EXAONE_MOE},
             {"num_experts_per_tok", "model.router.experts_per_token", CH_KIND_MIXTRAL, CH_KIND_EXAONE_MOE},
             {"first_k_dense_replace", "model.dense_layers", CH_KIND_GLM4_MOE, CH_KIND_GLM4_MOE},
             {"n_shared_experts", "model.shared_experts", CH_KIND_GLM4_MOE, CH_KIND_GLM4_MOE},
             {"num_shared_experts", "model.shared_experts", CH_KIND_EXAONE_MOE, CH_KIND_EXAONE_MOE}};

/* Fields that must have the given value, because choir cannot compute others. */
static const struct {
  const char *key, *value;
} fixed[] = {{"hidden_act", "\"silu\""},
             {"attention_bias", "false"},
             {"mlp_bias", "false"},
             {"rope_scaling", "null"},
             {"rope_interleaved", "false"},
             {"is_llama_config", "true"},
             {"sliding_window", "null"},
             {"use_sliding_window", "false"},
             {"decoder_sparse_step", "1"},
             {"n_group", "1"},
             {"topk_group", "1"},
             {"clip_qkv", "null"},
             {"num_nextn_predict_layers", "0"},
             {"quantization_config", "null"}};

typedef struct {
  const json_t *root;
  const char *name; /* begins every message */
  ch_kind kind;
  choir_config *config;
} config_job;

/* A member; NULL: it is absent or null. */
static const json_t *member(const json_t *object, const char *key) {
  const json_t *found = json_object_get(object, key);
  return json_is_null(found) ? NULL : found;
}
static const json_t *field(const config_job *j, const char *key) { return member(j->root, key); }

/* Like ch_json_check_keys, with a message for files of other programs. */
static int check_keys(const config_job *j) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)j->root, key, value) {
    int found = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) found |= !strcmp(sizes[i].theirs, key);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) found |= !strcmp(fixed[i].key, key);
    if (!found && !ch_import_knows(key))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%.60s\" is not known here, so what the model computes is not certain",
                      j->name, key);
  }
  return CHOIR_OK;
}

/* Whether a window has no effect: it is disabled (by a field that mistral, mixtral and exaone_moe do not have), or
 * covers the whole context. */
static int hides_nothing(const config_job *j, const json_t *window) {
  const json_t *context = field(j, "max_position_embeddings");
  int always = j->kind == CH_KIND_MISTRAL || j->kind == CH_KIND_MIXTRAL || j->kind == CH_KIND_EXAONE_MOE;
  if (json_is_false(field(j, "use_sliding_window")) && !always) return 1;
  return json_is_integer(window) && json_is_integer(context) &&
         json_integer_value(window) >= json_integer_value(context);
}

/* Equivalent values: "swish" is silu, and a rope scaling of type default does nothing. */
static int means_the_same(const char *key, const json_t *value) {
  const json_t *type = json_object_get(value, "rope_type");
  if (!type) type = json_object_get(value, "type");
  if (!strcmp(key, "hidden_act")) return json_is_string(value) && !strcmp(json_string_value(value), "swish");
  return !strcmp(key, "rope_scaling") && json_object_size(value) == 1 && json_is_string(type) &&
         !strcmp(json_string_value(type), "default");
}

static int check_fixed(const config_job *j) {
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
    const json_t *value = field(j, fixed[i].key);
    char text[80];
    if (!value) continue;
    if (!strcmp(fixed[i].key, "sliding_window") && hides_nothing(j, value)) continue;
    if (means_the_same(fixed[i].key, value)) continue;
    json_t *wanted = json_loads(fixed[i].value, JSON_DECODE_ANY, NULL);
    int same = wanted && json_equal(value, wanted);
    json_decref(wanted);
    if (!same)
      return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: \"%s\" is %s: choir computes what %s means only", j->name,
                      fixed[i].key, ch_json_show(value, text, sizeof text), fixed[i].value);
  }
  return CHOIR_OK;
}

static int set(const config_job *j, const char *key, const char *value) {
  int code = choir_config_set(j->config, key, value);
  return code ? ch_error_in(code, "%s", j->name) : CHOIR_OK;
}

static int set_integer(const config_job *j, const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  return set(j, key, text);
}

/* An integer member, or `missing`. */
static int integer_or(const config_job *j, const char *key, int64_t missing, int64_t *value) {
  *value = missing;
  return field(j, key) ? ch_json_get_integer(j->root, j->name, key, 0, 1 << 30, value) : CHOIR_OK;
}

static int number_or(const json_t *object, const char *name, const char *key, double missing, double *value) {
  *value = missing;
  return member(object, key) ? ch_json_get_number(object, name, key, 0, 1e12, value) : CHOIR_OK;
}

static int flag_or(const config_job *j, const char *key, int missing, int *value) {
  const json_t *found = field(j, key);
  *value = found ? json_is_true(found) : missing;
  return !found || json_is_boolean(found)
             ? CHOIR_OK
             : ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" must be true or false", j->name, key);
}

static int read_sizes(const config_job *j) {
  ch_model_config *m = &j->config->model;
  int64_t value;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (j->kind < sizes[i].from || j->kind > sizes[i].to) continue;
    CH_TRY(ch_json_get_integer(j->root, j->name, sizes[i].theirs, 0, 1 << 30, &value));
    CH_TRY(set_integer(j, sizes[i].ours, value));
  }
  CH_TRY(integer_or(j, "head_dim", m->d_model / m->heads, &value));
  CH_TRY(set_integer(j, "model.d_head", value));
  CH_TRY(integer_or(j, "num_key_value_heads", m->heads, &value));
  CH_TRY(set_integer(j, "model.kv_heads", value));
  CH_TRY(ch_json_get_number(j->root, j->name, "rms_norm_eps", 0, 1, &m->norm_eps));
  CH_TRY(ch_json_get_integer(j->root, j->name, "max_position_embeddings", 1, 1 << 30, &value));
  if (value > 2048)
    ch_notice(
        "%s: \"max_position_embeddings\" is %lld; train.sequence_length becomes 2048, what training would take, "
        "and an export says that: raise it in config.json where more is wanted",
        j->name, (long long)value);
  return set_integer(j, "train.sequence_length", value < 2048 ? value : 2048);
}

/* Reads a number at the top level, as in older versions, or in a nested object. If both exist, they must agree. */
static int read_rotation(const config_job *j, const json_t *inside, const char *key, double missing, double *value) {
  CH_TRY(number_or(j->root, j->name, key, missing, value));
  double above = *value;
  CH_TRY(number_or(inside, j->name, key, above, value));
  if (!field(j, key) || *value == above) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" is %g, and %g in \"rope_parameters\"", j->name, key, above, *value);
}

static int read_rope(const config_job *j) {
  static const char *const keys[] = {"rope_type", "rope_theta", "partial_rotary_factor", NULL};
  const json_t *inside = field(j, "rope_parameters");
  ch_model_config *m = &j->config->model;
  const char *type = "default";
  char text[80], name[4096 + 32];
  snprintf(name, sizeof name, "%s: \"rope_parameters\"", j->name);
  if (inside && !json_is_object(inside))
    return ch_error(CHOIR_ERROR_FORMAT, "%s is %s: must be an object", name, ch_json_show(inside, text, sizeof text));
  if (json_object_get(inside, "rope_type")) CH_TRY(ch_json_get_string(inside, j->name, "rope_type", &type));
  if (strcmp(type, "default"))
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: \"rope_type\" is \"%.40s\": choir rotates by \"default\" only",
                    j->name, type);
  if (inside)
    CH_TRY(ch_json_check_keys(inside, name, keys)); /* otherwise a "factor" or an older "type" would be ignored */
  CH_TRY(read_rotation(j, inside, "rope_theta", 10000, &m->rope_theta));
  CH_TRY(read_rotation(j, inside, "partial_rotary_factor", j->kind == CH_KIND_GLM4_MOE ? 0.5 : 1, &m->rope_fraction));
  return set(j, "model.position", "rope");
}

/* Nonzero: the layer has experts. qwen3_moe lists dense layers, exaone_moe the type of every layer. */
static int is_sparse(const json_t *list, ch_kind kind, int layer) {
  const char *type = json_string_value(json_array_get(list, (size_t)layer));
  if (kind == CH_KIND_EXAONE_MOE) return type && !strcmp(type, "sparse");
  for (size_t i = 0; i < json_array_size(list); i++)
    if (json_integer_value(json_array_get(list, i)) == layer) return 0;
  return 1;
}

/* Converts a per-layer list of MoE layers to choir's form: dense layers first, then every m-th layer is MoE. */
static int read_pattern(const config_job *j) {
  const char *key = j->kind == CH_KIND_EXAONE_MOE ? "mlp_layer_types" : "mlp_only_layers";
  const json_t *list = field(j, key);
  ch_model_config *m = &j->config->model;
  size_t size = json_array_size(list), wanted = (size_t)m->layers;
  int first = -1, every = 0, same = 1;
  for (int i = 0; size <= (size_t)m->layers && i < m->layers; i++) {
    if (!is_sparse(list, j->kind, i)) continue;
    if (j->kind == CH_KIND_QWEN3_MOE) wanted--;
    if (first >= 0 && !every) every = i - first;
    if (first < 0) first = i;
  }
  if (size != wanted)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" must have %s of %d layers", j->name, key,
                    j->kind == CH_KIND_EXAONE_MOE ? "a word for each" : "the numbers, from 0 on, of some", m->layers);
  m->moe_every = every ? every : first >= 0 ? m->layers - first : 0; /* a single MoE layer determines no period */
  m->dense_layers = first >= 0 ? first - m->moe_every + 1 : 0;
  for (int i = 0; i < m->layers && same; i++) same = is_sparse(list, j->kind, i) == ch_config_is_moe(m, i);
  if (same && m->dense_layers >= 0) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "%s: \"%s\": choir has dense layers first, and then experts in every m-th layer", j->name, key);
}

/* Tokens choose the K experts with the largest score, or score + bias: the negative bias is the router state of
 * bias_balanced. */
static int read_moe(const config_job *j, double *gate_scale) {
  const char *experts = ch_kind_names[j->kind].experts;
  int64_t value;
  int normalize;
  if (j->kind == CH_KIND_QWEN3_MOE && !json_object_get(j->root, experts)) experts = "num_local_experts";
  CH_TRY(ch_json_get_integer(j->root, j->name, experts, 1, 1 << 16, &value));
  CH_TRY(set_integer(j, "model.experts", value));
  CH_TRY(flag_or(j, "norm_topk_prob", j->kind != CH_KIND_QWEN3_MOE && j->kind != CH_KIND_OLMOE, &normalize));
  CH_TRY(set(j, "model.router.normalize_gates", j->kind == CH_KIND_MIXTRAL || normalize ? "true" : "false"));
  CH_TRY(set(j, "model.router.score", ch_export_has_bias(j->kind) ? "sigmoid" : "softmax"));
  CH_TRY(number_or(j->root, j->name, "routed_scaling_factor", 1, gate_scale));
  if (*gate_scale != 1 &&
      !ch_export_has_bias(j->kind)) /* transformers ignores the factor here, other programs may not */
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: \"routed_scaling_factor\": choir reads it of glm4_moe and exaone_moe; take "
                    "it out if gates are not scaled, as in transformers",
                    j->name);
  CH_TRY(set(j, "model.expert_activation", "swiglu"));
  return j->kind == CH_KIND_EXAONE_MOE || j->kind == CH_KIND_QWEN3_MOE ? read_pattern(j)
                                                                       : set(j, "model.moe_every", "1");
}

static int find_kind(config_job *j) {
  const char *type;
  CH_TRY(ch_json_get_string(j->root, j->name, "model_type", &type));
  for (int i = 0; i < CH_KINDS; i++)
    if (!strcmp(ch_kind_names[i].type, type)) {
      j->kind = (ch_kind)i;
      return CHOIR_OK;
    }
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "%s: \"model_type\" is \"%.40s\": %schoir reads llama, mistral, qwen3, mixtral, olmoe, qwen3_moe, "
                  "glm4_moe, exaone_moe",
                  j->name, type,
                  strcmp(type, "qwen2_moe") ? "" : "its shared expert has a gate, which choir's models lack; ");
}

/* In exaone_moe only layers with a window use rope; check_fixed has checked that the window covers the context. */
static int check_layer_types(const config_job *j) {
  const json_t *types_of = field(j, "layer_types"), *type;
  const char *wanted = j->kind == CH_KIND_EXAONE_MOE ? "sliding_attention" : "full_attention";
  size_t i;
  if (j->kind != CH_KIND_QWEN3_MOE && json_array_size(field(j, "mlp_only_layers")))
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: \"mlp_only_layers\": choir reads it of qwen3_moe only", j->name);
  json_array_foreach(types_of, i, type) {
    if (!json_is_string(type) || strcmp(json_string_value(type), wanted))
      return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: \"layer_types\": choir reads \"%s\" only", j->name, wanted);
  }
  return CHOIR_OK;
}

int ch_import_defaults(json_t *root) {
  static const struct {
    const char *type, *key, *value;
  } defaults[] = {{"mistral", "sliding_window", "4096"},
                  {"mixtral", "rope_theta", "1000000.0"},
                  {"exaone_moe", "sliding_window", "4096"},
                  {"exaone_moe", "layer_types", "[\"full_attention\"]"}, /* every fourth layer */
                  {"exaone_moe", "routed_scaling_factor", "2.5"}};
  const char *type = json_string_value(json_object_get(root, "model_type")), *none = "sliding_window";
  const json_t *rope = json_object_get(root, "rope_parameters");
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
    const char *key = defaults[i].key;
    int given = member(root, key) || member(rope, key) || (json_object_get(root, key) && !strcmp(key, none));
    if (!type || strcmp(defaults[i].type, type) || given) continue;
    if (json_object_set_new(root, key, json_loads(defaults[i].value, JSON_DECODE_ANY, NULL)))
      return ch_error(CHOIR_ERROR_MEMORY, "no memory for \"%s\" of a config", key);
  }
  return CHOIR_OK;
}

int ch_import_config(const json_t *root, const char *name, choir_config *config, double *gate_scale, ch_kind *kind) {
  static const struct {
    const char *key, *value;
  } constant[] = {{"model.moe_every", "0"},
                  {"model.experts", "1"},
                  {"model.activation", "swiglu"},
                  {"model.head_scale", "1"},
                  {"train.batch_sequences", "8"}};
  config_job made = {.root = root, .name = name, .config = config}, *j = &made;
  int qk_norm;
  *gate_scale = 1;
  ch_config_default(config);
  CH_TRY(find_kind(j));
  CH_TRY(check_keys(j));
  CH_TRY(check_fixed(j));
  CH_TRY(check_layer_types(j));
  ch_kind k = *kind = j->kind;
  for (size_t i = 0; i < sizeof constant / sizeof *constant; i++) CH_TRY(set(j, constant[i].key, constant[i].value));
  CH_TRY(set(j, "model.router.name", ch_export_has_bias(k) || k < CH_KIND_MIXTRAL ? "bias_balanced" : "topk"));
  CH_TRY(read_sizes(j));
  CH_TRY(read_rope(j));
  CH_TRY(flag_or(j, "tie_word_embeddings", 0, &config->model.tied));
  CH_TRY(flag_or(j, "use_qk_norm", 0, &qk_norm));
  config->model.qk_norm_whole = k == CH_KIND_OLMOE;
  config->model.qk_norm =
      k == CH_KIND_QWEN3 || k == CH_KIND_OLMOE || k == CH_KIND_QWEN3_MOE || k == CH_KIND_EXAONE_MOE || qk_norm;
  if (k >= CH_KIND_MIXTRAL) CH_TRY(read_moe(j, gate_scale));
  int code = choir_config_check(config);
  return code ? ch_error_in(code, "%s", name) : code;
}
