/* Whole models in double: the derivative of the loss along a random direction of every parameter tensor. Nano (but for
 * its vocabulary) with expert choice; with the other routers a narrower one of as many layers. */
#include "cpu/define.h"
#include "model/config.h"
#include "model/transformer.h"
#include "modern.h"
#include "testing.h"

enum { B = 2, T = 9, V = 300 };

typedef struct model_case {
  ch_exec x;
  ch_transformer net;
  ch_arena weights, gradients;
  int32_t token[B * T], target[B * T];
  int paired;
  double dropout;
  int grad_chunks;
  const char *activation; /* or NULL: the paper's block */
  int shared;
  int bidirectional;
  int few; /* the head runs on weighted targets alone, as when training masks */
  double z_loss;
  const uint8_t *forced_assignment; /* forced routing, or NULL */
  const char *layer_capacity;       /* or NULL */
} model_case;

/* SIZED: as nano. MODERN: narrow, with the block of today. */
typedef enum { SIZED, NARROW, MODERN } sizes;

/* The block of today: layer 0 is dense, all others have experts, every layer's activation is as given, and with
 * shared experts queries and keys are normalised over all heads together. */
static void today(ch_model_config *m, const char *activation, int shared) {
  m->activation = ch_word_number(ch_activation_names, activation);
  m->expert_activation = ch_word_number(ch_activation_names, activation);
  m->router.score = CH_SIGMOID;
  m->dense_layers = m->moe_every = 1;
  m->shared_experts = shared;
  m->qk_norm_whole = shared > 0;
}

static void set_up(model_case *c, const char *router, double consistency, sizes narrow) {
  choir_config config;
  test_ok(ch_config_load(CHOIR_SOURCE_DIR "/configs/nano.json", &config));
  config.model.router = test_router(router);
  config.model.router.consistency_weight = consistency;
  config.model.vocab_size = V;
  if (narrow)
    config.model.d_model = 32, config.model.d_hidden = 48, config.model.d_expert = 40, config.model.heads = 2,
    config.model.experts = 4;
  if (narrow) config.model.d_head = 16;
  if (narrow == MODERN) test_modern(&config);
  if (!strcmp(router, "dense")) config.model.experts = 1;
  if (c->bidirectional) config.model.attention = CH_BIDIRECTIONAL;
  config.model.router.z_loss_weight = c->z_loss;
  if (c->layer_capacity) strcpy(config.model.layer_capacity, c->layer_capacity);
  if (c->activation) today(&config.model, c->activation, c->shared);
  test_ok(ch_transformer_create(&config.model, &c->net));
  test_ok(ch_exec_init(&c->x, "reference", CH_COMPUTE_FP32, 0, 2));
  ch_arena_init(&c->weights, "weights", c->x.memory);
  ch_arena_init(&c->gradients, "gradients", c->x.memory);
  for (int pass = 0; pass < 2; pass++) {
    if (pass) {
      test_ok(ch_arena_commit(&c->weights));
      test_ok(ch_arena_commit(&c->gradients));
    }
    ch_params_alloc_weights(&c->net.params, &c->weights, 0);
    ch_params_alloc_gradients(&c->net.params, &c->gradients, 0);
  }
  test_ok(ch_params_init(&c->net.params, c->x.memory, 3, 2));
  ch_rng rng = ch_rng_make(5, CH_STREAM_TEST, 0);
  for (int i = 0; i < B * T; i++) {
    c->token[i] = (int32_t)ch_rng_below(rng, (uint64_t)i, V);
    c->target[i] = i % 7 == 3 ? -1 : (int32_t)ch_rng_below(rng, (uint64_t)(1000 + i), V);
  }
  c->token[T - 1] = c->target[T - 1] = -1; /* one padded position */
  c->paired = ch_router_draws_per_sequence(&config.model.router) > 1;
  for (int i = B / 2 * T; i < B * T && c->paired; i++) {
    c->token[i] = c->token[i - B / 2 * T];
    c->target[i] = c->target[i - B / 2 * T];
  }
}

static void tear_down(model_case *c) {
  ch_exec_free(&c->x);
  ch_arena_free(&c->weights);
  ch_arena_free(&c->gradients);
  ch_transformer_free(&c->net);
}

/* Loss, auxiliary loss and z-loss, as training adds them up. */
static double run(model_case *c, int gradients) {
  int32_t row[B * T], target[B * T];
  float weight[B * T];
  int rows = 0;
  for (int i = 0; i < B * T; i++)
    if (c->target[i] >= 0) row[rows] = i, weight[rows] = (float)(1 + i % 3), target[rows++] = c->target[i];
  ch_pass pass = {.B = B,
                  .T = T,
                  .token = c->token,
                  .row = c->few ? row : NULL,
                  .rows = c->few ? rows : 0,
                  .target = c->few ? target : c->target,
                  .row_weight = c->few ? weight : NULL,
                  .route = {.training = 1},
                  .gradients = gradients,
                  .paired = c->paired,
                  .dropout = c->dropout,
                  .grad_chunks = c->grad_chunks,
                  .forced_assignment = c->forced_assignment,
                  .capacity = 0.75,
                  .weight = (real)0.05,
                  .aux_scale = (real)0.5,
                  .seed = 11,
                  .micro = 4};
  ch_transformer_run(&c->x, &c->net, &pass);
  return 0.05 * pass.loss_sum + 0.5 * (pass.aux_loss + pass.z_loss);
}

/* Adds the routing of all MoE layers up into one number, so that a change of selection is seen. */
static uint64_t selection(const model_case *c) {
  uint64_t hash = 0;
  for (int l = 0; l < c->net.config.layers; l++) {
    const ch_record *r = &c->net.block[l].saved.routing.record;
    if (c->net.block[l].moe < 0) continue;
    for (int s = 0; s < ch_slots(r); s++) hash = hash * 1099511628211u + (uint64_t)r->slot_token[s] + 1;
    for (int i = 0; i <= r->experts; i++) hash = hash * 1099511628211u + (uint64_t)r->expert_begin[i];
  }
  return hash;
}

/* Relative error of <gradient, v> against the central difference along v; -1 where the step changes the selection. */
static double direction_error(model_case *c, ch_param *p, const real *gradient, uint32_t sub) {
  const double step = 1e-6;
  real *v = test_new_normal(p->count, sub), *kept = test_new(p->count);
  memcpy(kept, p->w, (size_t)p->count * sizeof *kept);
  double side[2], analytic = test_dot(gradient, v, p->count);
  uint64_t chosen[2];
  for (int s = 0; s < 2; s++) {
    for (int64_t i = 0; i < p->count; i++) p->w[i] = kept[i] + (s ? -1 : 1) * step * v[i];
    side[s] = run(c, 1); /* with gradients, so that the records stay on the tape */
    chosen[s] = selection(c);
  }
  memcpy(p->w, kept, (size_t)p->count * sizeof *kept);
  double numeric = (side[0] - side[1]) / (2 * step);
  double size = fabs(numeric) + 1e-2 * sqrt(test_dot(gradient, gradient, p->count)) + 1e-12;
  free(v);
  free(kept);
  return chosen[0] != chosen[1] ? -1 : fabs(numeric - analytic) / size;
}

static void check_case(model_case *given, const char *router, double consistency, sizes narrow) {
  model_case c = *given;
  set_up(&c, router, consistency, narrow);
  run(&c, 1); /* counts */
  test_ok(ch_exec_commit(&c.x));
  run(&c, 1);
  real *first = test_new((int64_t)(c.gradients.used / sizeof *first)); /* later passes set them anew */
  memcpy(first, c.gradients.base, c.gradients.used);
  for (int i = 0; i < c.net.params.count; i++) {
    ch_param *p = &c.net.params.p[i];
    const real *gradient = first + (p->g - c.net.params.p[0].g);
    double error = -1;
    for (uint32_t attempt = 0; error == -1 && attempt < 8; attempt++)
      error = direction_error(&c, p, gradient, (uint32_t)(100 + 8 * i) + attempt);
    if (!(error >= 0 && error <= 2e-6)) {
      fprintf(stderr, "%s: %s: relative error %.3g\n", router, p->name, error);
      fail();
    }
  }
  free(first);
  tear_down(&c);
}

static void check_model(const char *router, double consistency, double dropout, int grad_chunks, sizes narrow) {
  check_case(&(model_case){.dropout = dropout, .grad_chunks = grad_chunks}, router, consistency, narrow);
}

static void every_router(void **state) {
  for (int i = 0; ch_routers[i]; i++)
    check_model(ch_routers[i]->name, 0, 0, 1, strcmp(ch_routers[i]->name, "expert_choice") ? NARROW : SIZED);
}

static void draws_that_agree(void **state) { (void)state, check_model("random", 3, 0, 1, NARROW); }

static void dropout(void **state) {
  check_model("dense", 0, 0.3, 1, NARROW);
  check_model("expert_choice", 0, 0.3, 1, NARROW);
}

static void grad_chunks(void **state) {
  check_model("expert_choice", 0, 0, 2, NARROW);
  check_model("switch_top1", 0, 0, 2, NARROW);
}

static void modern(void **state) {
  check_model("expert_choice", 0, 0, 1, MODERN);
  check_model("gshard_top2", 0, 0.2, 2, MODERN);
}

/* Every activation with and without shared experts, in shards and under dropout. */
static void block_of_today(void **state) {
  static const char *const activations[] = {"gelu", "geglu", "swiglu"};
  for (int i = 0; i < 3; i++)
    for (int shared = 0; shared < 3; shared += 2)
      check_case(
          &(model_case){.grad_chunks = 1 + shared / 2, .dropout = 0.1, .activation = activations[i], .shared = shared},
          "expert_choice", 0, MODERN);
}

static void both_ways(void **state) {
  check_case(&(model_case){.grad_chunks = 2, .bidirectional = 1}, "expert_choice", 0, NARROW);
  check_case(&(model_case){.grad_chunks = 1, .bidirectional = 1}, "gshard_top2", 0, MODERN);
  check_case(&(model_case){.bidirectional = 1, .few = 1}, "expert_choice", 0, NARROW);
}

static void z_loss(void **state) {
  static const char *const some[] = {"expert_choice", "topk", "gshard_top2", "base"};
  for (int i = 0; i < 4; i++) check_case(&(model_case){.grad_chunks = 2, .z_loss = 0.2}, some[i], 0, NARROW);
}

/* Tokens with any number of experts, and experts with any number of tokens. */
static void forced(void **state) {
  static const char *const some[] = {"expert_choice", "topk", "bias_balanced"};
  static uint8_t forced_assignment[4 * B * T * 4];
  for (size_t i = 0; i < sizeof forced_assignment; i++)
    forced_assignment[i] = ch_rng_below(ch_rng_make(6, CH_STREAM_TEST, 0), i, 3) == 0;
  for (int i = 0; i < 3; i++)
    check_case(&(model_case){.forced_assignment = forced_assignment, .z_loss = 0.1}, some[i], 0, NARROW);
}

static void capacity_by_layer(void **state) {
  check_case(&(model_case){.layer_capacity = "1,3"}, "expert_choice", 0, NARROW);
}

TEST_MAIN(NULL, NULL, z_loss, capacity_by_layer, forced, both_ways, every_router, draws_that_agree, dropout,
          grad_chunks, modern, block_of_today)
