/* Weights to begin another training with: a dense model's as all experts of another one, whose loss is then the same
 * where gates sum to 1. */
#include <sys/stat.h>
#include <unistd.h>

#include "model/weights.h"
#include "model_testing.h"

static char path[] = "/tmp/choir-upcycle-XXXXXX", file[64];

static choir_model *fresh(const choir_config *config) {
  choir_model_options run = {.size = sizeof run, .backend = "cpu", .threads = 2};
  choir_model *model;
  test_ok(choir_model_create(config, 77, &run, &model));
  return model;
}

static void save(const choir_config *config) {
  choir_model *model = fresh(config);
  test_ok(ch_weights_save(&model->net.params, &model->x, NULL, file, 0));
  choir_model_free(model);
}

/* A model begun with the file; its loss on some tokens, and its layers that were upcycled. */
static double start(const choir_config *config, int *upcycled) {
  int32_t token[MODEL_B * MODEL_T], target[MODEL_B * MODEL_T];
  choir_model *model = model_fresh(config);
  test_ok(ch_weights_start(&model->net.params, &model->x, file, CH_ROUTER_ALL, upcycled));
  ch_model_weights_changed(model);
  model_tokens(token, MODEL_B * MODEL_T, 3);
  model_tokens(target, MODEL_B * MODEL_T, 4);
  test_ok(ch_model_plan(model, MODEL_B, MODEL_T, 0));
  ch_pass pass = {.B = MODEL_B, .T = MODEL_T, .token = token, .target = target};
  ch_transformer_run(&model->x, &model->net, &pass);
  for (int i = 0; i < model->net.params.count; i++) {
    const ch_param *p = &model->net.params.p[i];
    for (int64_t j = 0; p->expert && j < p->count; j++) assert_true(p->w[j] == p->w[j % (p->count / p->shape[0])]);
  }
  choir_model_free(model);
  return pass.loss_sum / (MODEL_B * MODEL_T);
}

/* Every token has room with every expert that it asks for: the loss is the dense one's to rounding, and is not where
 * gates are scores. */
static void same_loss(void **state) {
  static const char *const routers[] = {"switch_top1", "gshard_top2", "quantile_balanced", "expert_choice"};
  choir_config dense = model_config("dense");
  int upcycled;
  save(&dense);
  double want = start(&dense, &upcycled);
  assert_int_equal(upcycled, 0);
  for (int i = 0; i < 4; i++)
    for (int normalize = 1; normalize >= 0; normalize--) {
      choir_config c = model_config(routers[i]);
      if (i != 2) c.model.router.capacity_factor = i == 3 ? MODEL_E - 1 : MODEL_E; /* seven of eight experts a token */
      c.model.router.normalize_gates = normalize;
      if (i == 2) c.model.router.experts_per_token = 2;
      double got = start(&c, &upcycled);
      assert_int_equal(upcycled, 2);
      if (normalize && !(fabs(got - want) < 2e-6)) fail_msg("%s: loss %.9g, dense %.9g", routers[i], got, want);
      if (!normalize && i != 1 && !(fabs(got - want) > 1e-5)) fail_msg("%s: as with scaled gates", routers[i]);
    }
}

/* A dense layer becomes experts of its own activation: the loss is the dense model's. */
static void from_dense_layers(void **state) {
  static const char *const activations[] = {"gelu", "geglu", "swiglu"};
  for (int i = 0; i < 3; i++) {
    choir_config c = model_config("gshard_top2");
    int upcycled;
    c.model.d_expert = 0;
    c.model.dense_layers = 1;
    c.model.moe_every = 0;
    c.model.activation = ch_word_number(ch_activation_names, activations[i]),
    c.model.expert_activation = ch_word_number(ch_activation_names, activations[i]);
    save(&c);
    double want = start(&c, &upcycled);
    assert_int_equal(upcycled, 0);
    c.model.moe_every = 1;
    c.model.router.capacity_factor = MODEL_E;
    double got = start(&c, &upcycled);
    assert_int_equal(upcycled, 3);
    if (!(fabs(got - want) < 2e-6)) fail_msg("%s: loss %.9g, dense %.9g", activations[i], got, want);
  }
}

/* Into the same shapes it is loading. */
static void same_shapes(void **state) {
  choir_config c = model_config("capped_expert_choice");
  int upcycled;
  save(&c);
  choir_model *a = fresh(&c);
  c.train.seed = 3;
  choir_model_options run = {.size = sizeof run, .backend = "cpu"};
  choir_model *b;
  test_ok(choir_model_create(&c, 8, &run, &b));
  test_ok(ch_weights_start(&b->net.params, &b->x, file, CH_ROUTER_ALL, &upcycled));
  assert_int_equal(upcycled, 0);
  for (int i = 0; i < a->net.params.count + a->net.params.buffers; i++)
    assert_memory_equal(a->net.params.p[i].w, b->net.params.p[i].w, (size_t)a->net.params.p[i].count * sizeof(real));
  choir_model_free(a), choir_model_free(b);
}

/* A tensor is as in the file where it is kept, else as in a model that has just begun. */
static void expect(const choir_model *from, const choir_model *fresh, const choir_model *got, const char *name,
                   int kept) {
  const choir_model *all[] = {kept ? from : fresh, got};
  const ch_param *p[2];
  for (int i = 0; i < 2; i++) assert_non_null(p[i] = ch_params_find(&all[i]->net.params, name));
  if (memcmp(p[0]->w, p[1]->w, (size_t)p[0]->count * sizeof(real))) fail_msg("%s: kept %d", name, kept);
}

/* Another router keeps experts and the weight of scores, where both have one; cut-offs and centroids begin anew. */
static void other_routers(void **state) {
  static const struct {
    const char *from, *to;
    ch_router_start start;
    int kept; /* the router's weight; -1: it has none */
  } of[] = {{"gshard_top2", "expert_choice", CH_ROUTER_WEIGHT, 1},
            {"expert_choice", "bias_balanced", CH_ROUTER_WEIGHT, 1},
            {"capped_expert_choice", "switch_top1", CH_ROUTER_WEIGHT, 1},
            {"hash", "expert_choice", CH_ROUTER_WEIGHT, 0},
            {"expert_choice", "random", CH_ROUTER_WEIGHT, -1},
            {"kmeans", "gshard_top2", CH_ROUTER_NOTHING, 0},
            {"expert_choice", "kmeans", CH_ROUTER_NOTHING, 0}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    choir_config from = model_config(of[i].from), to = model_config(of[i].to);
    choir_model_options run = {.size = sizeof run, .backend = "cpu"};
    choir_model *a = fresh(&from), *b, *anew;
    const ch_param *cut = ch_params_find(&a->net.params, "layers.1.moe.thresholds");
    for (int e = 0; cut && e < MODEL_E; e++) cut->w[e] = (real)0.5;
    test_ok(ch_weights_save(&a->net.params, &a->x, NULL, file, 0));
    test_ok(choir_model_create(&to, 8, &run, &b));
    test_ok(choir_model_create(&to, 8, &run, &anew));
    int upcycled;
    test_ok(ch_weights_start(&b->net.params, &b->x, file, of[i].start, &upcycled));
    assert_int_equal(upcycled, 0);
    expect(a, anew, b, "layers.1.moe.experts.w1", 1);
    expect(a, anew, b, "embed.weight", 1);
    if (of[i].kept >= 0) expect(a, anew, b, "layers.1.moe.router.weight", of[i].kept);
    if (ch_params_find(&b->net.params, "layers.1.moe.thresholds")) expect(a, anew, b, "layers.1.moe.thresholds", 0);
    choir_model_free(a), choir_model_free(b), choir_model_free(anew);
  }
}

static void refuse(const choir_config *config, const char *what, const char *more) {
  int upcycled;
  choir_model *model = fresh(config);
  assert_int_equal(ch_weights_start(&model->net.params, &model->x, file, CH_ROUTER_ALL, &upcycled), CHOIR_ERROR_FORMAT);
  if (!strstr(choir_error_message(), what) || !strstr(choir_error_message(), more))
    fail_msg("%s", choir_error_message());
  choir_model_free(model);
}

static void other_shapes(void **state) {
  choir_config dense = model_config("dense"), c = model_config("switch_top1");
  save(&dense);
  c.model.d_hidden = 40;
  refuse(&c, "[48,32]", "[40,32]");
  c = model_config("switch_top1");
  c.model.layers = 5;
  refuse(&c, "layers.4.", "missing");
  c.model.layers = 3;
  refuse(&c, "not part of", "of its");
  c = model_config("switch_top1");
  c.model.moe_every = 1;
  refuse(&c, "layers.0.moe.experts.w1", "layers.0.ffn.gate.weight");
  dense.model.moe_every = 0;
  save(&dense);
  c = model_config("switch_top1");
  refuse(&c, "layers.1.moe.experts.w1", "model.expert_activation");
  choir_config several = model_config("hash");
  save(&several);
  several.model.experts = 16;
  refuse(&several, "[8,32,", "[16,32,");
}

/* A first tensor of another type as large, and one whose last number is not finite. */
static void other_values(void **state) {
  choir_config c = model_config("hash");
  for (int infinite = 0; infinite < 2; infinite++) {
    choir_tensor all[64];
    choir_tensors *t;
    char says[32] = "is not of type F32";
    save(&c);
    test_ok(choir_tensors_load(file, 1, &t));
    int count = choir_tensors_count(t), upcycled;
    for (int i = 0; i < count; i++) all[i] = *choir_tensors_at(t, i);
    size_t last = all[0].bytes / sizeof(float) - 1;
    float *values = malloc(all[0].bytes);
    memcpy(values, all[0].data, all[0].bytes);
    all[0].data = values;
    if (infinite)
      values[last] = INFINITY, snprintf(says, sizeof says, "element %zu is inf", last);
    else
      all[0].dtype = CHOIR_I32;
    test_ok(choir_tensors_write(file, all, count, NULL));
    choir_model *model = fresh(&c);
    test_fails(ch_weights_start(&model->net.params, &model->x, file, CH_ROUTER_ALL, &upcycled),
               infinite ? CHOIR_ERROR_NUMERIC : CHOIR_ERROR_FORMAT, says);
    test_fails(ch_weights_save(&model->net.params, &model->x, NULL, path, 0), CHOIR_ERROR_IO, path); /* a directory */
    choir_model_free(model);
    choir_tensors_free(t);
    free(values);
  }
}

static int set_up(void **state) {
  if (!mkdtemp(path)) return -1;
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  return 0;
}

static int clean_up(void **state) { return unlink(file) || rmdir(path); }

TEST_MAIN(set_up, clean_up, same_loss, from_dense_layers, same_shapes, other_routers, other_shapes, other_values)
