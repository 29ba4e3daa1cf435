/* No op reads what nobody wrote. At the beginning of every op all memory that is handed out to nobody becomes NaN, of
 * activations where a new pass has begun. Three steps of every router, with an evaluation, leave the same bytes as
 * without this. Weights and the optimizer's state begin as the zeros that new memory is (base/memory.h). */
#include "choir/choir.h"
#include "model/config.h"
#include "moe/router.h"
#include "op/backend.h"
#include "program.h"

static ch_backend backend = {.name = "poisoned"};
static const ch_backend *plain;
static ch_ops inner[2]; /* by compute type */
static long poisoned;

static void fill(const ch_arena *a) {
  static char nan[1 << 18];
  memset(nan, 0xFF, sizeof nan);
  for (size_t at = a->used; at < a->size; at += sizeof nan)
    a->memory->upload(a->base + at, nan, a->size - at < sizeof nan ? a->size - at : sizeof nan);
}

static const ch_ops *poison(ch_exec *x) {
  static size_t used;
  if (!ch_counting(x)) {
    fill(&x->scratch);
    if (x->tape.used < used) fill(&x->tape);
    used = x->tape.used;
    poisoned++;
  }
  return &inner[x->compute == CH_COMPUTE_BF16];
}

#define POISONED_OP(op, args) \
  static void poisoned_##op(ch_exec *x, const args *a) { poison(x)->op(x, a); }
CH_OPS(POISONED_OP)

static void poisoned_fill(ch_ops *ops, ch_compute compute) {
  ch_ops *own = &inner[compute == CH_COMPUTE_BF16];
  plain->fill(own, compute);
#define SET(op, args) \
  if (own->op) ops->op = poisoned_##op;
  CH_OPS(SET)
}

static void train(const char *on, const char *router, const char *out) {
  choir_config c;
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .backend = on, .threads = 2, .emulate_bf16 = 1};
  test_ok(ch_config_load("config.json", &c));
  static const char *const of[][2] = {{"dense", "experts=1"},
                                      {"expert_choice", "router.threshold_after=2"},
                                      {"switch_top1", "router.jitter=0.1"},
                                      {"gshard_top2", "optimizer=adamw"},
                                      {"random", "router.consistency_weight=0.5"},
                                      {"quantile_balanced", "router.normalize_gates=true"},
                                      {"bias_balanced", "position=rope"},
                                      {"base", "compute=bf16"},
                                      {"hash", "expert_activation=swiglu"}};
  test_set(&c, "steps=3 eval_every=2 dropout=0.1 router.name=%s", router);
  for (size_t i = 0; i < sizeof of / sizeof *of; i++)
    if (!strcmp(of[i][0], router)) test_set(&c, "%s", of[i][1]);
  o.config = &c, o.data = "data", o.out = out;
  o.model = &model;
  test_ok(choir_train(&o));
}

static void runs_are_the_same_bytes(void **state) {
  const char *const *names = choir_router_names(), *on = *state;
  plain = ch_backend_find(on);
  backend = *plain;
  backend.name = "poisoned";
  backend.fill = poisoned_fill;
  for (int i = 0; names[i]; i++) {
    long before = poisoned;
    program_must("rm -rf plain poisoned");
    train(on, names[i], "plain");
    train("poisoned", names[i], "poisoned");
    assert_true(poisoned > before + 100);
    if (!program_same_runs("plain", "poisoned", 3)) fail_msg("%s on %s: other bytes", names[i], on);
  }
}

static int setup(void **state) { return program_setup(state) || ch_backend_register(&backend); }

int main(void) {
  const struct CMUnitTest tests[] = {{"runs_are_the_same_bytes on cpu", runs_are_the_same_bytes, NULL, NULL, "cpu"}};
  return cmocka_run_group_tests(tests, setup, program_directory_remove);
}
