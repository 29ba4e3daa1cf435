/* Every optimizer, in double, on matrices whose columns lie on the ranks of x->grid.tp_group: it updates them as one
 * process updates the whole ones. Gradients follow the weights, so that a wrong update is seen in all later ones. */
#include "cut_testing.h"
#include "forked_comm.h"
#include "optim/optim.h"

enum { STEPS = 5, BATCH = 2, ROWS = 7, COLS = 12, SIZE = ROWS * COLS, MAX_GROUPS = 2 };

static const double tolerance = 1e-13;

typedef struct {
  const ch_optim *optim;
  int hidden, groups; /* ranks that share matrices; how many such groups, each with BATCH matrices of its own */
  const int64_t *begin;
  real *w; /* [groups,BATCH,ROWS,COLS], shared by the processes */
} job;

static int learn(const ch_comm *comm, void *context) {
  const job *j = context;
  int group = comm->rank / j->hidden;
  int64_t first = j->begin[comm->rank % j->hidden], own = j->begin[comm->rank % j->hidden + 1] - first;
  int64_t batch = (int64_t)BATCH * j->groups * j->hidden / comm->size, lines = batch * ROWS;
  real *all = test_new(MAX_GROUPS * BATCH * SIZE), *noise = test_new(lines * own), *g = test_new(lines * own);
  ch_train_config config = {.beta1 = 0.9, .beta2 = 0.99};
  ch_optim_tensor t = {.batch = batch, .rows = ROWS, .cols = own, .all_cols = COLS, .w = test_new(lines * own), .g = g};
  ch_exec x;
  test_ok(ch_exec_init(&x, "reference", CH_COMPUTE_FP32, 0, 1));
  x.comm = comm;
  x.grid.tp_group = ch_comm_group(comm, group * j->hidden, 1, j->hidden);
  j->optim->shape(&t);
  for (int i = 0; i < CH_OPTIM_STATES; i++) t.state[i] = test_new(t.state_count[i]);
  int64_t above = (int64_t)group * BATCH * ROWS; /* lines of other groups */
  cut_normal(all, MAX_GROUPS * BATCH * ROWS, COLS, 1, 1);
  cut_take(all + above * COLS, lines, COLS, first, own, t.w);
  for (int step = 0; step <= STEPS; step++) { /* 0 counts */
    cut_normal(all, MAX_GROUPS * BATCH * ROWS, COLS, 0.1, (uint32_t)(10 + step));
    cut_take(all + above * COLS, lines, COLS, first, own, noise);
    for (int64_t i = 0; i < lines * own; i++) g[i] = t.w[i] + noise[i];
    j->optim->step(&x, &(ch_optim_args){.config = &config,
                                        .tensor = &t,
                                        .step = step ? step : 1,
                                        .learning_rate = 0.05,
                                        .grad_scale = step % 2 ? 0.5 : 0.05});
    if (!step) test_ok(ch_exec_commit(&x));
  }
  cut_put(t.w, lines, COLS, first, own, j->w + above * COLS);
  for (int i = 0; i < CH_OPTIM_STATES; i++) free(t.state[i]);
  free(all), free(noise), free(g), free(t.w);
  ch_exec_free(&x);
  return 0;
}

static real *shared(void) {
  return mmap(NULL, MAX_GROUPS * BATCH * SIZE * sizeof(real), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
              0);
}

static void same_as_one(const ch_optim *optim, int groups, int hidden, const int64_t *begin) {
  static const int64_t all[] = {0, COLS};
  int64_t count = (int64_t)groups * BATCH * SIZE;
  real *one = shared(), *many = shared(), *start = test_new(count);
  if (forked_run(1, 0, learn, &(job){optim, 1, groups, all, one})) fail_msg("%s: one process", optim->name);
  cut_normal(start, groups * BATCH * ROWS, COLS, 1, 1);
  assert_true(test_error(one, start, count) > 1e-3);
  if (forked_run(groups * hidden, 0, learn, &(job){optim, hidden, groups, begin, many}))
    fail_msg("%s: %d x %d ranks", optim->name, groups, hidden);
  double error = test_error(many, one, count);
  if (!(error <= tolerance)) fail_msg("%s, %d x %d ranks: weights differ by %g", optim->name, groups, hidden, error);
  munmap(one, MAX_GROUPS * BATCH * SIZE * sizeof *one);
  munmap(many, MAX_GROUPS * BATCH * SIZE * sizeof *many);
  free(start);
}

static void every_optimizer(void **state) {
  for (int i = 0; ch_optims[i]; i++) {
    same_as_one(ch_optims[i], 1, 2, (const int64_t[]){0, 6, 12});
    same_as_one(ch_optims[i], 1, 3, (const int64_t[]){0, 1, 8, 12});
    same_as_one(ch_optims[i], 2, 2, (const int64_t[]){0, 5, 12});
    same_as_one(ch_optims[i], 2, 3, (const int64_t[]){0, 4, 8, 12});
  }
}

TEST_MAIN(NULL, NULL, every_optimizer)
