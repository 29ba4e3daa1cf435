/* ch_bench_run: finds the case, parses its values, measures it. */
#include "bench/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "model/config.h"
#include "moe/router.h"

/* The cases with a measuring function of their own. */
static const ch_bench_case fixed_cases[] = {
    {.name = "moe",
     .sizes = 4,
     .key = {{"n", 4096, 0}, {"d", 768, 0}, {"h", 3072, 0}, {"e", 16, 0}, {"c", 2, 0}, {"skew", 0, 0}},
     .word = {{"router", "expert_choice"}},
     .run = ch_bench_moe},
    {.name = "assign",
     .sizes = 2,
     .key = {{"n", 4096, 0}, {"e", 64, 0}, {"c", 2, 0}, {"b", 2, 0}, {"d", 768, 0}, {"h", 3072, 0}},
     .word = {{"solver", "exact"}},
     .make = ch_bench_make_assign,
     .run = ch_bench_assign},
    {.name = "route",
     .sizes = 2,
     .key = {{"n", 65536, 2048}, {"e", 128, 0}, {"c", 2, 0}, {"d", 768, 0}, {"h", 3072, 0}},
     .word = {{"router", "expert_choice"}},
     .make = ch_bench_make_route,
     .run = ch_bench_route},
    {.name = "step",
     .key = {{"B", 0, 0}, {"T", 0, 0}, {"c", 0, 0}},
     .word = {{"config", "configs/nano.json"}, {"router", ""}},
     .run = ch_bench_step},
    {.name = "decode",
     .sizes = 2,
     .key = {{"prompt", 64, 0}, {"tokens", 32, 0}},
     .word = {{"config", "configs/0.1b-16e.json"}},
     .run = ch_bench_decode},
    {.name = "prompt",
     .sizes = 1,
     .key = {{"tokens", 512, 0}},
     .word = {{"config", "configs/0.1b-16e.json"}},
     .run = ch_bench_prompt},
    {.name = "tokenize",
     .key = {{"MB", 4, 0}, {"V", 4096, 0}},
     .word = {{"file", ""}, {"tokenizer", ""}},
     .run = ch_bench_tokenize},
};

/* Case number `i`; NULL: there are no more. */
static const ch_bench_case *case_at(size_t i) {
  size_t fixed = sizeof fixed_cases / sizeof *fixed_cases;
  if (i < fixed) return &fixed_cases[i];
  return ch_bench_op_cases[i - fixed].name ? &ch_bench_op_cases[i - fixed] : NULL;
}

static const ch_bench_case *find_case(const char *name) {
  const char *names[CH_BENCH_CASES + 1] = {0};
  char nearest[128], list[256];
  for (size_t i = 0; case_at(i); i++) {
    if (!strcmp(case_at(i)->name, name)) return case_at(i);
    names[i] = case_at(i)->name;
  }
  ch_error(CHOIR_ERROR_ARGUMENT, "there is no bench case '%s'%s (cases: %s)", name,
           ch_did_you_mean(nearest, sizeof nearest, name, names), ch_word_list(list, sizeof list, names));
  return NULL;
}

static int unknown_key(const ch_bench_case *c, const char *key) {
  const char *known[CH_BENCH_KEYS + CH_BENCH_WORDS + 2];
  char nearest[128], list[256];
  int count = 0;
  for (; count < CH_BENCH_KEYS && c->key[count].name; count++) known[count] = c->key[count].name;
  known[count++] = "compute";
  for (int i = 0; i < CH_BENCH_WORDS && c->word[i].name; i++) known[count++] = c->word[i].name;
  known[count] = NULL;
  return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s' has no key '%s'%s (keys: %s)", c->name, key,
                  ch_did_you_mean(nearest, sizeof nearest, key, known), ch_word_list(list, sizeof list, known));
}

/* Parses one "key=value". */
static int read_pair(ch_bench *b, const ch_bench_case *c, char *pair) {
  char *equals = strchr(pair, '='), *end;
  if (!equals) return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s': '%s' is not key=value", c->name, pair);
  const char *value = equals + 1;
  *equals = 0;
  if (!strcmp(pair, "compute")) {
    CH_TRY(ch_compute_find(value, &b->compute));
    return b->compute != CH_COMPUTE_Q8_0
               ? CHOIR_OK
               : ch_error(CHOIR_ERROR_UNSUPPORTED, "bench case '%s': compute is fp32 or bf16", c->name);
  }
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

/* Writes the problem with every key, omitting words that are empty. */
static void write_problem(ch_bench *b, const ch_bench_case *c) {
  char *text = b->result->problem;
  size_t size = sizeof b->result->problem, used = (size_t)snprintf(text, size, "%s", c->name);
  for (int i = 0; i < CH_BENCH_KEYS && c->key[i].name && used < size; i++)
    used += (size_t)ch_format(text + used, size - used, " %s=%.12g", c->key[i].name, b->value[i]);
  for (int i = 0; i < CH_BENCH_WORDS && c->word[i].name && used < size; i++)
    if (*b->word[i]) used += (size_t)snprintf(text + used, size - used, " %s=%s", c->word[i].name, b->word[i]);
  if (used < size) snprintf(text + used, size - used, " compute=%s", ch_compute_names[b->compute]);
}

/* Sets the defaults, then the values of the problem. */
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

/* Converts the first values to sizes, whose product is bounded so that no number of elements overflows. */
static int read_sizes(ch_bench *b, const ch_bench_case *c) {
  double product = 1;
  for (int i = 0; i < c->sizes; i++) {
    if (b->value[i] < 1)
      return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s': %s must be given, and at least 1", c->name,
                      c->key[i].name);
    product *= b->value[i];
    if (b->value[i] > INT32_MAX || product > 1e15)
      return ch_error(CHOIR_ERROR_ARGUMENT, "bench case '%s': %s=%.12g is too large", c->name, c->key[i].name,
                      b->value[i]);
    b->size[i] = (int64_t)b->value[i];
  }
  return CHOIR_OK;
}

static void repeat(void *context) {
  ch_bench_ready *r = context;
  r->work.run(&r->x, &r->work);
}

/* Prepares the case's work in the memory of a backend, with an executor for it. */
static int prepare_case(ch_bench *b, const ch_backend *backend, ch_compute compute, ch_bench_ready *r) {
  b->drawn = 0;
  b->memory = backend->memory;
  CH_TRY(b->which->make(b, &r->work));
  CH_TRY(ch_exec_init(&r->x, backend->name, compute, 0, b->options->threads));
  repeat(r);
  return ch_exec_commit(&r->x);
}

int ch_bench_time_work(ch_bench *b, ch_bench_ready *r) {
  CH_TRY(prepare_case(b, b->backend, b->compute, r));
  if (r->work.begin) r->work.begin(&r->x, &r->work);
  ch_bench_time(b, repeat, r);
  ch_bench_rates(b, r->work.flops, r->work.bytes);
  return CHOIR_OK;
}

static int compare_outputs(ch_bench *b, const ch_bench_work *fast, const ch_bench_work *reference) {
  size_t selected = (size_t)fast->selection_count * sizeof(int);
  for (int i = 0; i < CH_BENCH_OUTPUTS && fast->out[i]; i++)
    ch_bench_compare(b, fast->out[i], reference->out[i], fast->out_count[i], &b->result->error);
  const void *selection = selected ? ch_bench_read(b, fast->selection, selected) : NULL;
  if (selection && memcmp(selection, CH_AS_HOST(const int, reference->selection), selected))
    b->result->error = ch_bench_worse(b->result->error, 1);
  return b->code;
}

/* Reduces the sizes to ones that are fast on the reference backend; the note lists them. */
static void make_small(ch_bench *b) {
  char *note = b->result->note;
  size_t used = (size_t)snprintf(note, CH_BENCH_TEXT, "%s%serror at", b->which->note ? b->which->note : "",
                                 b->which->note ? "; " : "");
  for (int i = 0; i < b->which->sizes; i++) {
    int64_t small = b->which->key[i].small;
    if (small && small < b->size[i]) b->size[i] = small;
    if (small)
      used +=
          (size_t)snprintf(note + used, CH_BENCH_TEXT - used, " %s=%lld", b->which->key[i].name, (long long)b->size[i]);
  }
}

/* Runs the small case on both backends and compares the results. */
static int compare_case(ch_bench *b) {
  ch_bench_ready fast = {0}, reference = {0};
  make_small(b);
  int code = prepare_case(b, b->backend, b->compute, &fast);
  if (!code) code = prepare_case(b, ch_backend_find("reference"), CH_COMPUTE_FP32, &reference);
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
  ch_bench_ready r = {0};
  int code = ch_bench_time_work(b, &r);
  ch_exec_free(&r.x);
  return code ? code : compare_case(b);
}

int ch_bench_known(const char *problem) {
  char name[CH_BENCH_TEXT];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(problem, " \t\n"), problem);
  return find_case(name) ? CHOIR_OK : CHOIR_ERROR_ARGUMENT;
}

int ch_bench_run(const char *problem, const ch_bench_options *options, ch_bench_result *result) {
  char text[CH_BENCH_TEXT], *rest = text;
  if (strlen(problem) >= sizeof text)
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench: a problem of %zu letters is too long", strlen(problem));
  strcpy(text, problem + strspn(problem, " \t"));
  const char *name = strsep(&rest, " \t\n");
  const ch_bench_case *c = find_case(name);
  if (!c) return CHOIR_ERROR_ARGUMENT;
  *result = (ch_bench_result){0};
  ch_bench b = {.which = c, .options = options, .result = result};
  b.backend = ch_backend_find(options->backend ? options->backend : "cpu");
  if (!b.backend) return CHOIR_ERROR_ARGUMENT;
  b.memory = b.backend->memory;
  CH_TRY(ch_threads_resolve(options->threads, &b.threads));
  CH_TRY(ch_threads_check(b.threads));
  int code = read_values(&b, c, rest ? rest : text + strlen(text));
  if (!code) code = read_sizes(&b, c);
  if (!code)
    code = b.backend->supports(b.compute, 0); /* opens a device, because arrays are allocated before the executor */
  if (!code) code = c->run ? c->run(&b) : ch_bench_against_reference(&b);
  for (int i = 0; i < b.arrays; i++) ch_arena_free(&b.array[i]);
  return code;
}

int ch_bench_config(const ch_bench *b, choir_config *config) {
  CH_TRY(ch_config_load(b->word[0], config));
  if (!config->model.vocab_size) config->model.vocab_size = 8192;
  config->train.compute = b->compute;
  return CHOIR_OK;
}

int ch_bench_capacity(const ch_bench *b, int key, ch_router_spec *options) {
  const ch_router *router = options->kind;
  if (ch_router_takes(router, CH_OPTION_experts_per_token)) { /* c: experts per token, which the capacity allows */
    double c = b->value[key];
    if (c != floor(c))
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "bench '%s': %s=%g, but router '%s' gives every token as many experts: must "
                      "be a whole number",
                      b->which->name, b->which->key[key].name, c, router->name);
    if (c > 0) options->experts_per_token = (int)c;
    return CHOIR_OK;
  }
  if (ch_router_takes(router, CH_OPTION_capacity_factor)) {
    if (b->value[key] > 0) options->capacity_factor = b->value[key];
    return CHOIR_OK;
  }
  if (b->value[key] == b->which->key[key].value) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': %s=%g, but router '%s' takes no capacity factor: leave it out",
                  b->which->name, b->which->key[key].name, b->value[key], router->name);
}

int32_t *ch_bench_tokens(ch_bench *b, int64_t count, int vocab) {
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 0);
  int32_t *token = ch_bench_host(b, (size_t)count * sizeof *token);
  for (int64_t i = 0; token && i < count; i++) token[i] = (int32_t)ch_rng_below(rng, (uint64_t)i, (uint64_t)vocab);
  return token;
}
