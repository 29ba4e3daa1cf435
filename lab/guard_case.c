/* guard_case REPETITIONS CASE: prepares one case, then runs it so many times on one thread. lab/guard starts it under
 * callgrind with two counts of repetitions: what they differ by is one repetition, warm, without the preparation.
 *
 *   any case of ch_bench_run                   step config=configs/nano.json B=4
 *   route ROUTER N E                           choir_route on made-up logits
 *
 * guard_case versions: what beside choir itself the counts depend on; guard_case routers: a name a line. */
#include <gnu/libc-version.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "choir/router.h"

static int fail(const char *what) {
  fprintf(stderr, "guard_case: %s: %s\n", what, choir_error_message());
  return 1;
}

static int wrong_usage(const char *problem) {
  fprintf(stderr, "guard_case: cannot read the case '%s'\n", problem);
  return 2;
}

/* Without a peak to compare with there is nothing to measure first; so short a time means exactly `repetitions`. */
static int bench(const char *problem, int repetitions) {
  ch_bench_options options = {.threads = 1, .repetitions = repetitions, .seconds = 1e-9};
  ch_bench_result result;
  return ch_bench_run(problem, &options, &result) ? fail(problem) : 0;
}

/* Logits in [-2, 2) that look like noise and are the same everywhere. */
static void fill_logits(float *x, int64_t count) {
  uint64_t z = 1;
  for (int64_t i = 0; i < count; i++) {
    z = z * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    x[i] = (float)(z >> 40) * 0x1p-22f - 2;
  }
}

static int route_repeatedly(const choir_config *config, int n, int e, int repetitions) {
  size_t cells = (size_t)n * (size_t)e;
  float *scores = malloc(cells * sizeof *scores), *gates = malloc(cells * sizeof *gates);
  int32_t *tokens = malloc((size_t)n * sizeof *tokens);
  int code = scores && gates && tokens ? CHOIR_OK : CHOIR_ERROR_MEMORY;
  if (!code) fill_logits(scores, (int64_t)cells);
  for (int t = 0; !code && t < n; t++) tokens[t] = (int32_t)((int64_t)t * 7919 % 32000);
  for (int i = 0; !code && i < repetitions; i++)
    code = choir_route(&(choir_route_request){.config = config,
                                              .n = n,
                                              .e = e,
                                              .scores = scores,
                                              .is_logits = 1,
                                              .tokens = tokens,
                                              .training = 1,
                                              .seed = 1},
                       gates, NULL);
  free(tokens);
  free(gates);
  free(scores);
  return code;
}

static int route(const char *problem, int repetitions) {
  char name[CHOIR_NAME_BYTES];
  int n, e;
  choir_config *config = NULL;
  if (sscanf(problem, "route %31s %d %d", name, &n, &e) != 3 || n < 1 || e < 1) return wrong_usage(problem);
  int code = choir_config_create(&config);
  if (!code) code = choir_config_set(config, "router.name", name);
  if (!code) code = route_repeatedly(config, n, e, repetitions);
  choir_config_free(config);
  return code ? fail(problem) : 0;
}

static int versions(void) {
  printf("compiler %s\nflags %s\nsentencepiece %s\nlibc %s\n", GUARD_COMPILER, GUARD_FLAGS, GUARD_SENTENCEPIECE,
         gnu_get_libc_version());
  return 0;
}

static int routers(void) {
  for (const char *const *name = choir_router_names(); *name; name++) puts(*name);
  return 0;
}

int main(int count, char **words) {
  if (count == 2 && !strcmp(words[1], "versions")) return versions();
  if (count == 2 && !strcmp(words[1], "routers")) return routers();
  int repetitions = count == 3 ? atoi(words[1]) : 0;
  if (repetitions < 1) {
    fputs("usage: guard_case REPETITIONS CASE | versions | routers\n", stderr);
    return 2;
  }
  json_object_seed(1); /* else a random one, and with it the order of what is freed */
  const char *problem = words[2];
  if (!strncmp(problem, "route ", 6)) return route(problem, repetitions);
  return bench(problem, repetitions);
}
