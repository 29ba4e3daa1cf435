/* Plans: for one process what the program itself says, for several what ranks really plan; laws of traffic and links;
 * small cases reckoned by hand. */
#include <glob.h>

#include "forked_comm.h"
#include "handle/ranks.h"
#include "model/config.h"
#include "model_testing.h"
#include "page.h"
#include "plan/plan.h"
#include "plan/traffic.h"

static const char one_rank[] =
    "{\"name\": \"one\", \"ranks\": 1, \"fp32_gflops\": 100, \"bf16_gflops\": 400, \"memory_gib\": 1000, "
    "\"memory_gbs\": 20, \"price_per_rank_hour\": 36}";

/* Eight ranks in pairs; the links say what the test wants. */
static const char pairs[] =
    "{\"name\": \"pairs\", \"ranks\": 8, \"fp32_gflops\": 100, \"memory_gib\": %g, \"memory_gbs\": 20, \"levels\": ["
    "{\"name\": \"pair\", \"ranks\": 2, \"bandwidth_gbs\": 100, \"latency_us\": 0}, "
    "{\"name\": \"net\", \"ranks\": 8, \"bandwidth_gbs\": %g, \"latency_us\": 0}]}";

static ch_plan *plan_of(const choir_config *config, const char *cluster, int ranks) {
  ch_plan *plan;
  test_ok(ch_file_save("cluster.json", cluster, strlen(cluster)));
  test_ok(ch_plan_create(config, &(ch_plan_options){.cluster = "cluster.json", .ranks = ranks}, &plan));
  return plan;
}

static ch_plan *plan_on_pairs(const choir_config *config, double gib, double gbs) {
  char text[1024];
  ch_format(text, sizeof text, pairs, gib, gbs);
  return plan_of(config, text, 0);
}

static const ch_plan_layout *find(const ch_plan *plan, int replicas, int experts, int hidden) {
  const ch_plan_layout *l;
  for (l = plan->layout; l < plan->layout + plan->count; l++)
    if (l->replicas == replicas && l->experts == experts && l->hidden == hidden) return l;
  fail_msg("no layout %d x %d x %d", replicas, experts, hidden);
  return NULL;
}
static int64_t memory_of(const ch_plan_layout *l, const char *name) {
  for (int i = 0; i < l->purposes; i++)
    if (!strcmp(l->memory[i].name, name)) return l->memory[i].bytes;
  fail_msg("no memory called %s", name);
  return 0;
}

static const ch_plan_part *part_of(const ch_plan_layout *l, const char *name) {
  for (int i = 0; i < l->parts; i++)
    if (!strcmp(l->part[i].name, name)) return &l->part[i];
  fail_msg("no part called %s", name);
  return NULL;
}

/* ---- one process ---- */

/* Every config that comes with choir: no traffic, and the memory and FLOPs of choir info. */
static void one_process_is_what_the_program_says(void **state) {
  glob_t found = {0};
  assert_int_equal(glob(CHOIR_SOURCE_DIR "/configs/*.json", 0, NULL, &found), 0);
  assert_true(found.gl_pathc >= 10);
  for (size_t i = 0; i < found.gl_pathc; i++) {
    choir_config config;
    choir_config_costs costs;
    test_ok(ch_config_load(found.gl_pathv[i], &config));
    if (!config.model.vocab_size) config.model.vocab_size = 512;
    test_ok(choir_config_get_costs(&config, &costs));
    ch_plan *plan = plan_of(&config, one_rank, 0);
    const ch_plan_layout *l = &plan->layout[0];
    assert_int_equal(plan->count, 1);
    assert_string_equal(l->refused, "");
    assert_true(l->chosen && l->sent == 0 && l->bytes == costs.train_bytes);
    assert_true(memory_of(l, "dense weights") + memory_of(l, "expert weights") == costs.train_memory.weights);
    assert_true(memory_of(l, "dense gradients") + memory_of(l, "expert gradients") == costs.train_memory.gradients);
    assert_true(memory_of(l, "dense state") + memory_of(l, "expert state") == costs.train_memory.optimizer);
    assert_true(memory_of(l, "activations") == costs.train_memory.activations);
    assert_true(memory_of(l, "scratch") == costs.train_memory.scratch && memory_of(l, "exchange buffers") == 0);
    assert_true(plan->costs.train_flops_per_token == costs.train_flops_per_token &&
                plan->config.train.grad_chunks == config.train.grad_chunks);
    assert_true(fabs(l->share * 100e9 / l->tokens_per_second / costs.train_flops_per_token - 1) < 1e-12);
    assert_true(fabs(l->cost - 36 * 1e9 / l->tokens_per_second / 3600) < 1e-6 * l->cost);
    for (int p = 0; p < l->parts; p++) assert_true(!l->part[p].sent || l->part[p].seconds == 0);
    ch_plan_free(plan);
  }
  globfree(&found);
}

/* Products at 0.6 of 100 GFLOP/s, and no more to it where memory is no limit. */
static void step_by_hand(void **state) {
  choir_config c = model_config("expert_choice");
  ch_plan *plan = plan_of(&c, one_rank, 0);
  const ch_plan_layout *l = &plan->layout[0];
  const double n = MODEL_B * MODEL_T, d = 32, h = 40, moe = 2, rate = 0.6 * 100e9;
  double experts = 3 * n * moe * c.model.router.capacity_factor * 4 * d * h / rate;
  double head = 3 * n * 2 * MODEL_V * d / rate, weights = moe * MODEL_E * 2 * d * h;
  double dense = MODEL_V * d + 4 * (4 * d * d + 32 * 2 + 2 * d) + 2 * 3 * d * 48 + moe * d * MODEL_E + d;
  assert_true(fabs(part_of(l, "experts")->seconds - fmax(experts, 3 * 4 * weights / 20e9)) < 1e-12);
  assert_true(fabs(part_of(l, "head")->seconds - head) < 1e-12);
  assert_true(fabs(part_of(l, "update")->seconds - 7 * 4 * (weights + dense) / 20e9) < 1e-12);
  assert_true(fabs(part_of(l, "routing")->seconds - 3 * n * moe * 2 * d * MODEL_E / rate) < 1e-12);
  ch_plan_free(plan);
}

/* Scores are fp32 whatever the rest is; a sequence that is drawn twice is computed twice; weights go through a slow
 * memory in every micro-batch. */
static void other_steps_by_hand(void **state) {
  const double n = MODEL_B * MODEL_T, d = 32, rate = 0.6 * 100e9, weights = 2 * MODEL_E * 2 * 32 * 40;
  choir_config c = model_config("random");
  c.model.router.consistency_weight = 1;
  c.train.compute = CH_COMPUTE_BF16;
  ch_plan *plan = plan_of(&c, one_rank, 0);
  assert_true(fabs(part_of(plan->layout, "head")->seconds - 2 * 3 * n * 2 * MODEL_V * d / (4 * rate)) < 1e-12);
  ch_plan_free(plan);
  c = model_config("expert_choice");
  c.train.compute = CH_COMPUTE_BF16;
  plan = plan_of(&c, one_rank, 0);
  assert_true(fabs(part_of(plan->layout, "routing")->seconds - 3 * n * 2 * 2 * d * MODEL_E / rate) < 1e-12);
  ch_plan_free(plan);
  c = model_config("expert_choice");
  c.train.accumulate = 3;
  plan = plan_of(
      &c, "{\"name\": \"slow\", \"ranks\": 1, \"fp32_gflops\": 100, \"memory_gib\": 1000, \"memory_gbs\": 1}", 0);
  assert_true(fabs(part_of(plan->layout, "experts")->seconds - 3 * 3 * 4 * weights / 1e9) < 1e-12);
  assert_string_equal(part_of(plan->layout, "experts")->limit, "memory");
  ch_plan_free(plan);
}

/* ---- several ranks ---- */

typedef struct {
  choir_config config;
  ch_layout layout;
  int64_t *bytes; /* [FORKED_MOST] */
} planning;

static int plan_really(const ch_comm *comm, void *context) {
  const planning *job = context;
  ch_comm network = *comm; /* as messages are cut there */
  network.worth = CH_COMM_WORTH;
  const ch_layout *l = &job->layout;
  const choir_ranks ranks = {
      .comm = &network, .replicas = l->replicas, .hidden = l->hidden, .dense_sharded = l->dense_sharded};
  choir_model_options run = {.size = sizeof run, .emulate_bf16 = 1, .ranks = &ranks};
  choir_model *model;
  ch_trainer t;
  choir_memory memory;
  test_ok(ch_model_prepare(&job->config, &run, &model));
  test_ok(ch_trainer_plan(model, &t));
  ch_trainer_memory(&t, &memory);
  job->bytes[comm->rank] = memory.total;
  ch_trainer_free(&t);
  return 0;
}

/* The plan of a layout is what the fullest rank asks for when it runs. */
static void ranks_plan_what_the_plan_says(void **state) {
  static const char *const routers[] = {"expert_choice", "gshard_top2", "hash", "base"};
  for (int i = 0; i < 16; i++) {
    int ranks = i % 2 ? 8 : 4, replicas = 1 + i / 2 % 2, hidden = 1 + i % 4 / 3;
    planning job = {.config = model_config(routers[i / 4]),
                    .layout = {ranks, replicas, ranks / replicas / hidden, hidden, i % 5 == 0}};
    job.config.train.grad_chunks = 8;
    job.config.model.d_model = 256, job.config.model.d_expert = 1024; /* above the rounding to whole pages */
    if (job.config.model.experts > 1) job.config.model.experts = 6;   /* not a multiple of the ranks */
    job.config.train.compute = i % 3 ? CH_COMPUTE_FP32 : CH_COMPUTE_BF16;
    job.bytes = mmap(NULL, FORKED_MAX * sizeof *job.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(forked_run(ranks, 0, plan_really, &job), 0);
    int64_t max = 0;
    for (int r = 0; r < ranks; r++) max = job.bytes[r] > max ? job.bytes[r] : max;
    munmap(job.bytes, FORKED_MAX * sizeof *job.bytes);
    ch_plan_layout l = {0};
    test_ok(ch_plan_memory(&job.config, &job.layout, &l));
    assert_int_equal(l.bytes, max);
  }
}

/* Weights of experts shrink as one over their groups and hidden shards; replicas leave them. */
static void experts_are_shared(void **state) {
  choir_config c = model_config("expert_choice");
  c.model.d_model = 256, c.model.d_expert = 1024; /* above the rounding to whole pages */
  ch_plan *plan = plan_on_pairs(&c, 1000, 1);
  int64_t elements = INT64_C(2) * MODEL_E * 2 * 256 * 1024, bytes = 4 * elements;
  for (int replicas = 1; replicas <= 8; replicas *= 2)
    for (int hidden = 1; hidden <= 8 / replicas; hidden *= 2) {
      int experts = 8 / replicas / hidden;
      const ch_plan_layout *l = find(plan, replicas, experts, hidden);
      assert_int_equal(memory_of(l, "expert weights"), bytes / experts / hidden);
    }
  ch_plan_free(plan);
}

static void bytes_are_conserved(void **state) {
  choir_config c = model_config("expert_choice");
  ch_plan *plan = plan_on_pairs(&c, 1000, 1);
  const ch_plan_layout *l;
  for (l = plan->layout; l < plan->layout + plan->count; l++) {
    double parts = 0, levels = 0, seconds = 0;
    for (int p = 0; p < l->parts; p++) {
      parts += l->part[p].bytes;
      seconds += l->part[p].seconds;
      assert_true(fabs(l->part[p].level_bytes[0] + l->part[p].level_bytes[1] - l->part[p].bytes) <=
                  1e-9 * l->part[p].bytes);
    }
    for (int v = 0; v < 2; v++) levels += l->level_bytes[v];
    assert_true(l->sent > 0 && fabs(parts - l->sent) <= 1e-9 * parts && fabs(levels - l->sent) <= 1e-9 * parts);
    assert_true(fabs(seconds - l->seconds) <= 1e-9 * seconds);
    assert_true(l->overlapped <= l->seconds && l->overlapped > l->seconds / 3);
  }
  ch_plan_free(plan);
}

/* Where links are slow everything that is sent takes twice as long at half the bandwidth. */
static void half_the_bandwidth_twice_the_time(void **state) {
  choir_config c = model_config("expert_choice");
  ch_plan *fast = plan_on_pairs(&c, 1000, 1), *slow = plan_on_pairs(&c, 1000, 0.5);
  for (int hidden = 1; hidden <= 4; hidden *= 4) {
    const ch_plan_layout *a = find(fast, 1, 8 / hidden, hidden), *b = find(slow, 1, 8 / hidden, hidden);
    assert_true(part_of(a, "expert rows")->seconds > 0);
    assert_string_equal(part_of(a, "expert rows")->limit, "net");
    for (int p = 0; p < a->parts; p++) {
      double times = a->part[p].sent && a->part[p].seconds > 0 ? 2 : 1;
      assert_true(fabs(b->part[p].seconds - times * a->part[p].seconds) <= 1e-12);
    }
  }
  ch_plan_free(fast);
  ch_plan_free(slow);
}

/* Rows of 8 ranks, by hand: 2 MoE layers, 4 trips, n c rows of 32 floats, of which 7 in 8 leave their rank; 2 in 8 of
 * the ranks' neighbours being the pair. The link of a pair carries two ranks' bytes to the other six. */
static void rows_by_hand(void **state) {
  choir_config c = model_config("expert_choice");
  ch_plan *plan = plan_on_pairs(&c, 1000, 1);
  const ch_plan_part *rows = part_of(find(plan, 1, 8, 1), "expert rows");
  double slots = MODEL_B * MODEL_T * c.model.router.capacity_factor, bytes = 2 * 4 * slots * 32 * 4 * 7 / 8;
  assert_true(fabs(rows->bytes - bytes) < 1e-6);
  assert_true(fabs(rows->level_bytes[0] - bytes / 7) < 1e-6);
  assert_true(fabs(rows->seconds - 2 * (bytes / 8) * 6 / 7 / 1e9) < 1e-15);
  const ch_plan_part *copies = part_of(find(plan, 8, 1, 1), "expert gradients");
  double gradients = 2.0 * 7 * 4 * (2 * MODEL_E * 2 * 32 * 40);
  assert_true(copies->bytes == gradients && part_of(find(plan, 8, 1, 1), "expert rows")->bytes == 0);
  const ch_plan_part *shards = part_of(find(plan, 1, 4, 2), "hidden shards"); /* 3 sums of each of 32 rows */
  assert_true(shards->bytes == 2.0 * 4 * 3 * (2 * MODEL_E * 2 * 32) && shards->level_bytes[1] == 0);
  assert_string_equal(shards->limit, "pair");
  assert_true(fabs(part_of(find(plan, 1, 4, 2), "expert rows")->bytes - 2 * bytes) < 1e-6);
  ch_plan_free(plan);
}

/* Four groups of experts: of each pass three quarters of the rows' time may pass beside products, one forward and two
 * backward. Once links are the slower, once products. */
static void rows_pass_beside_products(void **state) {
  choir_config c = model_config("expert_choice");
  c.model.experts = 32, c.train.sequence_length = 1024, c.train.batch_sequences = 128;
  for (int fast = 0; fast < 2; fast++) {
    ch_plan *plan = plan_on_pairs(&c, 1000, fast ? 100 : 0.1);
    const ch_plan_layout *l = find(plan, 1, 8, 1);
    double rows = part_of(l, "expert rows")->seconds, experts = part_of(l, "experts")->seconds, all = 0;
    for (int p = 0; p < l->parts; p++) all += l->part[p].seconds;
    assert_true(fabs(all - l->seconds - (fast ? rows * 3 / 4 : experts)) < 1e-9 * all && l->overlapped <= l->seconds);
    ch_plan_free(plan);
  }
}

/* Six experts on eight ranks: who has one has 8 / 6 of the mean, and its weights to read. */
static void the_fullest_rank_counts(void **state) {
  choir_config c = model_config("expert_choice");
  const double tokens = MODEL_B * MODEL_T / 8, weights = 2 * 2 * 32 * 40, rate = 0.6 * 100e9;
  for (int wide = 0; wide < 2; wide++) { /* once bound by arithmetic, once by memory */
    c.model.experts = 6;
    c.model.router.capacity_factor = wide ? 0.125 : 2;
    ch_plan *plan = plan_on_pairs(&c, 1000, 1);
    double products = 3 * tokens * c.model.router.capacity_factor * 2 * weights * 8 / 6 / rate;
    const ch_plan_part *experts = part_of(find(plan, 1, 8, 1), "experts");
    assert_string_equal(experts->limit, wide ? "memory" : "arithmetic");
    assert_true(fabs(experts->seconds - fmax(products, 3 * 4 * weights / 20e9)) < 1e-12);
    ch_plan_free(plan);
  }
}

/* ---- what cannot be ---- */

static void refusals_say_why(void **state) {
  choir_config c = model_config("expert_choice"), d = model_config("dense");
  c.model.d_expert = 42;
  c.train.batch_sequences = d.train.batch_sequences = 16;
  ch_plan *plan = plan_on_pairs(&c, 1000, 1);
  assert_non_null(strstr(find(plan, 1, 2, 4)->refused, "the hidden width 42 does not go into 4 parts"));
  ch_plan_free(plan);
  c.model.d_expert = 40, c.model.experts = 4;
  plan = plan_on_pairs(&c, 1000, 1);
  assert_string_equal(find(plan, 1, 8, 1)->refused, ""); /* half of the ranks have no expert: it runs */
  ch_plan_free(plan);
  plan = plan_on_pairs(&c, 0.01, 1);
  assert_non_null(strstr(plan->layout[0].refused, "a rank needs "));
  ch_plan_free(plan);
  test_fails(ch_plan_create(&c, &(ch_plan_options){.cluster = "cluster.json", .ranks = 9}, &plan), CHOIR_ERROR_ARGUMENT,
             "9 ranks: the cluster has 8");
  c.train.batch_sequences = 12;
  test_fails(ch_plan_create(&c, &(ch_plan_options){.cluster = "cluster.json"}, &plan), CHOIR_ERROR_ARGUMENT,
             "train.batch_sequences is 12, which 8 ranks cannot share evenly; set it to a multiple of 8");
  c.train.batch_sequences = 16;
  c.train.compute = CH_COMPUTE_BF16;
  test_fails(ch_plan_create(&c, &(ch_plan_options){.cluster = "cluster.json"}, &plan), CHOIR_ERROR_ARGUMENT,
             "bf16_gflops");
  d.model.moe_every = 0;
  plan = plan_on_pairs(&d, 1000, 1);
  assert_true(*find(plan, 1, 8, 1)->refused == 0 && strstr(find(plan, 2, 4, 1)->refused, "no experts") != NULL);
  ch_plan_free(plan);
}

/* The seven sizes of the paper have a layout on some example of a cluster, the largest on 512 chips. */
static void the_papers_sizes(void **state) {
  static const struct {
    const char *config, *cluster, *compute;
    int sequences;
  } want[] = {{"0.1b-dense", "ethernet-8", "fp32", 64},  {"0.1b-16e", "ethernet-8", "fp32", 64},
              {"0.1b-32e", "ethernet-8", "fp32", 64},    {"0.1b-64e", "fat-tree-64", "fp32", 512},
              {"0.1b-128e", "fat-tree-64", "bf16", 512}, {"8b-dense", "fat-tree-64", "fp32", 64},
              {"8b-dense", "torus-512", "bf16", 512},    {"8b-64e", "torus-512", "bf16", 1024}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    char path[512], cluster[512];
    choir_config c;
    ch_plan *plan;
    snprintf(path, sizeof path, "%s/configs/%s.json", CHOIR_SOURCE_DIR, want[i].config);
    snprintf(cluster, sizeof cluster, "%s/examples/clusters/%s.json", CHOIR_SOURCE_DIR, want[i].cluster);
    test_ok(ch_config_load(path, &c));
    c.train.batch_sequences = want[i].sequences;
    c.train.compute = ch_word_number(ch_compute_names, want[i].compute);
    c.parallel.dispatch_dtype = ch_word_number(ch_compute_names, want[i].compute);
    test_ok(ch_plan_create(&c, &(ch_plan_options){.cluster = cluster}, &plan));
    const ch_plan_layout *l = &plan->layout[0];
    if (*l->refused) fail_msg("%s on %s: %s", want[i].config, want[i].cluster, l->refused);
    assert_true(l->tokens_per_second > 0 && l->share > 0 && l->share < 1);
    double cost = plan->cluster.price * plan->ranks * 1e9 / l->tokens_per_second / 3600;
    assert_true(cost > 0 && fabs(l->cost / cost - 1) < 1e-12);
    ch_plan_free(plan);
  }
}

/* ---- the program ---- */

static void the_verb(void **state) {
  choir_config c = model_config("expert_choice");
  char text[1024];
  ch_format(text, sizeof text, pairs, 1000.0, 1.0);
  test_ok(ch_file_save("cluster.json", text, strlen(text)));
  test_ok(choir_config_save(&c, "config.json"));
  program_must("COLUMNS=1000 choir plan config.json --cluster cluster.json --out plan.html");
  const char *const words[] = {"estimates by formulas, no measurements", "assumed: share of the peak: attention at 0.6",
                               "expert rows", "on net", "choir train"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strstr(program_output, words[i])) fail_msg("'%s' is not in:\n%s", words[i], program_output);
  json_t *data = page_data("plan.html");
  assert_int_equal(json_array_size(json_object_get(data, "layouts")), 10);
  json_decref(data);
  PAGE_SHOWS("plan.html", "", "nothing was measured", "<td>dense gradients</td>", "ms</b><span>a step</span>", "!NaN");
  program_must(
      "choir plan config.json --cluster cluster.json --layout 2x2x2 | grep -q '^2 x 2 x 2, dense matrices whole: "
      "choir train --replicas 2 --hidden 2'");
  program_must("test $(choir plan config.json --cluster cluster.json --json | grep -c '\"event\":\"layout\"') = 10");
  program_must("choir plan config.json --cluster cluster.json --ranks 2 --json | head -1 | grep -q '\"ranks\":2,'");
  program_refuses(2, "--layout 3x1x1", "choir plan config.json --cluster cluster.json --layout 3x1x1 --out no.html");
  program_must("! ls no.html");
  program_refuses(2, "no effect with --json", "choir plan config.json --cluster cluster.json --layout 2x2x2 --json");
  program_refuses(2, "--cluster FILE is missing", "choir plan config.json");
  program_refuses(1, "no layout of 8 ranks is possible",
                  "sed s/1000/0.01/ cluster.json >small.json; choir plan config.json --json --cluster small.json");
  program_refuses(1, "no layout of 8 ranks is possible",
                  "sed s/1000/0.01/ cluster.json >small.json; choir plan config.json --cluster small.json");
  program_refuses(1, "did you mean 'ranks'",
                  "sed s/\\\"ranks/\\\"rankz/ cluster.json >bad.json; choir plan config.json --cluster bad.json");
}

TEST_MAIN(program_directory_make, program_directory_remove, one_process_is_what_the_program_says, step_by_hand,
          other_steps_by_hand, ranks_plan_what_the_plan_says, experts_are_shared, bytes_are_conserved,
          half_the_bandwidth_twice_the_time, rows_by_hand, rows_pass_beside_products, the_fullest_rank_counts,
          refusals_say_why, the_papers_sizes, the_verb)
