/* ch_bench_run: finds the case, reads its values, measures it. */
#include "bench/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "moe/router.h"

/* The cases that measure themselves. */
static const ch_bench_case own_cases[] = {
    {.name = "moe",
     .key = {{"n", 4096}, {"d", 768}, {"h", 3072}, {"e", 16}, {"c", 2}},
     .word = {{"router", "expert_choice"}},
     .run = ch_bench_moe},
    {.name = "assign",
     .key = {{"n", 4096}, {"e", 64}, {"c", 2}, {"b", 2}, {"d", 768}, {"h", 3072}},
     .word = {{"solver", "exact"}},
     .run = ch_bench_assign},
    {.name = "route",
     .key = {{"n", 65536}, {"e", 128}, {"c", 2}, {"d", 768}, {"h", 3072}},
     .word = {{"router", "expert_choice"}},
     .make = ch_bench_make_route,
     .run = ch_bench_route},
    {.name = "step",
     .key = {{"B", 0}, {"T", 0}, {"c", 0}},
     .word = {{"config", "configs/nano.json"}, {"router", ""}},
     .run = ch_bench_step},
    {.name = "decode",
     .key = {{"prompt", 64}, {"tokens", 32}},
     .word = {{"config", "configs/0.1b-16e.json"}},
     .run = ch_bench_decode},
    {.name = "prompt", .key = {{"tokens", 512}}, .word = {{"config", "configs/0.1b-16e.json"}}, .run = ch_bench_prompt},
    {.name = "tokenize",
     .key = {{"MB", 4}, {"V", 4096}},
     .word = {{"file", ""}, {"tokenizer", ""}},
     .run = ch_bench_tokenize},
    {0},
};
static const ch_bench_case *const tables[] = {own_cases, ch_bench_product_cases, ch_bench_pointwise_cases};
enum { TABLES = 3 };

static const char *const names[] = {"moe",       "assign", "route", "step",    "decode", "prompt", "tokenize",  "gemm",
                                    "attention", "head",   "gelu",  "rmsnorm", "select", "gather", "adafactor", NULL};

const char *const *ch_bench_names(void) { return names; }

static const ch_bench_case *find(const char *name) {
  for (int t = 0; t < TABLES; t++)
    for (const ch_bench_case *c = tables[t]; c->name; c++)
      if (!strcmp(c->name, name)) return c;
  char nearest[128], list[256];
  ch_error(CHOIR_ERROR_ARGUMENT, "there is no bench case '%s'%s (cases: %s)", name,
           ch_did_you_mean(nearest, sizeof nearest, name, names), ch_word_list(list, sizeof list, names));
  return NULL;
}

static int unknown_key(const ch_bench_case *c, const char *key) {
  const char *known[CH_BENCH_KEYS + CH_BENCH_WORDS + 2];
  char nearest[128], list[256];
  int count = 0;
  while (count < CH_BENCH_KEYS && c->key[count].name) {
    known[count] = c->key[count].name;
    count++;
  }
  known[count++] = "compute";
  for (int i = 0; i < CH_BENCH_WORDS && c->word[i].name; i++) known[count++] = c->word[i].name;
  known[count] = NULL;
  return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s' has no key '%s'%s (keys: %s)", c->name, key,
                  ch_did_you_mean(nearest, sizeof nearest, key, known), ch_word_list(list, sizeof list, known));
}

/* One "key=value". */
static int read_pair(ch_bench *b, const ch_bench_case *c, char *pair) {
  char *equals = strchr(pair, '='), *end;
  if (!equals) return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s': '%s' is not key=value", c->name, pair);
  const char *value = equals + 1;
  *equals = 0;
  if (!strcmp(pair, "compute")) return ch_compute_find(value, &b->compute);
  for (int i = 0; i < CH_BENCH_WORDS && c->word[i].name; i++) {
    if (strcmp(pair, c->word[i].name)) continue;
    snprintf(b->word[i], sizeof b->word[i], "%s", value);
    return CHOIR_OK;
  }
  for (int i = 0; i < CH_BENCH_KEYS && c->key[i].name; i++) {
    if (strcmp(pair, c->key[i].name)) continue;
    double number = ch_number(value, &end);
    if (!*value || *end || !(number >= 0 && number <= 1e12))
      return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s': %s is '%s': must be a number from 0 to 10^12", c->name,
                      pair, value);
    b->value[i] = number;
    return CHOIR_OK;
  }
  return unknown_key(c, pair);
}

/* The problem again with every key, but for words that say nothing. */
static void write_problem(ch_bench *b, const ch_bench_case *c) {
  char *text = b->result->problem;
  size_t size = sizeof b->result->problem, used = (size_t)snprintf(text, size, "%s", c->name);
  for (int i = 0; i < CH_BENCH_KEYS && c->key[i].name && used < size; i++)
    used += (size_t)ch_format(text + used, size - used, " %s=%.12g", c->key[i].name, b->value[i]);
  for (int i = 0; i < CH_BENCH_WORDS && c->word[i].name && used < size; i++)
    if (*b->word[i]) used += (size_t)snprintf(text + used, size - used, " %s=%s", c->word[i].name, b->word[i]);
  if (used < size) snprintf(text + used, size - used, " compute=%s", ch_compute_names[b->compute]);
}

/* Defaults, then what the problem says. */
static int read_values(ch_bench *b, const ch_bench_case *c, char *rest) {
  for (int i = 0; i < CH_BENCH_KEYS; i++) b->value[i] = c->key[i].value;
  for (int i = 0; i < CH_BENCH_WORDS; i++)
    snprintf(b->word[i], sizeof b->word[i], "%s", c->word[i].name ? c->word[i].value : "");
  char *save = NULL;
  for (char *pair = strtok_r(rest, " \t\n", &save); pair; pair = strtok_r(NULL, " \t\n", &save))
    CH_TRY(read_pair(b, c, pair));
  write_problem(b, c);
  return CHOIR_OK;
}

typedef struct {
  ch_exec x;
  ch_bench_work work;
} ready;

static void repeat(void *context) {
  ready *r = context;
  r->work.run(&r->x, r->work.args);
}

static int prepare(ready *r, const char *backend, ch_compute compute, int threads) {
  CH_TRY(ch_exec_init(&r->x, backend, compute, 0, threads));
  r->work.run(&r->x, r->work.args);
  return ch_exec_commit(&r->x);
}

static int make(ch_bench *b, int small, const ch_memory *memory, ch_bench_work *work) {
  b->drawn = 0;
  b->memory = memory;
  return b->which->make(b, small, work);
}

static int compare_outputs(ch_bench *b, const ch_bench_work *fast, const ch_bench_work *reference) {
  size_t selected = (size_t)fast->selection_count * sizeof(int);
  const void *selection = NULL;
  for (int i = 0; i < CH_BENCH_OUTPUTS && fast->out[i]; i++)
    CH_TRY(ch_bench_compare(b, fast->out[i], reference->out[i], fast->out_count[i], &b->result->error));
  if (!selected) return CHOIR_OK;
  CH_TRY(ch_bench_read(b, fast->selection, selected, &selection));
  if (memcmp(selection, CH_AS_HOST(const int, reference->selection), selected))
    b->result->error = ch_bench_worse(b->result->error, 1);
  return CHOIR_OK;
}

/* The small case on both backends. */
static int compare(ch_bench *b) {
  ready fast = {0}, reference = {0};
  int threads = b->options->threads;
  CH_TRY(make(b, 1, b->backend->memory, &fast.work));
  CH_TRY(make(b, 1, &ch_memory_host, &reference.work));
  int code = prepare(&fast, b->backend->name, b->compute, threads);
  if (!code) code = prepare(&reference, "reference", CH_COMPUTE_FP32, threads);
  if (!code) {
    repeat(&fast);
    repeat(&reference);
    code = compare_outputs(b, &fast.work, &reference.work);
  }
  ch_exec_free(&fast.x);
  ch_exec_free(&reference.x);
  return code;
}

int ch_bench_against_reference(ch_bench *b) {
  ready r = {0};
  CH_TRY(make(b, 0, b->backend->memory, &r.work));
  int code = prepare(&r, b->backend->name, b->compute, b->options->threads);
  if (!code) {
    ch_bench_time(b, repeat, &r);
    ch_bench_rates(b, r.work.flops, r.work.bytes);
  }
  ch_exec_free(&r.x);
  return code ? code : compare(b);
}

int ch_bench_run(const char *problem, const ch_bench_options *options, ch_bench_result *result) {
  char text[CH_BENCH_TEXT], *rest = text;
  if (strlen(problem) >= sizeof text)
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench: a problem of %zu letters is too long", strlen(problem));
  strcpy(text, problem + strspn(problem, " \t"));
  const char *name = strsep(&rest, " \t\n");
  const ch_bench_case *c = find(name);
  if (!c) return CHOIR_ERROR_ARGUMENT;
  *result = (ch_bench_result){0};
  ch_bench b = {.which = c, .options = options, .result = result};
  b.backend = ch_backend_find(options->backend ? options->backend : "cpu");
  if (!b.backend) return CHOIR_ERROR_ARGUMENT;
  b.memory = b.backend->memory;
  CH_TRY(ch_threads_resolve(options->threads, &b.threads));
  CH_TRY(ch_threads_check(b.threads));
  int code = read_values(&b, c, rest ? rest : text + strlen(text));
  if (!code) code = c->run ? c->run(&b) : ch_bench_against_reference(&b);
  for (int i = 0; i < b.arrays; i++) ch_arena_free(&b.array[i]);
  return code;
}

int ch_bench_config(const ch_bench *b, choir_config *config) {
  CH_TRY(choir_config_load(b->word[0], config));
  if (!config->model.vocab_size) config->model.vocab_size = 8192;
  snprintf(config->train.compute, sizeof config->train.compute, "%s", ch_compute_names[b->compute]);
  return CHOIR_OK;
}

int ch_bench_capacity(const ch_bench *b, int key, choir_router_options *options) {
  const ch_router *router = ch_router_find(options->name);
  if (ch_router_takes(router, CH_ROUTER_TAKES(capacity_factor))) {
    if (b->value[key] > 0) options->capacity_factor = b->value[key];
    return CHOIR_OK;
  }
  if (b->value[key] == b->which->key[key].value) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': %s=%g, but router '%s' takes no capacity factor: leave it out",
                  b->which->name, b->which->key[key].name, b->value[key], options->name);
}

int ch_bench_tokens(ch_bench *b, int64_t count, int vocab, int32_t **tokens) {
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 0);
  CH_TRY(ch_bench_host(b, (size_t)count * sizeof **tokens, tokens));
  for (int64_t i = 0; i < count; i++) (*tokens)[i] = (int32_t)ch_rng_below(rng, (uint64_t)i, (uint64_t)vocab);
  return CHOIR_OK;
}
