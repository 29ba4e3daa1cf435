/* What export and import refuse by name: configs, ours and foreign ones, and broken GGUF files. */
#include "corpus.h"
#include "export/gguf_read.h"
#include "export/import.h"
#include "export/plan.h"
#include "model/config.h"
#include "plugin_routers.h"

/* Sets "field=value field=value ...", in which fields are those of the model. */
/* A block of today, some fields more, and what takes it; or which field nothing takes. */
static void chooses_or_refuses(void **state) {
#define SOFTMAX "router.name=switch_top1 "
#define BOTH "attention=bidirectional "
#define OLMOE SOFTMAX "qk_norm=true qk_norm_whole=true "
  static const struct {
    ch_export_format format;
    const char *fields, *takes, *says;
  } cases[] = {
      {CH_EXPORT_HF, "moe_every=0", "LlamaForCausalLM", NULL},
      {CH_EXPORT_HF, "moe_every=0 qk_norm=true", "Qwen3ForCausalLM", NULL},
      {CH_EXPORT_HF, "router.score=sigmoid", "Glm4MoeForCausalLM", NULL},
      {CH_EXPORT_HF, "router.score=sigmoid rope_fraction=0.5 shared_experts=1", "Glm4MoeForCausalLM", NULL},
      {CH_EXPORT_HF, "router.score=sigmoid activation=geglu", "Glm4MoeForCausalLM", NULL}, /* nothing is dense */
      {CH_EXPORT_HF, "router.score=sigmoid moe_every=2 qk_norm=true", "ExaoneMoeForCausalLM", NULL},
      {CH_EXPORT_HF, SOFTMAX "router.normalize_gates=true", "MixtralForCausalLM", NULL},
      {CH_EXPORT_HF, SOFTMAX "qk_norm=true dense_layers=1", "Qwen3MoeForCausalLM", NULL},
      {CH_EXPORT_HF, OLMOE "kv_heads=1", "OlmoeForCausalLM", NULL},
      {CH_EXPORT_GGUF, OLMOE, "olmoe", NULL},
      {CH_EXPORT_GGUF, "router.score=sigmoid", "glm4moe", NULL},
      {CH_EXPORT_GGUF, BOTH "moe_every=0", "llada", NULL},
      {CH_EXPORT_GGUF, BOTH SOFTMAX "qk_norm=true", "llada-moe", NULL},
      {CH_EXPORT_GGUF, BOTH SOFTMAX "qk_norm=true router.normalize_gates=true d_head=8", "rnd1", NULL},
      {CH_EXPORT_HF, BOTH "moe_every=0", NULL, "model.attention is \"bidirectional\": transformers has"},
      {CH_EXPORT_GGUF, BOTH "moe_every=0 qk_norm=true", NULL, "model.attention is \"bidirectional\": of llama.cpp's"},
      {CH_EXPORT_GGUF, BOTH "router.score=sigmoid", NULL, "model.attention is \"bidirectional\": of llama.cpp's"},
      {CH_EXPORT_GGUF, BOTH SOFTMAX "qk_norm=true dense_layers=1", NULL, "llada-moe has experts in every layer"},
      {CH_EXPORT_GGUF, BOTH SOFTMAX "qk_norm=true d_head=8", NULL, "model.d_head is 8"},
      {CH_EXPORT_HF, "position=relative", NULL, "model.position is \"relative\""},
      {CH_EXPORT_HF, "router.score=sigmoid dense_layers=1 activation=geglu", NULL, "model.activation is \"geglu\""},
      {CH_EXPORT_HF, "router.score=sigmoid expert_activation=gelu", NULL, "model.expert_activation is \"gelu\""},
      {CH_EXPORT_HF, "router.name=hash", NULL, "model.router.name is \"hash\""},
      {CH_EXPORT_HF, "", NULL, "model.router.score is \"softmax\""},
      {CH_EXPORT_HF, "router.score=sigmoid router.gate_on=input", NULL, "model.router.gate_on is \"input\""},
      {CH_EXPORT_HF, "router.score=sigmoid router.normalize_gates=true", NULL,
       "model.router.normalize_gates is \"true\""},
      {CH_EXPORT_HF, SOFTMAX "router.normalize_gates=true shared_experts=2", NULL, "model.shared_experts is 2"},
      {CH_EXPORT_HF, "router.name=topk router.null_experts=3", NULL, "model.router.null_experts is 3"},
      {CH_EXPORT_HF, SOFTMAX "router.normalize_gates=true dense_layers=1", NULL, "model.dense_layers is 1"},
      {CH_EXPORT_GGUF, SOFTMAX "router.normalize_gates=true qk_norm=true dense_layers=1", NULL,
       "model.dense_layers is 1"},
      {CH_EXPORT_HF, SOFTMAX, NULL, "MixtralForCausalLM divides a token's gates"},
      {CH_EXPORT_GGUF, SOFTMAX "qk_norm=true", NULL, "qwen3moe divides a token's gates"},
      {CH_EXPORT_GGUF, OLMOE "router.normalize_gates=true", NULL, "olmoe does not divide a token's gates"},
      {CH_EXPORT_HF, "router.score=sigmoid qk_norm=true qk_norm_whole=true", NULL, "model.qk_norm_whole is \"true\""},
      {CH_EXPORT_HF, OLMOE "d_head=8", NULL, "model.d_head is 8"},
      {CH_EXPORT_GGUF, OLMOE "kv_heads=1", NULL, "model.kv_heads is 1"},
      {CH_EXPORT_HF, "moe_every=0 rope_fraction=0.5", NULL, "model.rope_fraction is 0.5"},
      {CH_EXPORT_HF, "router.score=sigmoid moe_every=2 qk_norm=true rope_fraction=0.5", NULL, "model.rope_fraction is"},
      {CH_EXPORT_HF, "router.score=sigmoid moe_every=2", NULL, "model.qk_norm is false"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ch_export_plan plan = {.format = cases[i].format};
    ch_config_default(&plan.config);
    test_set(&plan.config,
             "layers=4 d_model=64 d_hidden=64 heads=4 experts=4 moe_every=1 position=rope activation=swiglu "
             "expert_activation=swiglu router.name=expert_choice %s",
             cases[i].fields);
    int code = ch_export_choose(&plan);
    if (code != (cases[i].takes ? CHOIR_OK : CHOIR_ERROR_UNSUPPORTED))
      fail_msg("%s: code %d (%s)", cases[i].fields, code, code ? choir_error_message() : "");
    if (code && !strstr(choir_error_message(), cases[i].says))
      fail_msg("%s: %s", cases[i].fields, choir_error_message());
    if (!code && strcmp(ch_export_architecture(&plan), cases[i].takes))
      fail_msg("%s: %s", cases[i].fields, ch_export_architecture(&plan));
    if (code) continue; /* some stock programs tie no head of these */
    char word[32];
    snprintf(word, sizeof word, " %s ", cases[i].takes);
    int own_head = strstr(" OlmoeForCausalLM olmoe Glm4MoeForCausalLM llada-moe rnd1 ", word) != NULL;
    if (plan.tied == own_head) fail_msg("%s: tied %d", cases[i].takes, plan.tied);
  }
#undef SOFTMAX
#undef OLMOE
#undef BOTH
}

/* A plug-in whose tokens choose does so by its own function; one whose experts choose is served with thresholds, which
 * can be exported if they are scores. */
static void refuses_functions_of_plugins(void **state) {
  static const struct {
    const char *name;
    int code;
  } cases[] = {{"own_ec", CHOIR_OK},
               {"own_min", CHOIR_ERROR_UNSUPPORTED},
               {"own_top2", CHOIR_ERROR_UNSUPPORTED},
               {"own_bias", CHOIR_ERROR_UNSUPPORTED}};
  register_plugin_routers();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ch_export_plan plan = {.format = CH_EXPORT_HF};
    ch_config_default(&plan.config);
    test_set(&plan.config,
             "layers=4 d_model=64 d_hidden=64 heads=4 experts=4 moe_every=1 position=rope activation=swiglu "
             "expert_activation=swiglu router.name=%s router.score=sigmoid",
             cases[i].name);
    int code = ch_export_choose(&plan);
    if (code != cases[i].code) fail_msg("%s: code %d (%s)", cases[i].name, code, choir_error_message());
    if (code && !strstr(choir_error_message(), cases[i].name)) fail_msg("%s", choir_error_message());
  }
}

/* A good file of three keys and two tensors; each case writes other bytes into it, and says what is wrong then. */
static void refuses_broken_gguf(void **state) {
  enum { KEY = 24, LETTER = 32, KIND = 49, ALIGNMENT = 53, TWICE = 86, DIMS = 110, SIZE = 114, TYPE = 130, NAME = 152 };
  enum { OFFSET = 169, MAX = 512 };
  static const struct {
    size_t at;
    uint8_t bytes, value;
    int code;
    const char *says;
  } odd[] = {{0, 1, 'g', CHOIR_ERROR_FORMAT, "does not begin with 'GGUF'"},
             {4, 4, 1, CHOIR_ERROR_UNSUPPORTED, "version 1 of GGUF"},
             {4, 4, 2, CHOIR_OK, ""},
             {4, 4, 4, CHOIR_ERROR_UNSUPPORTED, "version 4 of GGUF"},
             {8, 8, 0, CHOIR_ERROR_FORMAT, "0 tensors are none"},
             {KEY, 8, 0, CHOIR_ERROR_FORMAT, "a name has 1 to 127 bytes"},
             {KEY, 8, 128, CHOIR_ERROR_FORMAT, "a name has 1 to 127 bytes"},
             {LETTER, 1, 0, CHOIR_ERROR_FORMAT, "none of them 0"},
             {LETTER, 1, 0xFF, CHOIR_ERROR_FORMAT, "is not UTF-8"},
             {KIND, 4, 13, CHOIR_ERROR_FORMAT, "a value of an unknown type"},
             {ALIGNMENT, 4, 64, CHOIR_ERROR_FORMAT, "'x.1': its data does not stand at a multiple"},
             {ALIGNMENT, 4, 48, CHOIR_ERROR_FORMAT, "must be a power of two"},
             {ALIGNMENT, 4, 4, CHOIR_ERROR_FORMAT, "from 8"},
             {TWICE, 1, 'b', CHOIR_ERROR_FORMAT, "'b.key': a key that is there twice"},
             {DIMS, 4, 0, CHOIR_ERROR_FORMAT, "'x.0': a tensor has 1 to 4 dimensions"},
             {DIMS, 4, 5, CHOIR_ERROR_FORMAT, "'x.0': a tensor has 1 to 4 dimensions"},
             {SIZE, 8, 0, CHOIR_ERROR_FORMAT, "'x.0': a dimension is 0"},
             {TYPE, 4, 2, CHOIR_ERROR_UNSUPPORTED, "'x.0' has ggml's type 2"},
             {TYPE, 4, 8, CHOIR_ERROR_FORMAT, "'x.0': rows of Q8_0 that are no multiple of 32"},
             {NAME, 1, '0', CHOIR_ERROR_FORMAT, "'x.0': a tensor that is there twice"},
             {OFFSET, 8, 36, CHOIR_ERROR_FORMAT, "'x.1': its data does not stand at a multiple"},
             {OFFSET, 8, 64, CHOIR_ERROR_FORMAT, "'x.1': its data reaches over the end"},
             {OFFSET, 8, 0, CHOIR_ERROR_FORMAT, "its data overlaps another tensor's"}};
  ch_gguf g = {0};
  ch_gguf_in in;
  const float values[] = {1, 2, 3};
  ch_gguf_put_u32(&g, "general.alignment", 32);
  ch_gguf_put_f32(&g, "b.key", 1e-6f);
  ch_gguf_put_u32(&g, "c.key", 7);
  ch_gguf_add_tensor(&g, "x.0", 2, (int64_t[]){1, 3}, 0, sizeof values);
  ch_gguf_add_tensor(&g, "x.1", 1, (int64_t[]){2}, 0, 8);
  test_ok(ch_gguf_start(&g, corpus_path("odd.gguf")));
  for (int i = 3; i > 1; i--) {
    ch_gguf_write(&g, values, (size_t)i * sizeof *values);
    ch_gguf_end_tensor(&g);
  }
  test_ok(ch_gguf_close(&g, CHOIR_OK));
  ch_buffer b = corpus_load(corpus_path("odd.gguf"));
  uint64_t bytes[MAX / 8] = {0}; /* stands as a mapped file does */
  assert_true(b.size <= MAX);
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    memcpy(bytes, b.data, b.size);
    memset((char *)bytes + odd[i].at, 0, odd[i].bytes);
    ((uint8_t *)bytes)[odd[i].at] = odd[i].value;
    int code = ch_gguf_parse(bytes, b.size, "odd.gguf", &in);
    if (code != odd[i].code || (code && !strstr(choir_error_message(), odd[i].says)))
      fail_msg("case %zu, \"%s\": %d (%s)", i, odd[i].says, code, code ? choir_error_message() : "");
    ch_gguf_close_in(&in);
  }
  memcpy(bytes, b.data, b.size);
  test_ok(ch_gguf_parse(bytes, b.size, "odd.gguf", &in));
  assert_true(json_number_value(json_object_get(in.keys, "b.key")) == 1e-6); /* what was meant, not the float */
  assert_int_equal(json_integer_value(json_object_get(in.keys, "c.key")), 7);
  ch_gguf_close_in(&in);
  free(b.data);
}

/* Gates of glm4moe are divided by their sum if a key says so, as in llama.cpp; a config.json need not say it. */
static void gates_of_gguf(void **state) {
  for (int says = 0; says < 2; says++) {
    ch_gguf g = {0};
    ch_gguf_in in;
    json_t *root;
    ch_gguf_put_text(&g, "general.architecture", "glm4moe");
    if (says) ch_gguf_put_flag(&g, "glm4moe.expert_weights_norm", 1);
    ch_gguf_add_tensor(&g, "token_embd.weight", 2, (int64_t[]){1, 8}, 0, 32);
    test_ok(ch_gguf_start(&g, corpus_path("gates.gguf")));
    ch_gguf_write(&g, (const float[8]){0}, 32);
    ch_gguf_end_tensor(&g);
    test_ok(ch_gguf_close(&g, CHOIR_OK));
    test_ok(ch_gguf_open(corpus_path("gates.gguf"), &in));
    test_ok(ch_gguf_config(&in, "gates.gguf", &root));
    assert_int_equal(json_is_true(json_object_get(root, "norm_topk_prob")), says);
    json_decref(root);
    ch_gguf_close_in(&in);
  }
}

/* Fields of a foreign config.json beside the sizes that all have, and what choir makes of them: the length, dense
 * layers, every how manieth layer is MoE, whether gates are divided, which part rotates and a factor of the experts; or
 * why it refuses. */
static void reads_foreign_configs(void **state) {
#define LLAMA "'model_type': 'llama', "
#define MOE "'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 32, "
#define QWEN "'model_type': 'qwen3_moe', " MOE
#define GLM                                                                                                         \
  "'model_type': 'glm4_moe', 'n_routed_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 32, 'n_shar" \
  "ed_experts': 1, 'first_k_dense_replace': 1, "
#define EXAONE_TYPES \
  "'model_type': 'exaone_moe', 'num_shared_experts': 1, 'sliding_window': null, " MOE "'layer_types': "
#define EXAONE EXAONE_TYPES "[], "
#define SPARSE "'mlp_layer_types': ['sparse', 'sparse', 'sparse', 'sparse'], "
  static const struct {
    const char *fields, *makes, *says;
  } cases[] = {
      {LLAMA, "64 0 0 0 1 1", NULL},
      {LLAMA "'max_position_embeddings': 2048", "2048 0 0 0 1 1", NULL},
      {LLAMA "'max_position_embeddings': 4096", "2048 0 0 0 1 1", NULL},
      {LLAMA "'sliding_window': 64", "64 0 0 0 1 1", NULL}, /* as long as the context */
      {LLAMA "'sliding_window': 63", NULL, "\"sliding_window\" is 63"},
      {LLAMA "'sliding_window': 63, 'use_sliding_window': false", "64 0 0 0 1 1", NULL},
      {"'model_type': 'mistral', 'sliding_window': 63, 'use_sliding_window': false", NULL, "\"sliding_window\" is 63"},
      {"'model_type': 'mistral', 'max_position_embeddings': 4097", NULL, "\"sliding_window\" is 4096"},
      {"'model_type': 'gpt2'", NULL, "\"model_type\" is \"gpt2\": choir reads"},
      {"'model_type': 'qwen2_moe'", NULL, "its shared expert has a gate"},
      {LLAMA "'hidden_act': 'swish', 'rope_scaling': {'rope_type': 'default'}", "64 0 0 0 1 1", NULL},
      {LLAMA "'rope_scaling': {'type': 'linear', 'factor': 2}", NULL, "\"rope_scaling\" is {"},
      {LLAMA "'return_dict': true, 'torchscript': false, 'id2label': {'0': 'A'}, 'unsloth_version': 'x'",
       "64 0 0 0 1 1", NULL},
      {LLAMA "'attention_bias': true", NULL, "\"attention_bias\" is true"},
      {LLAMA "'logit_scale': 2", NULL, "\"logit_scale\" is not known"},
      {LLAMA "'rope_theta': 7, 'rope_parameters': {'rope_theta': 5}", NULL, "\"rope_theta\" is 7, and 5"},
      {LLAMA "'rope_parameters': {'rope_theta': 5, 'partial_rotary_factor': 0.5}", "64 0 0 0 0.5 1", NULL},
      {LLAMA "'rope_parameters': {'rope_type': 'yarn'}", NULL, "\"rope_type\" is \"yarn\""},
      {LLAMA "'layer_types': ['full_attention', 'sliding_attention']", NULL, "\"layer_types\": choir reads"},
      {LLAMA "'mlp_only_layers': [1]", NULL, "\"mlp_only_layers\": choir reads it of qwen3_moe only"},
      {LLAMA "'tie_word_embeddings': 1", NULL, "\"tie_word_embeddings\" must be true or false"},
      {"'model_type': 'mixtral', 'num_local_experts': 4, 'num_experts_per_tok': 2", "64 0 1 1 1 1", NULL},
      {"'model_type': 'mixtral', 'sliding_window': 63, 'use_sliding_window': false", NULL, "\"sliding_window\" is 63"},
      {QWEN, "64 0 1 0 1 1", NULL},
      {QWEN "'routed_scaling_factor': 2", NULL, "\"routed_scaling_factor\": choir reads it of"},
      {QWEN "'norm_topk_prob': true", "64 0 1 1 1 1", NULL},
      {QWEN "'mlp_only_layers': [0, 2]", "64 0 2 0 1 1", NULL},
      {QWEN "'mlp_only_layers': [0, 1]", "64 2 1 0 1 1", NULL},
      {QWEN "'mlp_only_layers': [0, 1, 2]", "64 3 1 0 1 1", NULL},
      {QWEN "'mlp_only_layers': [1]", NULL, "choir has dense layers first"},
      {QWEN "'mlp_only_layers': [0, 0]", NULL, "must have the numbers, from 0 on, of some of 4 layers"},
      {QWEN "'mlp_only_layers': [4]", NULL, "must have the numbers, from 0 on, of some of 4 layers"},
      {QWEN "'decoder_sparse_step': 2", NULL, "\"decoder_sparse_step\" is 2"},
      {GLM, "64 1 1 1 0.5 1", NULL},
      {GLM "'routed_scaling_factor': 2.5, 'partial_rotary_factor': 1, 'norm_topk_prob': false", "64 1 1 0 1 2.5", NULL},
      {GLM "'n_group': 2", NULL, "\"n_group\" is 2"},
      {EXAONE SPARSE, "64 0 1 1 1 2.5", NULL},
      {EXAONE SPARSE "'routed_scaling_factor': 1", "64 0 1 1 1 1", NULL},
      {EXAONE SPARSE "'sliding_window': 63, 'use_sliding_window': false", NULL, "\"sliding_window\" is 63"},
      {EXAONE SPARSE "'layer_types': ['full_attention']", NULL, "choir reads \"sliding_attention\" only"},
      {EXAONE SPARSE "'routed_scaling_factor': null", "64 0 1 1 1 2.5", NULL}, /* null is what is absent */
      {EXAONE_TYPES "null, " SPARSE "'num_experts': 4", NULL, "choir reads \"sliding_attention\" only"},
      {"'model_type': 'mistral', 'sliding_window': null, 'max_position_embeddings': 9999", "2048 0 0 0 1 1", NULL},
      {EXAONE "'mlp_layer_types': ['sparse']", NULL, "must have a word for each of 4 layers"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[700], made[64];
    json_t *root, *base;
    choir_config c;
    double scale;
    ch_kind kind;
    const char sizes[] =
        "{'vocab_size': 320, 'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 4, "
        "'num_attention_heads': "
        "4, 'rms_norm_eps': 1e-6, 'max_position_embeddings': 64}";
    size_t length = strlen(cases[i].fields), kept = length;
    while (kept && strchr(", ", cases[i].fields[kept - 1])) kept--;
    snprintf(text, sizeof text, "{%.*s}%s", (int)kept, cases[i].fields, sizes);
    for (char *at = text; (at = strchr(at, '\''));) *at = '"';
    root = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    base = json_loads(text + kept + 2, 0, NULL);
    assert_true(root && base && !json_object_update_missing(root, base));
    test_ok(ch_import_defaults(root));
    int code = ch_import_config(root, "x", &c, &scale, &kind);
    if (!code != !!cases[i].makes || (code && !strstr(choir_error_message(), cases[i].says)))
      fail_msg("%s: code %d (%s)", cases[i].fields, code, code ? choir_error_message() : "");
    if (!code) {
      const ch_model_config *m = &c.model;
      ch_format(made, sizeof made, "%d %d %d %d %g %g", c.train.sequence_length, m->dense_layers, m->moe_every,
                m->router.normalize_gates, m->rope_fraction, scale);
      if (strcmp(made, cases[i].makes)) fail_msg("%s: %s", cases[i].fields, made);
    }
    json_decref(root), json_decref(base);
  }
#undef LLAMA
#undef MOE
#undef QWEN
#undef GLM
#undef EXAONE
#undef EXAONE_TYPES
#undef SPARSE
}

TEST_MAIN(corpus_begin, corpus_end, chooses_or_refuses, refuses_functions_of_plugins, refuses_broken_gguf,
          gates_of_gguf, reads_foreign_configs)
