/* Training, evaluation, checkpoints and resuming on memory that the host cannot touch: every router, pool and compute
 * type leaves the bytes that the CPU leaves. */
#include "choir/choir.h"
#include "fenced.h"
#include "model/config.h"
#include "moe/router.h"
#include "plugin_routers.h"
#include "program.h"

typedef struct {
  const char *router;
  const char *set; /* "key=value key=value" */
} variant;

#define MODERN \
  "activation=swiglu expert_activation=swiglu shared_experts=1 dense_layers=1 moe_every=1 router.score=sigmoid"
static const variant variants[] = {
    {"expert_choice", ""},
    {"expert_choice", "router.pool=sequence"},
    {"expert_choice", "router.pool=position batch_sequences=8"},
    {"expert_choice", "router.pool=group router.group_size=40"},
    {"expert_choice", "router.threshold_after=2"},
    {"expert_choice", "accumulate=2 clip_norm=1"},
    {"expert_choice", "optimizer=adamw learning_rate=0.001"},
    {"expert_choice", "compute=bf16"},
    {"expert_choice", "moe_every=0"},
    {"expert_choice", MODERN},
    {"expert_choice", "attention=bidirectional objective=masked_diffusion router.pool=sequence"},
    {"gshard_top2", MODERN " attention=bidirectional objective=masked_lm"},
    {"quantile_balanced", MODERN " compute=bf16"},
    {"expert_choice", "activation=gelu expert_activation=geglu shared_experts=2"},
    {"gshard_top2", ""},
    {"gshard_top2", "router.random_second=true router.gate_on=input compute=bf16"},
    {"switch_top1", "router.jitter=0.1"},
    {"hash", ""},
    {"dense", "experts=1"},
    {"expert_choice", "position=rope kv_heads=1 qk_norm=true tied=false embed_scale=0.7 head_scale=0.2"},
    {"switch_top1", "position=rope rope_fraction=0.5 qk_norm=true qk_norm_whole=true tied=false compute=bf16"},
    {"quantile_balanced", ""},
    {"quantile_balanced", "router.threshold_after=2"},
    {"bias_balanced", ""},
    {"topk", "router.z_loss_weight=0.01 router.normalize_gates=true"},
    {"topk",
     "router.experts_per_token=3 router.capacity_factor=1 router.priority=score router.aux_scope=sequence "
     "router.null_experts=5"},
    {"random", ""},
    {"random", "router.consistency_weight=0.1"},
    {"kmeans", ""},
    {"global_topk", ""},
    {"capped_expert_choice", ""},
    {"capped_expert_choice", "router.pool=position batch_sequences=8"},
    {"capped_expert_choice", "router.solver=dykstra"},
    {"capped_expert_choice", "router.solver=dykstra router.solver_stages=4"},
    {"base", ""},
    {"own_balance", "accumulate=2"},
    {"own_min", ""},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void every_router_is_among_them(void **state) {
  for (int r = 0; ch_routers[r]; r++) {
    int found = 0;
    for (int i = 0; i < VARIANTS; i++) found |= !strcmp(variants[i].router, ch_routers[r]->name);
    if (!found) fail_msg("router %s is not trained here", ch_routers[r]->name);
  }
}

static choir_config config_of(const variant *v) {
  choir_config c;
  test_ok(ch_config_load("config.json", &c));
  test_set(&c, "steps=4 eval_every=2 checkpoint_every=2 router.name=%s %s", v->router, v->set);
  return c;
}

static int stop_after_two(void *context, const choir_event *e) {
  (void)context;
  return e->kind == CHOIR_EVENT_STEP && e->step == 2;
}

static int train(const choir_config *config, const char *backend, const char *out, int stop) {
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .backend = backend, .threads = 2, .emulate_bf16 = 1};
  o.config = config, o.data = "data", o.out = out, o.resume = !config;
  o.model = &model;
  o.event = stop ? stop_after_two : NULL;
  return choir_train(&o);
}

static void same_file(const char *a, const char *b, const char *name) {
  char path[2][PATH_MAX];
  size_t size[2];
  char *data[2];
  for (int i = 0; i < 2; i++) {
    snprintf(path[i], sizeof path[i], "%s/%s", i ? b : a, name);
    data[i] = program_read(path[i], &size[i]);
    if (!data[i]) fail_msg("%s is missing", path[i]);
  }
  if (size[0] != size[1] || memcmp(data[0], data[1], size[0])) fail_msg("%s and %s differ", path[0], path[1]);
  free(data[0]), free(data[1]);
}

static void same_run(const char *a, const char *b) {
  same_file(a, b, "metrics.jsonl");
  same_file(a, b, "checkpoints/00000004/model.safetensors");
  same_file(a, b, "checkpoints/00000004/state.safetensors");
}

/* The fenced run is stopped after two steps and goes on, on the fenced backend and, of some, from the same
 * checkpoint on the CPU. */
static void runs_are_the_same_bytes(void **state) {
  fence_watch();
  for (int i = 0; i < VARIANTS; i++) {
    const variant *v = &variants[i];
    choir_config c = config_of(v);
    program_must("rm -rf cpu fence moved");
    test_ok(train(&c, "cpu", "cpu", 0));
    long uses = fence_uses;
    if (train(&c, "fenced", "fence", 1) != CHOIR_ERROR_INTERRUPTED)
      fail_msg("%s %s: %s", v->router, v->set, choir_error_message());
    program_must("cp -r fence moved");
    test_ok(train(NULL, "fenced", "fence", 0));
    assert_true(fence_uses > uses + 100);
    same_run("cpu", "fence");
    if (i % 7 == 0) {
      test_ok(train(NULL, "cpu", "moved", 0));
      same_run("cpu", "moved");
    }
    assert_int_equal(fence_areas, 0); /* all memory was given back */
  }
}

static int setup(void **state) {
  return program_setup(state) || choir_router_register(&own_balance) || choir_router_register_experts(&own_min) ||
         ch_backend_register(&fence_backend);
}

TEST_MAIN(setup, program_directory_remove, every_router_is_among_them, runs_are_the_same_bytes)
