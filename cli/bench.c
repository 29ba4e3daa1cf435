/* choir bench: what this machine can do, and how much of it choir uses. */
#include "choir/bench.h"

#include <math.h>
#include <string.h>

#include "cli.h"

static struct {
  int threads, repetitions, json, parts;
  double seconds;
} o;

static json_t *json_peak(const choir_machine_peak *p) {
  return json_pack("{s:i, s:f, s:f, s:f, s:f, s:s, s:s}", "threads", p->threads, "fp32_gflops", p->fp32_gflops,
                   "bf16_gflops", p->bf16_gflops, "read_gbs", p->read_gbs, "triad_gbs", p->triad_gbs, "isa", p->isa,
                   "bf16_unit", p->bf16_unit);
}

static json_t *json_row(const choir_bench_result *r) {
  json_t *parts = json_object();
  for (int i = 0; i < r->parts; i++) json_object_set_new(parts, r->part[i].name, cli_json_real(r->part[i].seconds));
  return json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:s}", "problem", r->problem, "repetitions",
                   r->repetitions, "seconds", r->seconds, "min_seconds", r->min_seconds, "gflops", r->gflops, "gbs",
                   r->gbs, "share", r->share > 0 ? cli_json_real(r->share) : json_null(), "error",
                   cli_json_real(r->error), "beside_products", cli_json_real(r->beside_products), "layer_share",
                   r->layer_share > 0 ? cli_json_real(r->layer_share) : json_null(), "parts", parts, "note", r->note);
}

static void print_row(const choir_bench_result *r) {
  char share[16] = "      -";
  if (r->share > 0) snprintf(share, sizeof share, "%5.1f %%", 100 * r->share);
  printf("%9.3f ms %9.1f %s  %s  %8.1e  %s\n", 1e3 * r->seconds, r->bytes > 0 ? r->gbs : r->gflops,
         r->bytes > 0 ? "GB/s   " : "GFLOP/s", share, r->error, r->problem);
  if (r->layer_share > 0) printf("%38s  %.1f %% of the layer's forward and backward\n", "", 100 * r->layer_share);
  if (o.parts && r->parts) {
    printf("%38s", "");
    for (int i = 0; i < r->parts; i++) printf("  %s %.1f %%", r->part[i].name, 100 * r->part[i].seconds / r->seconds);
    printf("  (beside products %.1f %%)\n", 100 * r->beside_products);
  }
  fflush(stdout);
}

static void print_head(const choir_machine_peak *p) {
  printf("peak, %d threads: %.1f GFLOP/s fp32 (%s), ", p->threads, p->fp32_gflops, p->isa);
  if (p->bf16_gflops > 0)
    printf("%.1f GFLOP/s bf16 (%s), ", p->bf16_gflops, p->bf16_unit);
  else
    printf("no bf16 unit, ");
  printf("%.1f GB/s reading, %.1f GB/s triad\n", p->read_gbs, p->triad_gbs);
  printf("%12s %17s  %7s  %8s  %s\n", "time", "rate", "of peak", "error", "problem");
  fflush(stdout);
}

/* Puts the operands together to problems: a word without "=" starts one, "moe n=64 d=8 gelu count=9" being two. */
static int next_problem(int count, const char *const *words, int *at, char *problem, size_t size) {
  if (*at >= count) return 0;
  size_t used = (size_t)snprintf(problem, size, "%s", words[(*at)++]);
  while (*at < count && strchr(words[*at], '=') && !strchr(words[*at], ' ') && used < size)
    used += (size_t)snprintf(problem + used, size - used, " %s", words[(*at)++]);
  return 1;
}

/* A wrong result is a failure, however fast: NaN, or far from the reference. */
static int one(const char *problem, const choir_bench_options *options, json_t *rows) {
  choir_bench_result result;
  int code = choir_bench(problem, options, &result);
  if (code == CHOIR_ERROR_UNSUPPORTED && !o.json) return printf("%s: %s\n", problem, choir_error_message()), 0;
  if (code) return code == CHOIR_ERROR_ARGUMENT ? cli_usage("%s", choir_error_message()) : cli_fail();
  if (o.json)
    json_array_append_new(rows, json_row(&result));
  else
    print_row(&result);
  return isfinite(result.error) ? 0 : cli_fail_with("%s: the result is not finite", result.problem);
}

static int run(int count, const char *const *operands) {
  choir_machine_peak peak;
  char problem[CHOIR_BENCH_TEXT];
  json_t *rows = json_array();
  int at = 0, status = 0;
  const char *const *defaults = choir_bench_defaults();
  if (!count)
    while (defaults[count]) count++;
  else
    defaults = operands;
  if (choir_machine_measure(o.threads, 0, &peak)) return cli_fail();
  choir_bench_options options = {
      .threads = o.threads, .repetitions = o.repetitions, .seconds = o.seconds, .peak = &peak};
  if (!o.json) print_head(&peak);
  while (!status && next_problem(count, defaults, &at, problem, sizeof problem)) status = one(problem, &options, rows);
  if (o.json && !status) return cli_json_print(json_pack("{s:o, s:o}", "peak", json_peak(&peak), "results", rows));
  json_decref(rows);
  return status;
}

static const cli_option options[] = {
    {"repetitions", "N", CLI_INT, &o.repetitions, "7", "of each case, at least", 0},
    {"seconds", "S", CLI_REAL, &o.seconds, "0.2", "for each case, at least", 0},
    {"parts", NULL, CLI_FLAG, &o.parts, NULL, "show where the time of a layer goes", 0},
    {"threads", "N", CLI_INT, &o.threads, "0", "threads; 0 means all CPUs", 0},
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0},
    {0}};

const cli_verb cli_bench = {
    "bench",
    "[CASE [KEY=VALUE...]]...",
    0,
    -1,
    "measure this machine, and choir on it",
    "Measures the peak rate of multiply-adds and the memory bandwidth, then each case against them: median time, rate, "
    "share of the "
    "peak, and the largest difference from the reference implementation. Without operands, a choice of cases.\n\n"
    "Example: choir bench moe n=4096 d=768 h=3072 e=64 c=2 compute=bf16",
    options,
    run};
