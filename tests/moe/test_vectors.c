/* choir against an independent reference: tests/vectors/make.py wrote what is compared here, in double, without choir's
 * code. Everything goes in through the public API (the optimizers through the table of ops), on every backend. */
#include "choir/choir.h"
#include "moe/router.h"
#include "npy/npy.h"
#include "testing.h"

#define VECTORS CHOIR_SOURCE_DIR "/tests/vectors/"

static const char *const backends[] = {"reference", "cpu", NULL};

/* A case sets these fields, from the line that make.py's describe() writes. */
typedef struct options {
  ch_router_spec router;
  int sequence_length, logits, experts, mask;
} options;

/* The fixtures name all options of every router: those that it takes. */
static void set_taken(ch_router_spec *o, const ch_router_spec *all) {
  const ch_router *router = o->kind;
#define SET(option) \
  if (ch_router_takes(router, CH_ROUTER_TAKES(option))) o->option = all->option
  SET(capacity_factor);
  SET(aux_loss_weight);
  SET(experts_per_token);
  SET(cap);
  SET(group_size);
#undef SET
  if (ch_router_takes(router, CH_ROUTER_TAKES(pool))) o->pool = all->pool;
}

static options options_of(const choir_tensors *file, const char *name) {
  options o = {.mask = 0};
  ch_router_spec all;
  const char *line = choir_tensors_metadata(file, name), *more;
  assert_non_null(line);
  char router[CHOIR_NAME_BYTES], pool[CHOIR_NAME_BYTES];
  assert_int_equal(sscanf(line, "router=%31s", router), 1);
  o.router = test_router(router);
  all = o.router;
  if ((more = strstr(line, " K="))) assert_int_equal(sscanf(more, " K=%d cap=%d", &all.experts_per_token, &all.cap), 2);
  if ((more = strstr(line, " group="))) assert_int_equal(sscanf(more, " group=%d", &all.group_size), 1);
  int fields = sscanf(line, "router=%31s c=%*s pool=%31s T=%d logits=%d aux=%*s e=%d mask=%d", router, pool,
                      &o.sequence_length, &o.logits, &o.experts, &o.mask);
  assert_true(fields == 4 || fields == 6);
  all.pool = ch_word_number(ch_router_pools, pool);
  all.capacity_factor = ch_number(strstr(line, " c=") + 3, NULL);
  all.aux_loss_weight = ch_number(strstr(line, " aux=") + 5, NULL);
  set_taken(&o.router, &all);
  o.router.jitter = 0;
  return o;
}

/* The tensor PREFIX.KEY, or NULL. */
static const choir_tensor *find(const choir_tensors *file, const char *prefix, const char *key) {
  char name[160];
  snprintf(name, sizeof name, "%s.%s", prefix, key);
  return choir_tensors_find(file, name);
}

static const void *data_of(const choir_tensors *file, const char *prefix, const char *key) {
  const choir_tensor *t = find(file, prefix, key);
  if (!t) fail_msg("vectors have no tensor %s.%s", prefix, key);
  return t->data;
}

/* Calls `check` for every name in the file's list "cases". */
static int each_case(const choir_tensors *file, void (*check)(const choir_tensors *, const char *)) {
  char *list = strdup(choir_tensors_metadata(file, "cases")), *rest = list;
  int count = 0;
  for (char *name; (name = strsep(&rest, " ")); count++) check(file, name);
  free(list);
  return count;
}

/* test_close, but the message says which case on which backend. */
static void close_case(const float *got, const void *want, int64_t count, double tolerance, const char *name,
                       const char *what) {
  char text[200];
  snprintf(text, sizeof text, "%s %s", name, what);
  test_close_at(got, want, count, tolerance, text, __FILE__, __LINE__);
}

static void close_number(double got, double want, double tolerance, const char *name, const char *what) {
  if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
    fail_msg("%s: %s is %.9g, wanted %.9g", name, what, got, want);
}

/* summary: tokens, capacity, assignments, dropped, auxiliary loss, gate mass. */
static void check_stats(const choir_route_stats *s, const double *summary, const char *name) {
  close_number(s->tokens, summary[0], 0, name, "tokens");
  close_number(s->capacity, summary[1], 0, name, "capacity");
  close_number((double)s->assignments, summary[2], 0, name, "assignments");
  close_number((double)s->dropped, summary[3], 0, name, "dropped");
  close_number(s->aux_loss, summary[4], 1e-6, name, "aux_loss");
  close_number(s->gate_mass, summary[5], 1e-6, name, "gate_mass");
}

static void check_counts(const int64_t *got, const int64_t *want, int count, const char *name, const char *what) {
  for (int i = 0; i < count; i++)
    if (got[i] != want[i])
      fail_msg("%s: %s[%d] is %lld, wanted %lld", name, what, i, (long long)got[i], (long long)want[i]);
}

static void check_route(const choir_tensors *file, const char *name) {
  options o = options_of(file, name);
  char matrix[64];
  snprintf(matrix, sizeof matrix, "%.*s", (int)strcspn(name, "."), name);
  const choir_tensor *scores = find(file, matrix, "scores"), *valid = find(file, matrix, "valid");
  assert_non_null(scores);
  int n = (int)scores->shape[0], e = (int)scores->shape[1];
  float *gates = test_new((int64_t)n * e);
  test_poison(gates, (int64_t)n * e);
  choir_route_stats s = {0};
  test_ok(choir_route(&(choir_route_request){.config = test_config_of(&o.router),
                                             .n = n,
                                             .e = e,
                                             .scores = scores->data,
                                             .is_logits = o.logits,
                                             .tokens = choir_tensors_find(file, "ids")->data,
                                             .valid = valid ? valid->data : NULL,
                                             .sequence_length = o.sequence_length,
                                             .training = 1},
                      gates, &s));
  close_case(gates, data_of(file, name, "gates"), (int64_t)n * e, 1e-6, name, "gates");
  check_stats(&s, data_of(file, name, "summary"), name);
  check_counts(s.load, data_of(file, name, "load"), e, name, "load");
  check_counts(s.demand, data_of(file, name, "demand"), e, name, "demand");
  check_counts(s.histogram, data_of(file, name, "histogram"), e + 1, name, "histogram");
  choir_route_stats_clear(&s);
  free(gates);
}

static void routers(void **state) {
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "routers.safetensors", 1, &file));
  assert_int_equal(each_case(file, check_route), 85);
  choir_tensors_free(file);
  test_ok(choir_tensors_load(VECTORS "token_routers.safetensors", 1, &file));
  assert_int_equal(each_case(file, check_route), 30);
  choir_tensors_free(file);
  test_ok(choir_tensors_load(VECTORS "pools.safetensors", 1, &file));
  assert_int_equal(each_case(file, check_route), 18);
  choir_tensors_free(file);
}

static const char *layer_backend;

/* One layer, forward and backward; gradients start from 1, because they accumulate. */
static void check_layer(const choir_tensors *file, const char *name) {
  options o = options_of(file, name);
  const char *input = o.experts == 1 ? "1" : "6";
  const choir_tensor *x = find(file, input, "x"), *w1 = find(file, input, "w1");
  int64_t n = x->shape[0], d = x->shape[1], e = o.experts, h = w1->shape[2], sizes[3] = {d * e, e * d * h, e * d * h};
  choir_layer_options options = CHOIR_LAYER_OPTIONS_INIT;
  options.tokens = (int)n, options.d_model = (int)d, options.d_hidden = (int)h, options.experts = (int)e;
  options.sequence_length = o.sequence_length, options.backend = layer_backend;
  options.config = test_config_of(&o.router);
  choir_layer *layer;
  test_ok(choir_layer_create(&options, &layer));

  choir_layer_weights w = {.router = (float *)data_of(file, input, "router"),
                           .w1 = (float *)w1->data,
                           .w2 = (float *)data_of(file, input, "w2")};
  float *out = test_new(n * d), *dx = test_new(n * d), *gradient[3];
  for (int i = 0; i < 3; i++) {
    gradient[i] = test_new(sizes[i]);
    for (int64_t j = 0; j < sizes[i]; j++) gradient[i][j] = 1;
  }
  choir_layer_weights dw = {.router = gradient[0], .w1 = gradient[1], .w2 = gradient[2]};
  test_poison(out, n * d), test_poison(dx, n * d);
  test_ok(choir_layer_forward(layer, &w, (int)n, x->data, choir_tensors_find(file, "ids")->data,
                              o.mask ? choir_tensors_find(file, "mask")->data : NULL, 1, out));
  choir_route_stats s = {0};
  test_ok(choir_layer_get_route_stats(layer, &s));
  test_ok(choir_layer_backward(layer, &w, x->data, data_of(file, input, "cotangent"), dx, &dw));

  check_stats(&s, data_of(file, name, "summary"), name);
  close_case(out, data_of(file, name, "out"), n * d, 2e-6, name, "out");
  close_case(dx, data_of(file, name, "dx"), n * d, 2e-6, name, "dx");
  static const char *const keys[3] = {"drouter", "dw1", "dw2"};
  for (int i = 0; i < 3; i++) {
    for (int64_t j = 0; j < sizes[i]; j++) gradient[i][j] -= 1;
    close_case(gradient[i], data_of(file, name, keys[i]), sizes[i], 4e-6, name, keys[i]);
    free(gradient[i]);
  }
  choir_route_stats_clear(&s);
  choir_layer_free(layer);
  free(out), free(dx);
}

static void layers(void **state) {
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "layer.safetensors", 1, &file));
  for (int b = 0; (layer_backend = backends[b]); b++) assert_int_equal(each_case(file, check_layer), 10);
  choir_tensors_free(file);
  test_ok(choir_tensors_load(VECTORS "token_layer.safetensors", 1, &file));
  for (int b = 0; (layer_backend = backends[b]); b++) assert_int_equal(each_case(file, check_layer), 6);
  choir_tensors_free(file);
  test_ok(choir_tensors_load(VECTORS "pool_layer.safetensors", 1, &file));
  for (int b = 0; (layer_backend = backends[b]); b++) assert_int_equal(each_case(file, check_layer), 4);
  choir_tensors_free(file);
}

static void check_model(const char *router, const char *backend, const ch_npy *tokens) {
  char path[512];
  choir_tensors *expected;
  snprintf(path, sizeof path, VECTORS "model/%s/expected.safetensors", router);
  test_ok(choir_tensors_load(path, 1, &expected));
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  run.compute = "fp32", run.backend = backend;
  choir_model *model;
  snprintf(path, sizeof path, VECTORS "model/%s", router);
  test_ok(choir_model_load(path, &run, &model, NULL));

  const choir_tensor *logits = choir_tensors_find(expected, "logits");
  int64_t count = logits->shape[0] * logits->shape[1] * logits->shape[2];
  float *got = test_new(count);
  choir_forward_result result = {.loss = NAN, .aux_loss = NAN};
  for (int gradients = 0; gradients < 2; gradients++) {
    test_poison(got, count);
    test_ok(choir_model_forward(model, (int)tokens->shape[0], (int)tokens->shape[1], tokens->data, got, gradients,
                                &result));
    const choir_tensor *all = choir_tensors_find(expected, "losses");
    const double *losses = all->data;
    close_number(result.loss, losses[0], 1e-6, router, "loss");
    close_number(result.aux_loss, losses[1], 1e-6, router, "aux_loss");
    close_number(result.z_loss, all->shape[0] > 2 ? losses[2] : 0, 1e-6, router, "z_loss");
    close_case(got, logits->data, count, 4e-6, router, "logits");
  }
  int parameters = choir_model_parameter_count(model), trained = 0;
  for (int i = 0; i < parameters; i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    if (!p.gradient) continue;
    trained++;
    const choir_tensor *want = choir_tensors_find(expected, p.name);
    if (!want || want->dims != p.dims) fail_msg("%s: the reference has no tensor '%s' of that shape", router, p.name);
    int64_t size = 1;
    for (int k = 0; k < p.dims; k++) assert_int_equal(p.shape[k], want->shape[k]), size *= p.shape[k];
    close_case(p.gradient, want->data, size, 2e-5, router, p.name);
  }
  assert_int_equal(trained, choir_tensors_count(expected) - 3);

  test_ok(choir_model_set_routing(model, "threshold"));
  test_poison(got, count);
  test_ok(choir_model_forward(model, (int)tokens->shape[0], (int)tokens->shape[1], tokens->data, got, 0, &result));
  close_case(got, choir_tensors_find(expected, "threshold_logits")->data, count, 4e-6, router, "threshold logits");
  free(got);
  choir_model_free(model);
  choir_tensors_free(expected);
}

static void models(void **state) {
  ch_npy tokens;
  test_ok(ch_npy_read(VECTORS "tokens.npy", CH_NPY_INT32, 2, &tokens));
  for (int b = 0; backends[b]; b++)
    for (const char *const *router = choir_router_names(); *router; router++)
      check_model(*router, backends[b], &tokens);
  ch_npy_free(&tokens);
}

static void buckets(void **state) {
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "buckets.safetensors", 1, &file));
  for (int i = 0; i < choir_tensors_count(file); i++) {
    const choir_tensor *t = choir_tensors_at(file, i);
    int count, far;
    assert_int_equal(sscanf(t->name, "%d.%d", &count, &far), 2);
    for (int j = 0; j < t->shape[0]; j++)
      assert_int_equal(ch_attention_bucket(j, count, far), ((const int32_t *)t->data)[j]);
  }
  choir_tensors_free(file);
}

/* Three steps of each; the settings stand in make.py's make_optimizers. */
static void check_optimizers(const choir_tensors *file, const char *name, const char *backend) {
  const choir_tensor *start = find(file, name, "w");
  const float *gradients = data_of(file, name, "g"), *adafactor = data_of(file, name, "adafactor"),
              *adamw = data_of(file, name, "adamw");
  int64_t batch = start->dims == 3 ? start->shape[0] : 1, cols = start->shape[start->dims - 1];
  int64_t rows = start->dims == 1 ? 1 : start->shape[start->dims - 2], count = batch * rows * cols;
  real *w = test_new(count), *w2 = test_new(count), *row = test_new(batch * rows), *col = test_new(batch * cols);
  real *m = test_new(count), *v = test_new(count), *g = test_new(count); /* a device cannot read the mapped file */
  memcpy(w, start->data, start->bytes), memcpy(w2, start->data, start->bytes);
  for (int t = 1; t <= 3; t++, gradients += count, adafactor += count, adamw += count) {
    memcpy(g, gradients, (size_t)count * sizeof *g);
    double beta2 = 0.99 * (1 - pow(0.99, t - 1)) / (1 - pow(0.99, t));
    ch_adafactor_args a = {.batch = batch,
                           .rows = rows,
                           .cols = cols,
                           .w = w,
                           .g = g,
                           .row = start->dims > 1 ? row : NULL,
                           .col = col,
                           .rate = 0.05,
                           .beta2 = beta2,
                           .eps1 = 1e-30,
                           .eps2 = 1e-3,
                           .clip = 1,
                           .grad_scale = 0.5};
    ch_adamw_args b = {.count = count,
                       .w = w2,
                       .g = g,
                       .m = m,
                       .v = v,
                       .step = t,
                       .rate = 0.02,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .weight_decay = 0.1,
                       .grad_scale = 0.5};
    TEST_EXEC(backend, CH_COMPUTE_FP32, 2, x.ops->adafactor(&x, &a));
    TEST_EXEC(backend, CH_COMPUTE_FP32, 2, x.ops->adamw(&x, &b));
    close_case(w, adafactor, count, 1e-6, name, "adafactor");
    close_case(w2, adamw, count, 1e-6, name, "adamw");
  }
  free(w), free(w2), free(row), free(col), free(m), free(v), free(g);
}

static void optimizers(void **state) {
  static const char *const names[] = {"matrix", "experts", "vector", "tiny", NULL};
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "optimizers.safetensors", 1, &file));
  for (int b = 0; backends[b]; b++)
    for (int i = 0; names[i]; i++) check_optimizers(file, names[i], backends[b]);
  choir_tensors_free(file);
}

TEST_MAIN(NULL, NULL, buckets, routers, layers, models, optimizers)
