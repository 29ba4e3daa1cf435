/* Several ranks train what one process trains: the same weights, results and statistics, bit for bit, whatever the
 * router, with as many ranks as divide train.grad_chunks. */
#include "base/hash.h"
#include "comm/collective.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "model_testing.h"
#include "moe_testing.h"
#include "plan/traffic.h"
#include "train/step.h"

enum { STEPS = 2, RANKS_T = 12, RANKS_B = 24, MAX_TOKENS = 3 * RANKS_B * RANKS_T };

/* A run leaves sums of all that is to be equal, in memory that the processes share. */
typedef struct {
  uint64_t weights[STEPS], results[STEPS], statistics[STEPS];
} trace;

typedef struct {
  choir_config config;
  const char *what;
  int flat;  /* routers begin with zeros: all scores are equal, and ties fall by the tokens' order */
  trace *of; /* [FORKED_MOST + 1], by number of ranks */
} job;

/* Hashes the weights of all ranks: experts come from their owners. */
static uint64_t hash_weights(const choir_model *model) {
  const ch_params *params = &model->net.params;
  uint64_t h = 1;
  for (int i = 0; i < params->count + params->buffers; i++) {
    const ch_param *p = &params->p[i];
    real *whole = test_new(p->whole);
    test_ok(ch_param_collect(p, &model->x, 0, whole));
    h = XXH64(whole, (size_t)p->whole * sizeof *whole, h);
    free(whole);
  }
  return h;
}

static uint64_t hash_statistics(const choir_model *model) {
  uint64_t h = 1;
  size_t e = (size_t)model->config.model.experts;
  for (int l = 0; l < model->net.moe_layers; l++) {
    const choir_route_stats *s = &model->net.stats[l];
    const double sums[] = {s->aux_loss, s->z_loss, s->gate_mass};
    h = XXH64(s->load, e * sizeof *s->load, h);
    h = XXH64(s->demand, e * sizeof *s->demand, h);
    h = XXH64(s->histogram, (e + 1) * sizeof *s->histogram, h);
    h = XXH64(sums, sizeof sums, h);
    h = XXH64(&s->dropped, sizeof s->dropped, h);
  }
  return h;
}

static uint64_t hash_result(const choir_trainer_result *r) {
  const double all[] = {r->loss, r->aux_loss,  r->learning_rate, r->gradient_norm, r->dropped,   r->unrouted,
                        r->fill, r->imbalance, r->z_loss,        r->fullest[0],    r->fullest[1]};
  return XXH64(all, sizeof all, 1);
}

static void new_trainer(const ch_comm *comm, const ch_layout *layout, const choir_config *config, ch_trainer *t) {
  const choir_ranks ranks = {
      .comm = comm, .replicas = layout->replicas, .hidden = layout->hidden, .dense_sharded = layout->dense_sharded};
  choir_model_options run = {
      .size = sizeof run, .backend = "cpu", .threads = 1 + comm->size % 2, .emulate_bf16 = 1, .ranks = &ranks};
  choir_model *model;
  test_ok(ch_model_prepare(config, &run, &model));
  test_ok(ch_trainer_plan(model, t));
  test_ok(ch_trainer_commit(t));
  test_ok(ch_params_init(&model->net.params, model->x.memory, 5, 1));
  ch_model_weights_changed(model);
}

static int train(const ch_comm *comm, void *context) {
  const job *j = context;
  ch_trainer t;
  choir_trainer_result r;
  trace *mine = comm->rank ? calloc(1, sizeof *mine) : &j->of[comm->size];
  static int32_t token[MAX_TOKENS], target[MAX_TOKENS];
  new_trainer(comm, &(ch_layout){.dense_sharded = comm->size % 4 == 0}, &j->config, &t); /* on 4 and 8 */
  for (int l = 0; l < j->config.model.layers && j->flat; l++) {
    const ch_param *p = t.model->net.block[l].router;
    if (p) memset(CH_AS_HOST(void, p->w), 0, (size_t)p->count * sizeof(real));
  }
  for (int i = 0; i < STEPS; i++) {
    model_tokens(token, MAX_TOKENS, (uint32_t)i);
    model_tokens(target, MAX_TOKENS, 50 + (uint32_t)i);
    test_ok(ch_trainer_step(&t, token, target, &r));
    mine->weights[i] = hash_weights(t.model);
    mine->results[i] = hash_result(&r);
    mine->statistics[i] = hash_statistics(t.model);
  }
  if (!forked_means && comm->size > 1)
    for (int l = 0; l < j->config.model.layers; l++)
      if (t.model->net.block[l].moe >= 0 && !t.model->net.block[l].saved.dispatch.round.several) return 1;
  int64_t last = (int64_t)(mine->weights[STEPS - 1] >> 1);
  int other = ch_comm_max(comm, last) != last;
  ch_trainer_free(&t);
  if (comm->rank) free(mine);
  return other;
}

static choir_config config_of(const char *router, int shards, int accumulate) {
  choir_config c = model_config(router);
  c.train.sequence_length = RANKS_T;
  c.train.batch_sequences = RANKS_B;
  c.train.grad_chunks = shards;
  c.train.accumulate = accumulate;
  c.train.learning_rate = 0.01;
  return c;
}

static void same_from(const char *what, choir_config config, int flat, const int *ranks) {
  trace *of = mmap(NULL, (FORKED_MAX + 1) * sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  job j = {.config = config, .what = what, .flat = flat, .of = of};
  if (forked_run(1, 0, train, &j)) fail_msg("%s: one process", what);
  for (int i = 0; ranks[i]; i++) {
    int size = ranks[i];
    if (forked_run(size, 0, train, &j)) fail_msg("%s, accumulate %d: %d ranks", what, config.train.accumulate, size);
    for (int s = 0; s < STEPS; s++) {
      if (of[size].results[s] != of[1].results[s]) fail_msg("%s: %d ranks: results of step %d", what, size, s + 1);
      if (of[size].statistics[s] != of[1].statistics[s])
        fail_msg("%s: %d ranks: statistics of step %d", what, size, s + 1);
      if (of[size].weights[s] != of[1].weights[s]) fail_msg("%s: %d ranks: weights after step %d", what, size, s + 1);
    }
  }
  munmap(of, (FORKED_MAX + 1) * sizeof *of);
}

static void same_with(const char *what, choir_config config, const int *ranks) { same_from(what, config, 0, ranks); }

static const int all_ranks[] = {2, 3, 4, 6, 8, 0}, odd_ranks[] = {3, 8, 0}, some_ranks[] = {2, 4, 0};

/* Gated experts, shared ones, a dense layer first, all others with experts, and the attention of today. */
static choir_config today(choir_config c, const char *activation, int shared) {
  c.model.activation = ch_word_number(ch_activation_names, activation);
  c.model.expert_activation = ch_word_number(ch_activation_names, activation);
  c.model.router.score = CH_SIGMOID;
  c.model.dense_layers = c.model.moe_every = 1;
  c.model.shared_experts = shared;
  test_modern(&c);
  return c;
}

static void block_of_today(void **state) {
  same_with("swiglu", today(config_of("expert_choice", 24, 1), "swiglu", 1), all_ranks);
  same_with("geglu", today(config_of("quantile_balanced", 24, 2), "geglu", 0), odd_ranks);
  same_with("gelu", today(config_of("expert_choice", 24, 1), "gelu", 2), odd_ranks);
}

static void every_router(void **state) {
  same_with("expert_choice", config_of("expert_choice", 24, 1), all_ranks);
  for (int i = 0; ch_router_names[i]; i++)
    same_with(ch_router_names[i], config_of(ch_router_names[i], 24, 1), odd_ranks);
}

/* Rounded on their way, also where they stay. */
static void every_router_on_a_bf16_wire(void **state) {
  for (int i = 0; ch_router_names[i]; i++) {
    choir_config c = config_of(ch_router_names[i], 12, 1);
    test_ok(choir_config_set(&c, "parallel.dispatch_dtype", "bf16"));
    same_with(ch_router_names[i], c, (const int[]){i % 2 ? 3 : 4, 0});
  }
}

static void gate_input(choir_config *c) { c->model.router.gate_on = CH_GATE_INPUT; }

/* With hardly any room, so that no rank can send all of its rows at once. */
static void rows_in_rounds(void **state) {
  forked_means = 0;
  for (int i = 0; ch_router_names[i]; i++) {
    choir_config c = config_of(ch_router_names[i], 12, 1 + i % 2);
    c.train.sequence_length = 5;
    c.train.batch_sequences = 12;
    if (i % 2 && ch_router_takes(ch_routers[i], CH_OPTION_gate_on)) gate_input(&c);
    test_ok(choir_config_set(&c, "parallel.dispatch_dtype", i % 3 ? "fp32" : "bf16"));
    same_with(ch_router_names[i], c, (const int[]){i % 2 ? 3 : 4, 0});
  }
  forked_means = CH_COMM_MEANS;
}

static choir_config config_of_pool(const char *pool, int shards) {
  choir_config c = config_of("expert_choice", shards, 1);
  c.model.router.pool = ch_word_number(ch_router_pools, pool);
  c.model.router.group_size = 40;
  return c;
}

static void ties(void **state) {
  for (int i = 0; ch_router_pools[i]; i++) {
    choir_config c = config_of_pool(ch_router_pools[i], 8);
    same_from("ties", c, 1, (const int[]){i % 2 ? 8 : 4, 0});
  }
}

/* Micro-batches add up on the owners of experts, and everywhere else. Clipping needs the norm of all. */
static void accumulated(void **state) {
  for (int i = 0; ch_router_names[i]; i++) {
    choir_config c = config_of(ch_router_names[i], 4, 3);
    c.train.clip_norm = 0.05;
    same_with(ch_router_names[i], c, (const int[]){i % 2 ? 2 : 4, 0});
  }
}

static void every_pool(void **state) {
  for (int i = 0; ch_router_pools[i]; i++) {
    choir_config c = config_of_pool(ch_router_pools[i], 12);
    same_with(ch_router_pools[i], c, (const int[]){2, 3, 0});
  }
}

static void drop(choir_config *c) { c->train.dropout = 0.1; }
static void normalize(choir_config *c) { c->model.router.normalize_gates = 1; }
static void by_threshold(choir_config *c) { c->model.router.threshold_after = 1; }
static void draw_second(choir_config *c) { c->model.router.random_second = 1; }
static void z_loss(choir_config *c) { c->model.router.z_loss_weight = 0.5; }
static void by_sequence(choir_config *c) {
  z_loss(c);
  c->model.router.aux_loss_weight = 0.5;
  c->model.router.aux_scope = CH_SCOPE_SEQUENCE;
  c->model.router.priority = CH_BY_SCORE;
  c->model.router.capacity_factor = 1;
}
static void in_bf16(choir_config *c) { c->train.compute = CH_COMPUTE_BF16; }
static void adamw_in_bf16(choir_config *c) {
  c->train.optimizer = CH_ADAMW;
  in_bf16(c);
}
static void sums_in_bf16(choir_config *c) {
  c->train.accumulate = 2, c->train.clip_norm = 0.05;
  in_bf16(c);
}

/* A layer may have these options beside, some with random numbers that belong to tokens. */
static void every_option(void **state) {
  const struct {
    const char *what, *router;
    void (*set)(choir_config *c);
  } option[] = {{"dropout", "switch_top1", drop},
                {"normalized gates", "expert_choice", normalize},
                {"threshold_after", "expert_choice", by_threshold},
                {"quantile threshold_after", "quantile_balanced", by_threshold},
                {"random second", "gshard_top2", draw_second},
                {"z-loss", "expert_choice", z_loss},
                {"gates on inputs", "gshard_top2", gate_input},
                {"balance of sequences", "topk", by_sequence},
                {"bf16", "gshard_top2", in_bf16},
                {"bf16, accumulated", "expert_choice", sums_in_bf16},
                {"adamw, bf16", "expert_choice", adamw_in_bf16}};
  for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
    choir_config c = config_of(option[i].router, 8, 1);
    option[i].set(&c);
    same_with(option[i].what, c, some_ranks);
  }
}

/* ---- traffic ---- */

typedef struct {
  choir_config config;
  const ch_layout *layout;
  int64_t *sent; /* [FORKED_MOST] bytes of one step */
} count_job;

static int count_step(const ch_comm *comm, void *context) {
  const count_job *j = context;
  static int32_t token[MAX_TOKENS];
  ch_trainer t;
  choir_trainer_result r;
  new_trainer(comm, j->layout, &j->config, &t);
  model_tokens(token, MAX_TOKENS, 1);
  test_ok(ch_trainer_step(&t, token, token, &r));
  choir_ranks_traffic traffic;
  test_ok(choir_ranks_get_traffic(&(choir_ranks){.comm = comm}, &traffic));
  j->sent[comm->rank] = traffic.bytes;
  ch_trainer_free(&t);
  return 0;
}

static int64_t counted(choir_config config, const ch_layout *layout) {
  count_job j = {.config = config, .layout = layout};
  int64_t total = 0;
  j.sent = mmap(NULL, FORKED_MAX * sizeof *j.sent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(layout->ranks, 0, count_step, &j), 0);
  for (int r = 0; r < layout->ranks; r++) total += j.sent[r];
  munmap(j.sent, FORKED_MAX * sizeof *j.sent);
  return total;
}

/* All ranks together send as much in a step as the formula that choir plan goes by says; how many rows leave their rank
 * depends on the tokens. */
static int64_t by_formula(const choir_config *c, const ch_layout *layout, ch_flow *rows) {
  ch_params params;
  double bytes = 0;
  test_ok(ch_params_build(&c->model, &params));
  for (int kind = 0; kind < CH_FLOWS; kind++)
    if (kind != CH_FLOW_ROWS) bytes += ch_flow_of(c, &params, layout, (ch_flow_kind)kind).bytes;
  *rows = ch_flow_of(c, &params, layout, CH_FLOW_ROWS);
  ch_params_free(&params);
  return (int64_t)bytes;
}

static ch_layout layout_of(int replicas, int experts, int hidden) {
  return (ch_layout){.ranks = replicas * experts * hidden, .replicas = replicas, .experts = experts, .hidden = hidden};
}

static ch_layout sharded(int replicas, int experts, int hidden) {
  ch_layout l = layout_of(replicas, experts, hidden);
  l.dense_sharded = 1;
  return l;
}

/* To how many ranks a token's row goes from its own, with hash routing: to all hidden shards of its expert, in the
 * group that has it in the token's replica. */
static int sent_to(const ch_layout *l, int expert, int64_t rank) {
  int group = expert / (MODEL_E / l->experts);
  return l->hidden - (group == rank % (l->experts * l->hidden) / l->hidden);
}

/* All but rows is the formula's, and of rows so many go elsewhere. */
static void is_the_formula(choir_config *c, const ch_layout *l, const int32_t *token) {
  const int64_t n = (int64_t)RANKS_B * RANKS_T;
  int64_t away = 0;
  ch_flow rows;
  for (int64_t t = 0; t < n; t++) away += sent_to(l, token[t] % MODEL_E, t / (n / l->ranks));
  test_ok(choir_config_set(c, "parallel.dispatch_dtype", "fp32"));
  int64_t fp32 = away * ch_flow_slot_bytes(c);
  assert_int_equal(counted(*c, l) - by_formula(c, l, &rows), fp32);
  test_ok(choir_config_set(c, "parallel.dispatch_dtype", "bf16"));
  assert_int_equal(away * ch_flow_slot_bytes(c), fp32 / 2);
  assert_int_equal(counted(*c, l) - by_formula(c, l, &rows), fp32 / 2);
}

/* Hash routing goes by the ids of tokens, so rows are known, too. Matrices visit in the type of products. */
static void traffic_is_the_formula(void **state) {
  const ch_layout layouts[] = {layout_of(1, 4, 1), layout_of(2, 2, 1), layout_of(4, 1, 1),
                               layout_of(2, 4, 1), layout_of(1, 2, 2), layout_of(1, 1, 4),
                               layout_of(2, 2, 2), sharded(1, 4, 1),   sharded(2, 2, 2)};
  choir_config c = config_of("hash", 8, 1);
  c.model.d_expert = 1200; /* gradients of experts in more than one slice */
  int32_t token[RANKS_B * RANKS_T];
  model_tokens(token, RANKS_B * RANKS_T, 1);
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    for (int bf16 = 0; bf16 <= layouts[i].dense_sharded; bf16++) {
      test_ok(choir_config_set(&c, "train.compute", bf16 ? "bf16" : "fp32"));
      is_the_formula(&c, &layouts[i], token);
    }
}

/* Rows are whatever the rest leaves: whole ones, and about as many as in the mean. All slots are filled by these. */
static void traffic_of_every_kind(void **state) {
  static const char *const filled[] = {"expert_choice", "kmeans", "base", "random", "quantile_balanced", "topk"};
  const ch_layout layouts[] = {layout_of(1, 3, 1), layout_of(1, 4, 1), layout_of(2, 2, 1), layout_of(2, 3, 1),
                               layout_of(2, 2, 2)};
  for (size_t i = 0; i < sizeof filled / sizeof *filled; i++)
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
      const ch_layout *l = &layouts[k];
      choir_config c = config_of(filled[i], 24, l->experts == 3 ? 2 : 1);
      if (strcmp(filled[i], "random") && strcmp(filled[i], "kmeans")) z_loss(&c);
      test_ok(choir_config_set(&c, "parallel.dispatch_dtype", l->experts == 3 ? "fp32" : "bf16"));
      ch_flow rows;
      int64_t left = counted(c, l) - by_formula(&c, l, &rows);
      if (left % (ch_flow_slot_bytes(&c) / c.train.accumulate / ch_config_moe_layers(&c.model)))
        fail_msg("%s, %d x %d x %d ranks: %lld bytes of rows", filled[i], l->replicas, l->experts, l->hidden,
                 (long long)left);
      if (!((double)left > 0.8 * rows.bytes && (double)left < 1.2 * rows.bytes))
        fail_msg("%s, %d x %d x %d ranks: %lld bytes of rows, in the mean %g", filled[i], l->replicas, l->experts,
                 l->hidden, (long long)left, rows.bytes);
    }
}

static int refused(const ch_comm *comm, void *context) {
  const choir_config *config = context;
  const choir_ranks ranks = {.comm = comm};
  choir_model_options run = {.size = sizeof run, .backend = "cpu", .threads = 1, .ranks = &ranks};
  choir_model *model;
  ch_trainer t;
  test_ok(ch_model_prepare(config, &run, &model));
  int code = ch_trainer_plan(model, &t),
      told = strstr(choir_error_message(), "train.grad_chunks is 4, which 3 processes") != NULL;
  ch_trainer_free(&t);
  return code != CHOIR_ERROR_ARGUMENT || !told;
}

static void refuses_ranks_that_do_not_divide(void **state) {
  choir_config c = config_of("expert_choice", 4, 1);
  assert_int_equal(forked_run(3, 0, refused, &c), 0);
}

TEST_MAIN(NULL, NULL, block_of_today, every_router, every_router_on_a_bf16_wire, rows_in_rounds, ties, accumulated,
          every_pool, every_option, traffic_is_the_formula, traffic_of_every_kind, refuses_ranks_that_do_not_divide)
