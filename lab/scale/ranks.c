/* Steps of training on simulated ranks, for lab/scale/simulate. Model, layer, exchange and optimizer are the
 * library's; only what an op computes, and what a message carries, is not there.
 *
 *   ranks PLATFORM CONFIG RANKS REPLICAS HIDDEN SHARDED STEPS SPREAD POPULAR SEED [CLUSTER] [--cfg=...]
 *
 * SHARDED: 1 for dense matrices on one rank each, else 0. Prints one JSON object: seconds of a step, those that the
 * mean and the busiest rank computed, what a rank sent, and what the fullest expert took, over the mean. Without a
 * cluster's file nothing but messages takes time. */
#include "handle/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/collective.h"
#include "model/config.h"
#include "network.h"
#include "ops.h"
#include "routes.h"
#include "train/step.h"

typedef struct {
  choir_config config;
  int ranks, replicas, hidden, dense_sharded, steps;
  int32_t *tokens;
  double seconds;                    /* until the last rank was done */
  double computed, max;              /* of them: sum over ranks, and the largest */
  double bytes, messages, exchanges; /* sums over ranks */
  double first_messages;             /* of the first rank */
} simulation;

static void must(int code) {
  if (!code) return;
  fprintf(stderr, "%s\n", choir_error_message());
  exit(1);
}

void __real_ch_comm_sum(const ch_comm *comm, const char *what, int grad_chunks, const ch_comm_array *array, int arrays,
                        const ch_sum_buffers *buffers);
void __wrap_ch_comm_sum(const ch_comm *comm, const char *what, int grad_chunks, const ch_comm_array *array, int arrays,
                        const ch_sum_buffers *buffers);

/* The sums of gradients read and write what they exchange: not the rank's own memory, but what all ranks share. */
void __wrap_ch_comm_sum(const ch_comm *comm, const char *what, int grad_chunks, const ch_comm_array *array, int arrays,
                        const ch_sum_buffers *buffers) {
  real *nowhere[CH_SUM_PIECES], *shared;
  ch_comm_array moved[CH_AT_ONCE];
  int64_t max = (int64_t)grad_chunks * CH_SUM_SLICE; /* a sum has at most as many pieces as shards */
  for (int i = 0; i < arrays; i++) max = array[i].count > max ? array[i].count : max;
  shared = scale_network_nowhere(max * (int64_t)sizeof *shared);
  for (int i = 0; i < CH_SUM_PIECES; i++) nowhere[i] = shared;
  for (int i = 0; i < arrays; i++) moved[i] = array[i], moved[i].piece = nowhere;
  __real_ch_comm_sum(comm, what, grad_chunks, moved, arrays, &(ch_sum_buffers){shared, buffers->spans});
}

/* The exchanges of the loop of choir train outside the step (train/loop.c): seconds waited, error codes, requests to
 * stop. */
static void between_steps(const ch_comm *comm) {
  double own = 0, waited[CH_RANKS];
  ch_comm_gather(comm, "seconds waited", &own, waited, sizeof own);
  must(ch_comm_agree(comm, CHOIR_OK));
  ch_comm_max(comm, 0);
}

static void run_rank(const ch_comm *comm, void *context) {
  simulation *s = context;
  choir_ranks ranks = {.comm = comm, .replicas = s->replicas, .hidden = s->hidden, .dense_sharded = s->dense_sharded};
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  options.backend = "clock";
  options.threads = 1;
  options.ranks = &ranks;
  choir_model *model;
  ch_trainer trainer;
  choir_trainer_result result;
  must(ch_model_prepare(&s->config, &options, &model));
  must(ch_trainer_plan(model, &trainer));
  must(ch_trainer_commit(&trainer));
  for (int i = 0; i < s->steps; i++) {
    must(ch_trainer_step(&trainer, s->tokens, s->tokens, &result));
    between_steps(comm);
  }
  double now = scale_network_now(comm), computed = scale_network_computed(comm);
  if (now > s->seconds) s->seconds = now;
  if (computed > s->max) s->max = computed;
  s->computed += computed;
  s->bytes += (double)comm->traffic->bytes;
  s->messages += (double)comm->traffic->messages;
  if (!comm->rank) s->first_messages = (double)comm->traffic->messages;
  s->exchanges += (double)comm->traffic->exchanges;
  ch_trainer_free(&trainer);
}

int main(int argc, char **argv) {
  static ch_cluster cluster;
  if (argc < 11 || atoi(argv[3]) < 2) {
    fprintf(stderr,
            "ranks PLATFORM CONFIG RANKS REPLICAS HIDDEN SHARDED STEPS SPREAD POPULAR SEED [CLUSTER] [--cfg=...]\n");
    return 2;
  }
  simulation s = {.ranks = atoi(argv[3]),
                  .replicas = atoi(argv[4]),
                  .hidden = atoi(argv[5]),
                  .dense_sharded = atoi(argv[6]),
                  .steps = atoi(argv[7])};
  int timed = argc > 11 && argv[11][0] != '-';
  must(ch_config_load(argv[2], &s.config));
  if (timed) must(ch_cluster_load(argv[11], &cluster));
  int64_t n = (int64_t)ch_pass_sequences(&s.config) * s.config.train.sequence_length;
  s.tokens = calloc((size_t)ch_step_tokens(&s.config.train), sizeof *s.tokens);
  if (!s.tokens) return 1;
  scale_routes_set(&(scale_routes){
      .tokens = (int)n, .spread = atof(argv[8]), .popular = atof(argv[9]), .seed = strtoull(argv[10], NULL, 10)});
  must(ch_backend_register(scale_clock(timed ? &cluster : NULL)));
  scale_network_run(argc, argv, argv[1], s.ranks, run_rank, &s);
  double all = (double)s.steps * s.ranks;
  printf(
      "{\"ranks\":%d,\"seconds\":%.9g,\"computed\":%.9g,\"most_computed\":%.9g,\"bytes\":%.9g,\"messages\":%.9g,"
      "\"first_messages\":%.9g,\"exchanges\":%.9g,\"fullest\":%.4g}\n",
      s.ranks, s.seconds / s.steps, s.computed / all, s.max / s.steps, s.bytes / all, s.messages / all,
      s.first_messages / s.steps, s.exchanges / all, scale_routes_fullest());
  return 0;
}
