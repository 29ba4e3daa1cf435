/* The layout that ranks choose if the user names none: one with the results of one process if memory allows, else the
 * first that fits into memory; `choir plan` marks the same layout. */
#include <sys/resource.h>

#include "base/machine.h"
#include "choir/choir.h"
#include "forked_comm.h"
#include "model/config.h"
#include "model_testing.h"
#include "plan/plan.h"
#include "plan/traffic.h"
#include "program.h"
#include "train/layout.h"

/* Every layout once, the fewest hidden shards and then replicas first, whole before sharded. */
static void every_layout_in_order(void **state) {
  for (int ranks = 1; ranks <= 64; ranks++) {
    int want = 0, count = 0;
    ch_layout before = {0}, l = {.ranks = ranks};
    for (int r = 1; r <= ranks; r++)
      for (int h = 1; h <= ranks; h++)
        if (ranks % (r * h) == 0) want += r < ranks ? 2 : 1;
    for (; ch_layout_next(&l); before = l, count++) {
      assert_int_equal(l.replicas * l.experts * l.hidden, ranks);
      int at = (l.hidden * 1000 + l.replicas) * 2 + l.dense_sharded;
      assert_true(at > (before.hidden * 1000 + before.replicas) * 2 + before.dense_sharded);
    }
    assert_int_equal(count, want);
  }
}

/* ---- on ranks ---- */

typedef struct {
  choir_config config;
  int ranks;
  double mib; /* memory limit of each rank; 0: none */
  ch_layout given, want;
  int odd; /* a rank that is told two replicas; 0: none */
  int code;
  const char *says;
} job;

/* Limits the address space, as `ulimit -v` does, to so much beside what the process has. */
static int limit_memory(double mib) {
  size_t pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%zu", &pages) != 1) return -1;
  fclose(f);
  rlim_t bytes = (rlim_t)(pages * (size_t)sysconf(_SC_PAGESIZE)) + (rlim_t)(mib * 0x1p20);
  return setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
}

static int choose(const ch_comm *comm, void *context) {
  const job *j = context;
  ch_comm network = *comm; /* as messages are cut there */
  network.worth = CH_COMM_WORTH;
  choir_ranks ranks = {.comm = &network,
                       .replicas = comm->rank && comm->rank == j->odd ? 2 : j->given.replicas,
                       .hidden = j->given.hidden,
                       .dense_sharded = j->given.dense_sharded};
  const choir_model_options run = {.size = sizeof run, .threads = 1, .emulate_bf16 = 1};
  char why[512];
  if (j->mib > 0 && limit_memory(j->mib)) return 1;
  int code = ch_layout_choose(&j->config, &run, &ranks, why, sizeof why);
  const char *said = code ? choir_error_message() : why;
  int same = code || (ranks.replicas == j->want.replicas && ranks.hidden == j->want.hidden &&
                      ranks.dense_sharded == j->want.dense_sharded);
  if (same && code == j->code && (j->says ? strstr(said, j->says) != NULL : !*said)) return 0;
  fprintf(stderr, "rank %d of %d: code %d, %d x . x %d, dense %d: %s\n", comm->rank, comm->size, code, ranks.replicas,
          ranks.hidden, ranks.dense_sharded, said);
  return 1;
}

/* A plan marks the same layout where its ranks have as much memory. */
static void plan_marks_the_same(const job *j) {
  char text[512];
  ch_plan *plan;
  const ch_plan_layout *l;
  int marked = 0;
  ch_format(text, sizeof text,
            "{\"name\": \"same\", \"ranks\": %d, \"fp32_gflops\": 100, \"memory_gib\": %.9g, \"memory_gbs\": 20, "
            "\"levels\": [{\"name\": \"net\", \"ranks\": %d, \"bandwidth_gbs\": 1, \"latency_us\": 0}]}",
            j->ranks, j->mib > 0 ? j->mib / 1024 : 1000, j->ranks);
  test_ok(ch_file_save("cluster.json", text, strlen(text)));
  test_ok(ch_plan_create(&j->config, &(ch_plan_options){.cluster = "cluster.json"}, &plan));
  for (l = plan->layout; l < plan->layout + plan->count; l++) {
    if (!l->chosen) continue;
    marked++;
    assert_true(l->replicas == j->want.replicas && l->hidden == j->want.hidden &&
                l->dense_sharded == j->want.dense_sharded && !*l->refused);
  }
  assert_int_equal(marked, !j->code);
  ch_plan_free(plan);
}

static void go(job j) {
  int limited = j.mib <= 0 || !test_emulated(); /* an emulator has no limits of a process's memory: plans alone */
  if (limited && forked_run(j.ranks, 0, choose, &j)) fail_msg("%d ranks, %g MiB", j.ranks, j.mib);
  if (!j.given.replicas && !j.odd) plan_marks_the_same(&j);
}

static double needs(const choir_config *c, int ranks, int replicas, int hidden, int sharded) {
  ch_plan_layout l = {0};
  test_ok(ch_plan_memory(c, &(ch_layout){ranks, replicas, ranks / replicas / hidden, hidden, sharded}, &l));
  return (double)l.bytes / 0x1p20;
}

/* Tens of MiB of dense matrices, or of experts. */
static choir_config config_of(int experts, int d_hidden, int d_expert, int shards) {
  choir_config c = model_config("expert_choice");
  c.model.experts = experts;
  c.model.d_model = 256;
  c.model.d_hidden = d_hidden, c.model.d_expert = d_expert;
  c.train.grad_chunks = c.train.batch_sequences = shards;
  return c;
}

static void prefers_the_bits_of_one_process(void **state) {
  choir_config c = config_of(8, 512, 64, 8), dense = c;
  dense.model.moe_every = 0;
  go((job){
      .config = c, .ranks = 4, .want = {.replicas = 1, .hidden = 1}, .says = "1 replica x 4 groups of experts x 1"});
  go((job){.config = c, .ranks = 8, .want = {.replicas = 1, .hidden = 1}, .says = "bit for bit"});
  go((job){.config = dense, .ranks = 8, .want = {.replicas = 1, .hidden = 1}, .says = "bit for bit"});
}

static void replicas_where_experts_are_few(void **state) {
  choir_config c = config_of(4, 512, 64, 8);
  go((job){
      .config = c,
      .ranks = 8,
      .want = {.replicas = 2, .hidden = 1},
      .says = "2 replicas x 4 groups of experts x 1 hidden shard, dense matrices whole: 4 experts are too few for 8"});
}

static void sharded_where_dense_matrices_are_too_large(void **state) {
  choir_config c = config_of(8, 4096, 64, 8);
  c.model.layers = 6; /* there is room for two layers' matrices that visit */
  double whole = needs(&c, 4, 1, 1, 0), sharded = needs(&c, 4, 1, 1, 1);
  assert_true(whole > sharded + 8);
  go((job){.config = c,
           .ranks = 4,
           .mib = (whole + sharded) / 2,
           .want = {.replicas = 1, .hidden = 1, .dense_sharded = 1},
           .says = "dense matrices sharded: rank 0 would need "});
  go((job){.config = c, .ranks = 4, .mib = sharded - 4, .code = CHOIR_ERROR_MEMORY, .says = "of 4 processes has room"});
}

/* Fewer copies of the experts where these are what is large; at last ranks without experts. */
static void hidden_shards_where_experts_are_too_large(void **state) {
  choir_config c = config_of(4, 64, 4096, 8);
  double replicas = needs(&c, 8, 2, 1, 1), hidden = needs(&c, 8, 1, 2, 0);
  assert_true(replicas > hidden + 8);
  go((job){.config = c,
           .ranks = 8,
           .mib = (replicas + hidden) / 2,
           .want = {.replicas = 1, .hidden = 2},
           .says = "1 replica x 4 groups of experts x 2 hidden shards"});
  c.train.grad_chunks = c.train.batch_sequences = 7;
  double all = needs(&c, 7, 7, 1, 0), idle = needs(&c, 7, 1, 1, 0);
  assert_true(all > idle + 8);
  go((job){.config = c, .ranks = 7, .want = {.replicas = 7, .hidden = 1}, .says = "4 experts are too few for 7"});
  go((job){.config = c,
           .ranks = 7,
           .mib = (all + idle) / 2,
           .want = {.replicas = 1, .hidden = 1},
           .says = "1 replica x 7 groups of experts x 1 hidden shard"});
}

/* One rank alone would have room, and four of the same machine have not. */
static void ranks_of_a_machine_share_its_memory(void **state) {
  const double has = (double)ch_machine_available_memory_at("") / 0x1p20;
  choir_config c = config_of(8, 1024, 64, 4);
  c.model.layers = 2, c.model.d_model = 8192; /* one GEGLU layer, for which there must be room in every layout */
  while (needs(&c, 4, 1, 1, 0) < 0.4 * has) c.model.d_hidden += c.model.d_hidden / 2;
  assert_true(needs(&c, 4, 1, 1, 0) < 0.8 * has && needs(&c, 4, 1, 1, 1) > 0.3 * has);
  job j = {.config = c,
           .ranks = 4,
           .code = CHOIR_ERROR_MEMORY,
           .says = "with the first, the 4 processes on the machine of rank 0 would need "};
  if (forked_run(j.ranks, 0, choose, &j)) fail_msg("d_hidden %d", c.model.d_hidden);
}

static void given_layout_is_kept(void **state) {
  choir_config c = config_of(4, 512, 64, 8);
  const ch_layout given = {.replicas = 1};
  go((job){.config = c, .ranks = 8, .given = given, .want = given});
  go((job){.config = c,
           .ranks = 4,
           .odd = 2,
           .code = CHOIR_ERROR_ARGUMENT,
           .says = "rank 2 of 4 has another number of replicas than rank 0"});
}

/* ---- a run ---- */

typedef struct {
  const choir_config *config;
  int steps;
} run_job;

static int given(void *context, const choir_event *e) {
  if (e->kind == CHOIR_EVENT_MEMORY && e->layout) snprintf(context, 512, "%s", e->layout);
  return 0;
}

static int train(const ch_comm *comm, void *context) {
  const run_job *j = context;
  const choir_ranks ranks = {.comm = comm};
  choir_config c = *j->config;
  char text[512] = "";
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .threads = 1, .ranks = &ranks};
  c.train.steps = j->steps;
  o.config = &c, o.data = "data", o.out = "run", o.resume = j->steps > 2;
  o.model = &model, o.event = given, o.context = text;
  int code = choir_train(&o), says = strstr(text, comm->size > 4 ? "2 replicas x 4" : "bit for bit") != NULL;
  if (code || !says) fprintf(stderr, "rank %d: %s; layout: %s\n", comm->rank, choir_error_message(), text);
  return code || !says;
}

/* Four experts on eight ranks, then four, then eight again. */
static void a_run_goes_on_in_another_layout(void **state) {
  choir_config c;
  test_ok(ch_config_load("config.json", &c));
  c.train.batch_sequences = c.train.grad_chunks = 8;
  for (int i = 0; i < 3; i++) assert_int_equal(forked_run(i == 1 ? 4 : 8, 0, train, &(run_job){&c, 2 + 2 * i}), 0);
  program_must("grep -c '\"ranks\":8,\"replicas\":2' run/timing.jsonl | grep -q 2");
  program_must("grep -q '\"ranks\":4,\"replicas\":1' run/timing.jsonl && test $(wc -l < run/metrics.jsonl) -ge 6");
}

TEST_MAIN(program_setup, program_directory_remove, every_layout_in_order, prefers_the_bits_of_one_process,
          replicas_where_experts_are_few, sharded_where_dense_matrices_are_too_large,
          hidden_shards_where_experts_are_too_large, ranks_of_a_machine_share_its_memory, given_layout_is_kept,
          a_run_goes_on_in_another_layout)
