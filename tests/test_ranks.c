/* Several ranks train what one process trains: the same weights, results and statistics, bit for bit, whatever the
 * router, with as many ranks as divide train.shards. */
#include "comm/collective.h"
#include "forked_comm.h"
#include "model_testing.h"
#include "moe_testing.h"
#include "train/step.h"

enum { STEPS = 2, RANKS_T = 12, RANKS_B = 24, MOST_TOKENS = 3 * RANKS_B * RANKS_T };

/* What a run leaves: sums of all that is to be equal, in memory that the processes share. */
typedef struct {
  uint64_t weights[STEPS], results[STEPS], statistics[STEPS];
} trace;

typedef struct {
  choir_config config;
  const char *what;
  trace *of; /* [FORKED_MOST + 1], by number of ranks */
} job;

/* FNV-1a: one bit off is another number. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes) {
  const unsigned char *at = data;
  for (size_t i = 0; i < bytes; i++) h = (h ^ at[i]) * UINT64_C(1099511628211);
  return h;
}

/* Of all ranks: experts come from their owners. */
static uint64_t hash_weights(const choir_model *model) {
  const ch_params *params = &model->net.params;
  uint64_t h = 1;
  for (int i = 0; i < params->count + params->buffers; i++) {
    const ch_param *p = &params->p[i];
    real *whole = test_new(p->whole);
    memcpy(whole + p->first, p->w, (size_t)p->count * sizeof *whole);
    if (p->expert)
      ch_comm_gather_shares(model->x.comm, whole, p->shape[0], p->whole / p->shape[0] * (int64_t)sizeof *whole);
    h = hash(h, whole, (size_t)p->whole * sizeof *whole);
    free(whole);
  }
  return h;
}

static uint64_t hash_statistics(const choir_model *model) {
  uint64_t h = 1;
  size_t e = (size_t)model->config.model.experts;
  for (int l = 0; l < model->net.moe_layers; l++) {
    const choir_route_stats *s = &model->net.stats[l];
    const double sums[] = {s->aux_loss, s->gate_mass};
    h = hash(h, s->load, e * sizeof *s->load);
    h = hash(h, s->demand, e * sizeof *s->demand);
    h = hash(h, s->histogram, (e + 1) * sizeof *s->histogram);
    h = hash(h, sums, sizeof sums);
    h = hash(h, &s->dropped, sizeof s->dropped);
  }
  return h;
}

static uint64_t hash_result(const ch_step_result *r) {
  const double all[] = {r->loss,          r->aux_loss,         r->rate,
                        r->gradient_norm, r->routing.dropped,  r->routing.unrouted,
                        r->routing.fill,  r->routing.imbalance};
  return hash(1, all, sizeof all);
}

static void new_trainer(const ch_comm *comm, const choir_config *config, ch_trainer *t) {
  choir_run_options run = {.backend = "cpu", .threads = 1, .emulate_bf16 = 1};
  choir_model *model;
  test_ok(ch_model_prepare(config, &run, &model));
  ch_model_share(model, comm);
  test_ok(ch_trainer_plan(model, t));
  test_ok(ch_trainer_commit(t));
  test_ok(ch_params_init(&model->net.params, model->x.memory, 5, 1));
  ch_model_weights_changed(model);
}

static int train(const ch_comm *comm, void *context) {
  const job *j = context;
  ch_trainer t;
  ch_step_result r;
  trace *mine = comm->rank ? calloc(1, sizeof *mine) : &j->of[comm->size];
  static int32_t token[MOST_TOKENS], target[MOST_TOKENS];
  new_trainer(comm, &j->config, &t);
  for (int i = 0; i < STEPS; i++) {
    model_tokens(token, MOST_TOKENS, (uint32_t)i);
    model_tokens(target, MOST_TOKENS, 50 + (uint32_t)i);
    test_ok(ch_trainer_step(&t, token, target, &r));
    mine->weights[i] = hash_weights(t.model);
    mine->results[i] = hash_result(&r);
    mine->statistics[i] = hash_statistics(t.model);
  }
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
  c.train.shards = shards;
  c.train.accumulate = accumulate;
  c.train.rate = 0.01;
  return c;
}

static void same_with(const char *what, choir_config config, const int *ranks) {
  trace *of = mmap(NULL, (FORKED_MOST + 1) * sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  job j = {.config = config, .what = what, .of = of};
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
  munmap(of, (FORKED_MOST + 1) * sizeof *of);
}

static const int all_ranks[] = {2, 3, 4, 6, 8, 0}, odd_ranks[] = {3, 8, 0}, some_ranks[] = {2, 4, 0};

static void every_router(void **state) {
  (void)state;
  same_with("expert_choice", config_of("expert_choice", 24, 1), all_ranks);
  for (int i = 0; ch_router_names[i]; i++)
    same_with(ch_router_names[i], config_of(ch_router_names[i], 24, 1), odd_ranks);
}

/* Micro-batches add up on the owners of experts, and everywhere else. Clipping needs the norm of all. */
static void accumulated(void **state) {
  (void)state;
  for (int i = 0; ch_router_names[i]; i++) {
    choir_config c = config_of(ch_router_names[i], 4, 3);
    c.train.clip_norm = 0.05;
    same_with(ch_router_names[i], c, (const int[]){i % 2 ? 2 : 4, 0});
  }
}

static void every_pool(void **state) {
  (void)state;
  for (int i = 0; ch_router_pools[i]; i++) {
    choir_config c = config_of("expert_choice", 12, 1);
    snprintf(c.model.router.pool, sizeof c.model.router.pool, "%s", ch_router_pools[i]);
    c.model.router.group_size = 40;
    same_with(ch_router_pools[i], c, (const int[]){2, 3, 0});
  }
}

/* What a layer may do beside, with random numbers that belong to tokens. */
static void every_option(void **state) {
  (void)state;
  choir_config c = config_of("switch_top1", 8, 1);
  c.train.dropout = 0.1;
  same_with("dropout", c, some_ranks);
  c = config_of("expert_choice", 8, 1);
  c.model.router.normalize_gates = 1;
  same_with("normalized gates", c, some_ranks);
  c = config_of("expert_choice", 8, 1);
  c.model.router.threshold_after = 1;
  same_with("threshold_after", c, some_ranks);
  c = config_of("quantile_balanced", 8, 1);
  c.model.router.threshold_after = 1;
  same_with("quantile threshold_after", c, some_ranks);
  c = config_of("gshard_top2", 8, 1);
  c.model.router.random_second = 1;
  same_with("random second", c, some_ranks);
  c = config_of("expert_choice", 8, 1);
  snprintf(c.train.optimizer, sizeof c.train.optimizer, "adamw");
  snprintf(c.train.compute, sizeof c.train.compute, "bf16");
  same_with("adamw, bf16", c, some_ranks);
}

/* ---- traffic ---- */

typedef struct {
  choir_config config;
  int64_t *sent; /* [FORKED_MOST] bytes of one step */
} count_job;

static int count_step(const ch_comm *comm, void *context) {
  const count_job *j = context;
  static int32_t token[MOST_TOKENS];
  ch_trainer t;
  ch_step_result r;
  new_trainer(comm, &j->config, &t);
  model_tokens(token, MOST_TOKENS, 1);
  test_ok(ch_trainer_step(&t, token, token, &r));
  j->sent[comm->rank] = comm->traffic->bytes;
  ch_trainer_free(&t);
  return 0;
}

/* What all ranks together send in a step, but for rows: docs/clusters.md has the formula. A gather of x bytes, and each
 * half of a sum, is (P - 1) x. */
static int64_t but_for_rows(const choir_config *c, int P, int scored, int64_t slots) {
  choir_model *model;
  test_ok(ch_model_prepare(c, NULL, &model));
  const ch_transformer *net = &model->net;
  int64_t n = (int64_t)RANKS_B * RANKS_T, e = c->model.experts, bytes = 8 * c->train.shards;
  for (int i = 0; i < net->params.count; i++) {
    const ch_param *p = &net->params.p[i];
    if (p->expert)
      bytes += 8 * e; /* squares */
    else
      bytes += 2 * 4 * p->count * (p == net->embed ? 2 : 1); /* of the head, and of the lookup */
  }
  if (scored) bytes += net->moe_layers * 4 * (n * e + slots);
  choir_model_free(model);
  return (P - 1) * bytes;
}

/* Rows that leave their rank, five times a layer: by the ids of the tokens, or whatever is left. */
static void traffic_is_the_formula(void **state) {
  (void)state;
  enum { P = 4, MOE = 2, ROW = 5 * 4 * 32 * MOE };
  int64_t n = (int64_t)RANKS_B * RANKS_T, total[2] = {0}, away = 0;
  int32_t token[RANKS_B * RANKS_T];
  for (int k = 0; k < 2; k++) {
    count_job j = {.config = config_of(k ? "expert_choice" : "hash", 8, 1)};
    j.sent = mmap(NULL, FORKED_MOST * sizeof *j.sent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(forked_run(P, 0, count_step, &j), 0);
    for (int r = 0; r < P; r++) total[k] += j.sent[r];
    munmap(j.sent, FORKED_MOST * sizeof *j.sent);
    total[k] -= but_for_rows(&j.config, P, k, 2 * n);
  }
  model_tokens(token, (int)n, 1);
  for (int64_t t = 0; t < n; t++) away += token[t] % MODEL_E / (MODEL_E / P) != t / (n / P);
  assert_int_equal(total[0], away * ROW);
  assert_int_equal(total[1] % (5 * 4 * 32), 0);
  assert_in_range(total[1], n * ROW, 2 * n * ROW); /* three of four rows in the mean */
}

static int refused(const ch_comm *comm, void *context) {
  const choir_config *config = context;
  choir_run_options run = {.backend = "cpu", .threads = 1};
  choir_model *model;
  ch_trainer t;
  test_ok(ch_model_prepare(config, &run, &model));
  ch_model_share(model, comm);
  int code = ch_trainer_plan(model, &t),
      told = strstr(choir_error_message(), "train.shards is 4, which 3 processes") != NULL;
  ch_trainer_free(&t);
  return code != CHOIR_ERROR_ARGUMENT || !told;
}

static void refuses_ranks_that_do_not_divide(void **state) {
  (void)state;
  choir_config c = config_of("expert_choice", 4, 1);
  assert_int_equal(forked_run(3, 0, refused, &c), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_router),
                                     cmocka_unit_test(accumulated),
                                     cmocka_unit_test(every_pool),
                                     cmocka_unit_test(every_option),
                                     cmocka_unit_test(traffic_is_the_formula),
                                     cmocka_unit_test(refuses_ranks_that_do_not_divide)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
