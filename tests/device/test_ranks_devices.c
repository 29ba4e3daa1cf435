/* Ranks whose models stand on devices: what they send each other goes through the host, by copies that are named as
 * such. On memory that the host cannot touch runs are those of the CPU's ranks, byte for byte. With the kernels of
 * devices, as the CUDA stand-in runs them, they are their own, bit for bit, and one process's: bit for bit or, where
 * replicas or hidden shards add in another order, within rounding. */
#include <jansson.h>

#include "device/device.h"
#include "fenced.h"
#include "forked_runs.h"
#include "stand_in.h"

enum { STEPS = 4 };

/* Ranks, replicas, hidden shards, sharded dense matrices: some of each. */
static const struct {
  int ranks, replicas, hidden, dense_sharded;
} layouts[] = {{2, 1, 1, 0}, {4, 1, 1, 1}, {4, 2, 1, 0}, {2, 1, 2, 1}, {4, 2, 2, 0}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* A run on the i-th layout. */
static job job_on(const char *backend, const char *router, const char *out, int i, const char *dispatch_dtype) {
  job j = job_of(router, out, STEPS);
  j.backend = backend;
  j.replicas = layouts[i].replicas, j.hidden = layouts[i].hidden, j.dense_sharded = layouts[i].dense_sharded;
  if (j.config.model.experts == 1) j.replicas = layouts[i].ranks / j.hidden; /* of one expert one group */
  test_ok(choir_config_set(&j.config, "parallel.dispatch_dtype", dispatch_dtype));
  if (!strcmp(backend, "cuda"))
    test_set(&j.config, "%s", "batch_sequences=4 grad_chunks=4 sequence_length=8 eval_sequences=4");
  program_must("rm -rf %s", out);
  return j;
}

/* Every other router with hardly any room, so that rows go in rounds. */
static void host_follows_no_device_pointer(void **state) {
  const char *const *names = choir_router_names();
  for (int i = 0; names[i]; i++) {
    int l = i % LAYOUTS;
    fence_watch();
    forked_means = i / LAYOUTS % 2 ? 0 : CH_COMM_MEANS;
    go(job_on("cpu", names[i], "cpu", l, i % 2 ? "bf16" : "fp32"), layouts[l].ranks);
    go(job_on("fenced", names[i], "fenced", l, i % 2 ? "bf16" : "fp32"), layouts[l].ranks);
    if (!program_same_runs("cpu", "fenced", STEPS)) fail_msg("%s: other bytes", names[i]);
  }
  forked_means = CH_COMM_MEANS;
}

static void ranks_train_as_one_process(void **state) {
  test_needs_stand_in();
  signal(SIGSEGV, SIG_DFL); /* a rank that dies is no longjmp into this test */
  static const char *const some[LAYOUTS] = {"switch_top1", "expert_choice", "base", "expert_choice", "kmeans"};
  for (int i = 1; i < LAYOUTS; i += 2) { /* of the others the CPU's runs above see the layout */
    int same = layouts[i].replicas == 1 && layouts[i].hidden == 1;
    const char *dispatch_dtype = same && i ? "bf16" : "fp32"; /* which rounds the results of each hidden shard */
    job one = job_on("cuda", some[i], "one", i, dispatch_dtype);
    one.replicas = one.hidden = 1, one.dense_sharded = 0;
    go(one, 1);
    go(job_on("cuda", some[i], "many", i, dispatch_dtype), layouts[i].ranks);
    program_close_losses(some[i], "many", "one", STEPS + 2, 1e-5);
    if (same && !program_same_runs("one", "many", STEPS)) fail_msg("%s: other bytes than one process", some[i]);
    if (same) continue;
    go(job_on("cuda", some[i], "again", i, dispatch_dtype), layouts[i].ranks);
    if (!program_same_runs("many", "again", STEPS)) fail_msg("%s: not the same twice", some[i]);
  }
}

/* Stopped on a layout, gone on with on the same one, where nothing tells that it was, and on another. */
static void resume(void **state) {
  test_needs_stand_in();
  signal(SIGSEGV, SIG_DFL);
  go(job_on("cuda", "expert_choice", "one", 4, "fp32"), 4);
  for (int further = 4; further < 6; further++) { /* layouts 4 and 0 */
    job j = job_on("cuda", "expert_choice", "many", 4, "fp32");
    j.stop_rank = 1, j.code = CHOIR_ERROR_INTERRUPTED;
    go(j, 4);
    j = job_on("cuda", "expert_choice", "rest", further % LAYOUTS, "fp32");
    j.out = "many", j.resume = 1;
    go(j, layouts[further % LAYOUTS].ranks);
    program_close_losses("gone on", "many", "one", STEPS + 2, 1e-5);
    if (further == 4) assert_true(program_same_runs("one", "many", STEPS));
  }
}

static int choose(const char *launcher, const char *rank, int count) {
  ch_driver driver = {.name = "none"};
  setenv(launcher, rank, 1);
  int number = ch_device_choose(&driver, count);
  unsetenv(launcher);
  return number;
}

/* Ranks of a machine take one device after the other, unless a number is given. */
static void each_takes_the_next_device(void **state) {
  assert_int_equal(choose("OMPI_COMM_WORLD_LOCAL_RANK", "2", 4), 2);
  assert_int_equal(choose("MPI_LOCALRANKID", "5", 4), 1);
  assert_int_equal(choose("SLURM_LOCALID", "1", 1), 0);
  ch_device_wanted = 3;
  assert_int_equal(choose("SLURM_LOCALID", "1", 4), 3);
  ch_device_wanted = -1;
}

static int set_up(void **state) { return ch_backend_register(&fence_backend) || program_setup(state); }

TEST_MAIN(set_up, program_directory_remove, host_follows_no_device_pointer, each_takes_the_next_device,
          ranks_train_as_one_process, resume)
