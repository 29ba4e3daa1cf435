/* Replicas and hidden shards of experts in double: whatever the router, R x E x H ranks learn what one process learns,
 * to rounding. The
 * selection is discrete, and in double hardly any two scores are so close that rounding could swap them; so twenty
 * steps stay comparable. Steps go down the gradient itself: one that is counted too often, or not by all, is another
 * step. */
#include "base/hash.h"
#include "comm/collective.h"
#include "comm/grid.h"
#include "forked_comm.h"
#include "model/config.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "testing.h"

enum { STEPS = 20, B = 48, T = 6, V = 50, E = 6, D = 16, LAYERS = 2, MAX_ELEMENTS = 1 << 14 };

/* Rounding is 1e-16; sums of some hundred terms and twenty steps that build on each other stay far below. */
static const double tolerance = 1e-12;

/* Its prices stand half-way between scores of tokens, and so may leave another token between two experts, with nothing
 * but rounding to decide: seen from the fourth step on. */
static int steps_of(const ch_model_config *c) { return strcmp(c->router.kind->name, "quantile_balanced") ? STEPS : 2; }

/* A run leaves these, in memory that the processes share. */
typedef struct {
  double loss[STEPS];
  double weight[MAX_ELEMENTS];
  int64_t weights;
} outcome;

typedef struct {
  ch_model_config config;
  int replicas, hidden, micros; /* micros: passes of a step */
  outcome *of;
} job;

typedef struct {
  ch_exec x;
  ch_transformer net;
  ch_arena weights, gradients;
} model;

static void alloc(model *m) {
  ch_params_alloc_weights(&m->net.params, &m->weights, 0);
  ch_params_alloc_gradients(&m->net.params, &m->gradients, 0);
}

static void set_up(model *m, const ch_comm *comm, const job *j) {
  test_ok(ch_transformer_create(&j->config, &m->net));
  test_ok(ch_exec_init(&m->x, "reference", CH_COMPUTE_FP32, 0, 1));
  m->x.comm = comm;
  test_ok(ch_grid_make(comm, j->replicas, j->hidden, &m->x.grid));
  test_ok(ch_params_share(&m->net.params, &m->x.grid));
  ch_arena_init(&m->weights, "weights", m->x.memory);
  ch_arena_init(&m->gradients, "gradients", m->x.memory);
  alloc(m);
  test_ok(ch_arena_commit(&m->weights));
  test_ok(ch_arena_commit(&m->gradients));
  alloc(m);
  test_ok(ch_params_init(&m->net.params, m->x.memory, 3, 1));
}

static void tear_down(model *m) {
  ch_exec_free(&m->x);
  ch_arena_free(&m->weights);
  ch_arena_free(&m->gradients);
  ch_transformer_free(&m->net);
}

/* Loss of micro-batch number `micro` of a step, and its gradients. */
static double run(model *m, const job *j, int step, int micro) {
  int32_t token[B * T], target[B * T];
  ch_rng rng = ch_rng_make(5, CH_STREAM_TEST, (uint32_t)(step * j->micros + micro));
  for (int i = 0; i < B * T; i++) {
    token[i] = (int32_t)ch_rng_below(rng, (uint64_t)i, V);
    target[i] = (token[i] * 7 + 3) % V; /* can be learned */
  }
  ch_pass pass = {.B = B,
                  .T = T,
                  .grad_chunks = B,
                  .token = token,
                  .target = target,
                  .route = {.training = 1},
                  .gradients = 1,
                  .observe = 1,
                  .accumulate = micro > 0,
                  .partial = micro + 1 < j->micros,
                  .weight = (real)1 / (B * T * j->micros),
                  .aux_scale = (real)1 / j->micros,
                  .seed = 11,
                  .micro = (uint64_t)(step * j->micros + micro)};
  ch_transformer_run(&m->x, &m->net, &pass);
  return pass.loss_sum / (B * T * j->micros) + pass.aux_loss / j->micros;
}

static void descend(const ch_params *params) {
  for (int i = 0; i < params->count; i++)
    for (int64_t k = 0; k < params->p[i].count; k++) params->p[i].w[k] -= (real)0.3 * params->p[i].g[k];
}

/* All weights and buffers, experts from their owners in this replica. Nonzero: another replica has other bits. */
static int collect(const model *m, outcome *to) {
  const ch_params *params = &m->net.params;
  const ch_comm *all = m->x.comm;
  to->weights = 0;
  for (int i = 0; i < params->count + params->buffers; i++) {
    const ch_param *p = &params->p[i];
    double *at = to->weight + to->weights;
    to->weights += p->whole;
    if (to->weights > MAX_ELEMENTS) abort();
    test_ok(ch_param_collect(p, &m->x, 0, at));
  }
  int64_t half = (int64_t)(XXH64(to->weight, (size_t)to->weights * sizeof *to->weight, 0) >> 1);
  return ch_comm_max(all, half) != half;
}

static int learn(const ch_comm *comm, void *context) {
  const job *j = context;
  model m = {.weights = {0}};
  outcome *mine = comm->rank ? calloc(1, sizeof *mine) : j->of;
  set_up(&m, comm, j);
  run(&m, j, 0, 0); /* counts */
  test_ok(ch_exec_commit(&m.x));
  for (int step = 0; step < steps_of(&j->config); step++) {
    mine->loss[step] = 0;
    for (int micro = 0; micro < j->micros; micro++) mine->loss[step] += run(&m, j, step, micro);
    descend(&m.net.params);
  }
  int differ = collect(&m, mine);
  for (int l = 0; l < LAYERS && !forked_means && comm->size > 1; l++) /* it really went in rounds */
    differ |= m.net.block[l].moe >= 0 && !m.net.block[l].saved.dispatch.round.several;
  tear_down(&m);
  if (comm->rank) free(mine);
  return differ;
}

static ch_model_config config_of(const char *router) {
  choir_config c;
  ch_config_default(&c);
  c.model.vocab_size = V;
  c.model.layers = LAYERS;
  c.model.d_model = D;
  c.model.d_hidden = c.model.d_expert = 12;
  c.model.heads = 2;
  c.model.experts = strcmp(router, "dense") ? E : 1;
  c.model.router = test_router(router);
  return c.model;
}

static void *shared(size_t bytes) {
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* layouts: replicas, groups of experts, hidden shards; and so on until 0. */
static void same_as_one(ch_model_config config, int micros, const int (*layout)[3]) {
  outcome *one = shared(sizeof *one), *many = shared(sizeof *many);
  job j = {.config = config, .replicas = 1, .hidden = 1, .micros = micros, .of = one};
  if (forked_run(1, 0, learn, &j)) fail_msg("%s: one process", config.router.kind->name);
  int steps = steps_of(&config);
  assert_true(one->loss[steps - 1] < 0.99 * one->loss[0]); /* else there is nothing to compare */
  for (j.of = many; **layout; layout++) {
    int R = (*layout)[0], E = (*layout)[1], H = (*layout)[2];
    j.replicas = R, j.hidden = H;
    if (forked_run(R * E * H, 0, learn, &j))
      fail_msg("%s, %d x %d x %d ranks: replicas differ", config.router.kind->name, R, E, H);
    assert_int_equal(one->weights, many->weights);
    double loss = test_error(many->loss, one->loss, steps),
           weights = test_error(many->weight, one->weight, one->weights);
    if (!(loss <= tolerance && weights <= tolerance))
      fail_msg("%s, %d x %d x %d ranks, %d passes a step: losses differ by %g, weights by %g", config.router.kind->name,
               R, E, H, micros, loss, weights);
  }
  munmap(one, sizeof *one);
  munmap(many, sizeof *many);
}

static void every_layout(void **state) {
  same_as_one(config_of("expert_choice"), 1,
              (const int[][3]){{2, 1, 1},
                               {2, 2, 1},
                               {2, 3, 1},
                               {2, 4, 1},
                               {4, 1, 1},
                               {4, 2, 1},
                               {4, 3, 1},
                               {4, 4, 1},
                               {1, 1, 2},
                               {1, 2, 2},
                               {1, 1, 3},
                               {1, 3, 4},
                               {1, 6, 2},
                               {2, 1, 2},
                               {2, 2, 3},
                               {4, 2, 2},
                               {0}});
}

/* Also with several passes a step: gradients of experts add up in each replica, and over replicas once. */
static void every_router(void **state) {
  const int layout[][2][3] = {{{2, 2, 1}}, {{1, 3, 2}}, {{4, 1, 1}}, {{2, 3, 1}}, {{2, 1, 2}},
                              {{4, 2, 1}}, {{1, 2, 4}}, {{2, 4, 1}}, {{2, 2, 2}}};
  for (int i = 0; ch_router_names[i]; i++) {
    ch_model_config c = config_of(ch_router_names[i]);
    const int(*l)[3] = layout[i % 9];
    const int one_group[2][3] = {{l[0][0], 1, l[0][1] * l[0][2]}};
    same_as_one(c, 1 + i % 2, l[0][2] > 1 && c.experts == 1 ? one_group : l); /* of one expert no more than a group */
  }
}

/* Gated experts and shared ones, cut along their hidden width too. */
static void block_of_today(void **state) {
  ch_model_config c = config_of("expert_choice");
  c.activation = CH_SWIGLU, c.expert_activation = CH_SWIGLU;
  c.router.score = CH_SIGMOID;
  c.shared_experts = c.dense_layers = c.moe_every = 1;
  same_as_one(c, 2, (const int[][3]){{2, 2, 1}, {1, 2, 2}, {2, 1, 3}, {0}});
}

/* Rows go in rounds, as there is hardly any room. */
static void exchange_in_rounds(void **state) {
  forked_means = 0;
  same_as_one(config_of("expert_choice"), 2, (const int[][3]){{2, 2, 1}, {1, 2, 2}, {2, 1, 3}, {0}});
  forked_means = CH_COMM_MEANS;
}

TEST_MAIN(NULL, NULL, every_layout, every_router, block_of_today, exchange_in_rounds)
