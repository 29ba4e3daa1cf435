/* Every field of a config, set to another value than its default: an export refuses it by name, or the exported model,
 * imported again, computes the same logits. */
#include "base/text.h"
#include "choir/choir.h"
#include "corpus.h"
#include "export/export.h"
#include "export/import.h"
#include "export/plan.h"
#include "file/dir.h"
#include "handle/model.h"
#include "modern.h"

enum { B = 2, T = 8, V = 1000 }; /* at most */

#define TODAY                                                                                      \
  "layers=3 d_model=32 d_hidden=32 heads=4 experts=4 moe_every=1 position=rope activation=swiglu " \
  "expert_activation=swiglu sequence_length=8 batch_sequences=4 "
static const struct {
  const char *fields, *format, *architecture;
} bases[] = {
    {TODAY "moe_every=0", "hf", "LlamaForCausalLM"},
    {TODAY "moe_every=0 qk_norm=true", "hf", "Qwen3ForCausalLM"},
    {TODAY "router.name=topk router.normalize_gates=true", "hf", "MixtralForCausalLM"},
    {TODAY "router.name=topk qk_norm=true qk_norm_whole=true", "hf", "OlmoeForCausalLM"},
    {TODAY "router.name=topk qk_norm=true dense_layers=1", "hf", "Qwen3MoeForCausalLM"},
    {TODAY "router.name=switch_top1 router.normalize_gates=true optimizer=adamw", "hf", "MixtralForCausalLM"},
    {TODAY "router.name=gshard_top2 router.normalize_gates=true", "hf", "MixtralForCausalLM"},
    {TODAY "router.name=quantile_balanced router.score=sigmoid", "hf", "Glm4MoeForCausalLM"},
    {TODAY "router.name=bias_balanced", "hf", "Glm4MoeForCausalLM"},
    {TODAY "router.name=expert_choice router.score=sigmoid", "hf", "Glm4MoeForCausalLM"},
    {TODAY "router.name=capped_expert_choice router.score=sigmoid router.solver=dykstra", "gguf", "glm4moe"},
    {TODAY "router.name=expert_choice router.score=sigmoid moe_every=2 qk_norm=true", "hf", "ExaoneMoeForCausalLM"},
    {TODAY "router.name=topk router.normalize_gates=true qk_norm=true", "gguf", "qwen3moe"},
    {TODAY "attention=bidirectional objective=masked_diffusion moe_every=0", "gguf", "llada"}};

/* Fields that change with others only, or that no router of an exported model takes. */
#define ALONE "model.attention model.router.consistency_weight model.router.capacity_schedule"

static choir_tokenizer *tokenizer; /* which a GGUF file has */

static int begin(void **state) {
  if (corpus_begin(state)) return -1;
  const char *inputs[] = {corpus_path("text.txt"), NULL};
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  o.inputs = inputs, o.type = "bpe", o.vocab_size = 300, o.output = corpus_path("bpe.model");
  return choir_tokenizer_train(&o) || choir_tokenizer_load(corpus_path("bpe.model"), &tokenizer);
}

static int end(void **state) {
  choir_tokenizer_free(tokenizer);
  return corpus_end(state);
}

static void forget(const char *path) {
  if (!access(path, F_OK) && ch_dir_remove(path)) unlink(path);
}

/* Logits with the routing that the model is served with; frees it. Returns how many. */
static int logits_of(choir_model *model, float *logits) {
  int32_t tokens[B * T];
  const ch_model_config *m = &model->config.model;
  choir_forward_result result;
  int t = model->config.train.sequence_length < T ? model->config.train.sequence_length : T;
  assert_in_range(m->vocab_size, 1, V);
  for (int i = 0; i < B * t; i++) tokens[i] = (i * 7 + 3) % m->vocab_size;
  if (m->moe_every) test_ok(choir_model_set_routing(model, "threshold"));
  int count = B * t * m->vocab_size;
  test_ok(choir_model_forward(model, B, t, tokens, logits, 0, &result));
  choir_model_free(model);
  return count;
}

/* Logits that kernels of different shapes compute; a field that is not carried makes them differ by more than 0.001. */
#define ROUNDING 3e-5

/* CHOIR_OK: the largest difference of logits, at *apart. Else the code of the export. */
static int out_and_back(const choir_config *config, const char *format, double *apart) {
  const char *made = corpus_path("made"), *out = corpus_path("out"), *back = corpus_path("back");
  const choir_model_options exact = {.size = sizeof exact, .compute = "fp32", .threads = 1};
  choir_model *model;
  choir_export_result result;
  choir_import_result imported;
  static float before[B * T * V], after[B * T * V];
  forget(made), forget(out), forget(back);
  test_ok(choir_model_create(config, 1, &exact, &model));
  test_thresholds(model, 0.45, 0.02);
  test_ok(choir_model_save(model, strcmp(format, "gguf") ? NULL : tokenizer, made));
  int count = logits_of(model, before);
  int code = choir_export(
      &(choir_export_options){.checkpoint = made, .format = format, .out = out, .dtype = "f32", .threads = 1}, &result);
  if (code) return code;
  *apart = 0;
  if (choir_config_mask_token(config) >= 0) return CHOIR_OK; /* choir imports no model that fills masks */
  test_ok(choir_import(&(choir_import_options){.from = out, .out = back}, &imported));
  test_ok(choir_model_load(back, &exact, &model, NULL));
  assert_int_equal(logits_of(model, after), count);
  for (int i = 0; i < count; i++) *apart = fmax(*apart, fabs((double)before[i] - (double)after[i]));
  return CHOIR_OK;
}

/* Values to try until one is another than the present one and goes with the other fields. 0: no value does. */
static int set_other(choir_config *config, const choir_field *f) {
  static const char *const numbers[] = {"2", "3", "1", "0.5", "0", "8", "16", "64", "0.25", "1.5", "1000"};
  static const char *const flags[] = {"true", "false"};
  const choir_config before = *config;
  const char *texts[] = {"*.attn.*", "1,2,3"}, *const *values = f->words;
  int count = 0;
  if (f->kind == CHOIR_FIELD_TEXT) values = texts, count = 2;
  if (f->kind == CHOIR_FIELD_FLAG) values = flags, count = 2;
  if (!values) values = numbers, count = (int)(sizeof numbers / sizeof *numbers);
  while (f->words && f->words[count]) count++;
  for (int i = 0; i < count; i++) {
    char is[CHOIR_VALUE_BYTES], was[CHOIR_VALUE_BYTES];
    *config = before;
    if (choir_config_set(config, f->key, values[i]) || choir_config_check(config)) continue;
    test_ok(choir_config_get(config, f->key, is, sizeof is));
    test_ok(choir_config_get(&before, f->key, was, sizeof was));
    if (strcmp(is, was)) return 1;
  }
  *config = before;
  return 0;
}

static void every_field_is_carried_or_refused(void **state) {
  int carried = 0, refused = 0, kinds = (int)(sizeof bases / sizeof *bases);
  int pieces = choir_tokenizer_vocab_size(tokenizer);
  char *tried = calloc((size_t)choir_config_field_count(), 1);
  for (int b = 0; b < kinds; b++) {
    choir_config base;
    double apart;
    ch_config_default(&base);
    test_set(&base, "%s", bases[b].fields);
    test_set(&base, "vocab_size=%d", pieces + ch_config_masked(&base));
    test_ok(out_and_back(&base, bases[b].format, &apart));
    if (!(apart < ROUNDING)) fail_msg("%s: logits are %g apart", bases[b].architecture, apart);
    for (int i = 0; i < choir_config_field_count(); i++) {
      choir_config config = base;
      choir_field f;
      test_ok(choir_config_field_at(i, &f));
      int of_tokenizer = !strcmp(f.key, "model.vocab_size");
      if ((of_tokenizer && !strcmp(bases[b].format, "gguf")) || !set_other(&config, &f)) continue;
      tried[i] = 1;
      int code = out_and_back(&config, bases[b].format, &apart);
      char value[CHOIR_VALUE_BYTES];
      test_ok(choir_config_get(&config, f.key, value, sizeof value));
      if (code) {
        refused++;
        if (code != CHOIR_ERROR_UNSUPPORTED || !strstr(choir_error_message(), "model."))
          fail_msg("%s, %s %s: %s", bases[b].architecture, f.key, value, choir_error_message());
      } else {
        double within =
            strcmp(f.key, "parallel.dispatch_dtype") ? ROUNDING : 10; /* which rounds, so that choices change */
        carried++;
        if (!(apart < within)) fail_msg("%s, %s %s: logits are %g apart", bases[b].architecture, f.key, value, apart);
      }
    }
  }
  for (int i = 0; i < choir_config_field_count(); i++) {
    choir_field f;
    test_ok(choir_config_field_at(i, &f));
    if (!tried[i] && !ch_has_word(ALONE, f.key)) fail_msg("%s: no base takes another value of it", f.key);
  }
  free(tried);
  print_message("%d carried, %d refused\n", carried, refused);
  assert_true(carried > 300 && refused > 50);
}

TEST_MAIN(begin, end, every_field_is_carried_or_refused)
