/* guard_case REPETITIONS CASE: prepares one case, then runs it so many times on one thread. bench/guard starts it under
 * callgrind with two counts of repetitions: what they differ by is one repetition, warm, without the preparation.
 *
 *   any case of choir_bench                    step config=configs/nano.json B=4
 *   route ROUTER N E                           choir_route on made-up logits
 *   encode MODEL TEXT                          choir_tokenizer_encode of a whole file
 *   decode CONFIG P N                          N tokens one by one behind a prompt of P, in a session
 *
 * guard_case versions: what beside choir itself the counts depend on; guard_case routers: a name a line. */
#include <dnnl.h>
#include <gnu/libc-version.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choir/bench.h"
#include "choir/generate.h"
#include "choir/route.h"
#include "choir/tokenizer.h"

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
  choir_bench_options options = {.threads = 1, .repetitions = repetitions, .seconds = 1e-9};
  choir_bench_result result;
  return choir_bench(problem, &options, &result) ? fail(problem) : 0;
}

/* Logits in [-2, 2) that look like noise and are the same everywhere. */
static void fill_logits(float *x, int64_t count) {
  uint64_t z = 1;
  for (int64_t i = 0; i < count; i++) {
    z = z * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    x[i] = (float)(z >> 40) * 0x1p-22f - 2;
  }
}

static int route_repeatedly(const choir_router_options *options, int n, int e, int repetitions) {
  size_t cells = (size_t)n * (size_t)e;
  float *scores = malloc(cells * sizeof *scores), *gates = malloc(cells * sizeof *gates);
  int32_t *tokens = malloc((size_t)n * sizeof *tokens);
  int code = scores && gates && tokens ? CHOIR_OK : CHOIR_ERROR_MEMORY;
  if (!code) fill_logits(scores, (int64_t)cells);
  for (int t = 0; !code && t < n; t++) tokens[t] = (int32_t)((int64_t)t * 7919 % 32000);
  for (int i = 0; !code && i < repetitions; i++)
    code = choir_route(options, n, e, scores, 1, tokens, NULL, 0, 1, 1, gates, NULL);
  free(tokens);
  free(gates);
  free(scores);
  return code;
}

static int route(const char *problem, int repetitions) {
  char name[CHOIR_NAME_BYTES];
  int n, e;
  choir_router_options options;
  if (sscanf(problem, "route %31s %d %d", name, &n, &e) != 3 || n < 1 || e < 1) return wrong_usage(problem);
  if (choir_router_default(name, &options) || route_repeatedly(&options, n, e, repetitions)) return fail(problem);
  return 0;
}

static char *read_text(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  size_t room = (size_t)1 << 20;
  char *text = malloc(room);
  *size = f && text ? fread(text, 1, room, f) : 0;
  if (f) fclose(f);
  return text;
}

static int encode(const char *problem, int repetitions) {
  char model[512], path[512];
  size_t size, count = 0;
  choir_tokenizer *tokenizer;
  if (sscanf(problem, "encode %511s %511s", model, path) != 2) return wrong_usage(problem);
  if (choir_tokenizer_load(model, &tokenizer)) return fail(model);
  char *text = read_text(path, &size);
  int code = CHOIR_OK;
  for (int i = 0; !code && i < repetitions; i++) {
    int32_t *ids = NULL;
    code = choir_tokenizer_encode(tokenizer, text, size, &ids, &count);
    free(ids);
  }
  free(text);
  choir_tokenizer_free(tokenizer);
  if (!code && !count) return wrong_usage(problem);
  return code ? fail(problem) : 0;
}

/* Cut-offs that training would have left, at which a token has some experts. */
static void set_thresholds(choir_model *model) {
  choir_parameter p;
  for (int i = 0; !choir_model_parameter(model, i, &p); i++)
    for (int64_t j = 0; strstr(p.name, "thresholds") && j < p.shape[0]; j++) p.data[j] = 1 / (float)p.shape[0];
}

static int decode_repeatedly(choir_model *model, int prompt, int tokens, int repetitions) {
  choir_session_options options = {.slots = 1, .length = prompt + tokens, .chunk = 32};
  choir_session *session = NULL;
  int code = choir_session_create(model, &options, &session), one = 1;
  int vocabulary = choir_model_config_of(model)->model.vocab_size;
  float *logits = malloc((size_t)vocabulary * sizeof *logits);
  if (!code && !logits) code = CHOIR_ERROR_MEMORY;
  for (int i = 0; !code && i < prompt + tokens * repetitions; i++) {
    int32_t token = (int32_t)((int64_t)i * 7919 % vocabulary);
    if (choir_session_length(session, 0) == prompt + tokens) code = choir_session_rewind(session, 0, prompt);
    if (!code) code = choir_session_advance(session, &one, &token, logits, NULL);
  }
  free(logits);
  choir_session_free(session);
  return code;
}

static int decode(const char *problem, int repetitions) {
  char path[512];
  int prompt, tokens;
  choir_config config;
  choir_run_options run = CHOIR_RUN_OPTIONS_INIT;
  choir_model *model = NULL;
  run.threads = 1;
  if (sscanf(problem, "decode %511s %d %d", path, &prompt, &tokens) != 3 || prompt < 1 || tokens < 1)
    return wrong_usage(problem);
  int code = choir_config_load(path, &config);
  if (!code) code = choir_model_init(&config, 1, &run, &model);
  if (!code) set_thresholds(model);
  if (!code) code = choir_model_set_routing(model, "threshold");
  if (!code) code = decode_repeatedly(model, prompt, tokens, repetitions);
  choir_model_free(model);
  return code ? fail(problem) : 0;
}

static int versions(void) {
  const dnnl_version_t *v = dnnl_version();
  printf("compiler %s\nflags %s\nonednn %d.%d.%d\nsentencepiece %s\nlibc %s\n", GUARD_COMPILER, GUARD_FLAGS, v->major,
         v->minor, v->patch, GUARD_SENTENCEPIECE, gnu_get_libc_version());
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
  if (!strncmp(problem, "encode ", 7)) return encode(problem, repetitions);
  if (!strncmp(problem, "decode ", 7)) return decode(problem, repetitions);
  return bench(problem, repetitions);
}
