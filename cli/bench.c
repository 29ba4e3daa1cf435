/* choir bench: the peak rates of this machine, and the share of them that choir reaches. */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

#include "cli.h"

static ch_bench_options o;
static json_t *rows; /* results of all cases, with --json */
static int json, parts;

static json_t *json_peak(const ch_peak *p) {
  return json_pack("{s:i, s:f, s:f, s:f, s:f, s:s, s:s}", "threads", p->threads, "fp32_gflops", p->fp32_gflops,
                   "bf16_gflops", p->bf16_gflops, "read_gbs", p->read_gbs, "triad_gbs", p->triad_gbs, "isa", p->isa,
                   "bf16_unit", p->bf16_unit);
}

static json_t *json_row(const ch_bench_result *r) {
  json_t *parts = json_object();
  for (int i = 0; i < r->parts; i++) json_object_set_new(parts, r->part[i].name, cli_json_real(r->part[i].seconds));
  json_t *figures = json_object();
  for (int i = 0; i < r->figures; i++)
    json_object_set_new(figures, r->figure[i].name, cli_json_real(r->figure[i].value));
  return json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "problem",
                   r->problem, "repetitions", r->repetitions, "seconds", r->seconds, "min_seconds", r->min_seconds,
                   "gflops", r->gflops, "gbs", r->gbs, "rate", r->rate, "unit", r->unit, "tokens",
                   (json_int_t)r->tokens, "share", r->share > 0 ? cli_json_real(r->share) : json_null(), "error",
                   cli_json_real(r->error), "during_products", cli_json_real(r->during_products), "layer_share",
                   r->layer_share > 0 ? cli_json_real(r->layer_share) : json_null(), "parts", parts, "figures", figures,
                   "note", r->note);
}

/* The minimum time per token, relative to that of another result. */
static double token_ratio(const ch_bench_result *r, const ch_bench_result *first) {
  return r->min_seconds / (double)r->tokens / (first->min_seconds / (double)first->tokens);
}

enum { MORE = 10, PROBLEM = 51 }; /* columns at which a row's further lines and its problem begin */

static void print_figures(const ch_bench_result *r) {
  char text[512];
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < r->figures && used < sizeof text; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s" CLI_TIE "%.4g", i ? ", " : "", r->figure[i].name,
                             r->figure[i].value);
  cli_print(MORE, "%*s%s", MORE, "", text);
}

static void print_parts(const ch_bench_result *r) {
  char text[1024];
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < r->parts && used < sizeof text; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s" CLI_TIE "%.1f" CLI_TIE "%%  ", r->part[i].name,
                             100 * r->part[i].seconds / r->seconds);
  cli_print(MORE, "%*s%s(outside products %.1f %%)", MORE, "", text, 100 * r->during_products);
}

static void print_row(const ch_bench_result *r, const ch_bench_result *first) {
  char share[16] = "      -", ratio[16] = "";
  if (r->share > 0) snprintf(share, sizeof share, "%5.1f %%", 100 * r->share);
  if (first && first->tokens) snprintf(ratio, sizeof ratio, "x %-6.3f  ", token_ratio(r, first));
  cli_print(PROBLEM, "%9.3f ms %9.1f %-8s %s  %8.1e  %s%s", 1e3 * r->seconds, r->rate, r->unit, share, r->error, ratio,
            r->problem);
  if (r->layer_share > 0) printf("%*s%.1f %% of the layer's forward and backward\n", MORE, "", 100 * r->layer_share);
  if (r->figures) print_figures(r);
  if (parts && r->parts) print_parts(r);
  fflush(stdout);
}

/* Prints the backend's peak rates; bf16 only if it has a bf16 unit. */
static void print_peak(const ch_peak *p) {
  char bf16[96] = "no bf16 unit";
  if (p->bf16_gflops > 0) snprintf(bf16, sizeof bf16, "%.1f GFLOP/s bf16 (%.48s)", p->bf16_gflops, p->bf16_unit);
  cli_print(2, "peak, %d threads: %.1f GFLOP/s fp32 (%s), %s, %.1f GB/s reading, %.1f GB/s triad", p->threads,
            p->fp32_gflops, p->isa, bf16, p->read_gbs, p->triad_gbs);
}

static void print_head(const ch_peak *p) {
  if (p->fp32_gflops > 0) print_peak(p);
  printf("%12s %18s %7s  %8s  %s\n", "time", "rate", "of peak", "error", "problem");
  fflush(stdout);
}

/* Reports a case that this machine cannot run. This is not a failure: a list of all cases includes bf16 ones on any
 * machine. */
static void pass_over(const char *problem) {
  if (json)
    json_array_append_new(
        rows, json_pack("{s:s, s:n, s:s}", "problem", problem, "share", "unsupported", choir_error_message()));
  else
    cli_print(2, "%s: %s", problem, choir_error_message());
}

/* Runs one case. A wrong result is a failure, however fast: NaN, or far from the reference. */
static int one(const char *problem, const ch_bench_result *first, ch_bench_result *result) {
  int code = ch_bench_run(problem, &o, result);
  if (code == CHOIR_ERROR_UNSUPPORTED) return pass_over(problem), 0;
  if (code) return code == CHOIR_ERROR_ARGUMENT ? cli_usage("%s", choir_error_message()) : cli_fail();
  if (json) {
    json_t *row = json_row(result);
    if (first && first->tokens) json_object_set_new(row, "ratio", cli_json_real(token_ratio(result, first)));
    json_array_append_new(rows, row);
  } else {
    print_row(result, first);
  }
  return isfinite(result->error) ? 0 : cli_fail_with("%s: the result is not finite", result->problem);
}

/* Amdahl's law for more threads: the part of one thread's time that stays serial. An upper bound of the speed:
 * barriers and memory cost more. */
static void print_forecast(double ratio, int threads) {
  double serial = fmax(0, (ratio * threads - 1) / (threads - 1));
  cli_print(
      MORE,
      "%*s%.2f of %d times one thread; by Amdahl's law %.1f %% of the time is serial, and 16 threads reach at most "
      "%.2f of 16",
      MORE, "", 1 / ratio / threads, threads, 100 * serial, 1 / (1 + 15 * serial));
}

/* Runs a problem with 1, 2, 4, ... threads, and finally with as many as the user requests. */
static int by_threads(const char *problem) {
  ch_peak peak;
  const ch_bench_options kept = o;
  ch_bench_result first = {0}, other = {0};
  int status = 0, max = o.peak->threads;
  for (int threads = 1, last = 0; last < max && !status; threads = 2 * threads < max ? 2 * threads : max) {
    last = o.threads = threads, o.peak = &peak;
    if (ch_bench_peak(&o, &peak)) return cli_fail();
    if (!json) printf("%d thread%s\n", threads, threads > 1 ? "s" : "");
    status = one(problem, &first, threads > 1 ? &other : &first);
    if (json && !status)
      json_object_set_new(json_array_get(rows, json_array_size(rows) - 1), "threads", json_integer(threads));
  }
  if (!json && !status && other.tokens) print_forecast(token_ratio(&other, &first), max);
  o = kept;
  return status;
}

/* Runs all problems of a group, with the user's values appended: the last value of a key counts. */
static int all_of(const ch_bench_group *group, const char *set) {
  ch_bench_result first = {0}, other;
  int status = 0;
  if (!json) cli_print(2, "%s: %s; x: minimum time per token relative to the first row", group->name, group->what);
  for (int i = 0; group->problems[i] && !status; i++) {
    char problem[2 * CH_BENCH_TEXT];
    snprintf(problem, sizeof problem, "%s%s", group->problems[i], set);
    status = group->by_threads ? by_threads(problem) : one(problem, &first, i ? &other : &first);
  }
  return status;
}

static const ch_bench_group *find_group(const char *problem) {
  const ch_bench_group *group = ch_bench_groups();
  size_t length = strcspn(problem, " ");
  while (group->name && (strlen(group->name) != length || strncmp(group->name, problem, length))) group++;
  return group->name ? group : NULL;
}

/* Joins the operands into problems: a word without "=" starts one; "moe n=64 d=8 gelu count=9" is two. */
static int next_problem(int count, const char *const *words, int *at, char *problem, size_t size) {
  if (*at >= count) return 0;
  size_t used = (size_t)snprintf(problem, size, "%s", words[(*at)++]);
  while (*at < count && strchr(words[*at], '=') && !strchr(words[*at], ' ') && used < size)
    used += (size_t)snprintf(problem + used, size - used, " %s", words[(*at)++]);
  return 1;
}

static int all(int count, const char *const *operands) {
  char problem[CH_BENCH_TEXT];
  ch_bench_result result;
  int at = 0, status = 0;
  while (!status && next_problem(count, operands, &at, problem, sizeof problem)) {
    const ch_bench_group *group = find_group(problem);
    status = group ? all_of(group, problem + strlen(group->name)) : one(problem, NULL, &result);
  }
  return status;
}

/* Refuses unknown cases and groups before anything is measured; errors in a case's values are found when it runs. */
static int check_names(int count, const char *const *operands) {
  char problem[CH_BENCH_TEXT];
  int at = 0;
  while (next_problem(count, operands, &at, problem, sizeof problem))
    if (!find_group(problem) && ch_bench_known(problem)) return cli_usage("%s", choir_error_message());
  return 0;
}

static int run_bench(int count, const char *const *operands) {
  ch_peak peak;
  if (!count)
    for (operands = ch_bench_defaults(); operands[count];) count++;
  int wrong = check_names(count, operands);
  if (wrong) return wrong;
  o.peak = &peak;
  int code = ch_bench_peak(&o, &peak);
  if (code) return code == CHOIR_ERROR_ARGUMENT ? cli_usage("%s", choir_error_message()) : cli_fail();
  rows = json_array();
  if (!json) print_head(&peak);
  int status = all(count, operands);
  if (json && !status) return cli_json_print(json_pack("{s:o, s:o}", "peak", json_peak(&peak), "results", rows));
  json_decref(rows);
  return status;
}

static const cli_option options[] = {
    {"repetitions", "N", CLI_INT, &o.repetitions, "7", "minimum number of repetitions of each case", 0},
    {"seconds", "S", CLI_REAL, &o.seconds, "0.2", "minimum time for each case", 0},
    {"parts", NULL, CLI_FLAG, &parts, NULL, "show the time of each part of a layer", 0},
    CLI_BACKEND(&o.backend),
    CLI_THREADS(&o.threads),
    {"json", NULL, CLI_FLAG, &json, NULL, "print JSON", 0},
    {0}};

CLI_VERB(bench, "bench", "[CASE|GROUP [KEY=VALUE...]]...", 0, -1, "measure the speed of this machine and of choir",
         "Measures the peak rate of multiply-adds and the memory bandwidth, then each case relative to them: median "
         "time, rate, share of the peak, and the largest difference from the reference implementation. Without "
         "operands, a selection of cases is run. Every key except those of gemm has a default.\n\n"
         "Layers: moe (n d h e c skew router); route and assign (the router alone, with its share of a layer's time). "
         "Models: step (config B T c router), prompt (config tokens), decode (config prompt tokens). Text: tokenize "
         "(MB file tokenizer V). Parts: gemm attention head gelu rmsnorm select gather adafactor.\n\n"
         "Groups compare each row with the first: flat (e=16 to 128), linear (n=1024 to 65536), routers and "
         "router-steps (token choice, expert choice), dropless (2, 4 and 8 of 64 experts per token: topk with even and "
         "with uneven loads, expert choice), scaling (a step with 1, 2, 4, ... threads). A key after a group applies "
         "to all of its cases.\n\n"
         "c is the number of experts per token for routers that give every token the same number, otherwise the "
         "capacity factor. skew s makes the load of expert i proportional to about 1 / i^s.\n\n"
         "Examples: choir bench moe n=4096 d=768 h=3072 e=64 c=2 compute=bf16; choir bench linear d=768 h=3072; choir "
         "bench decode config=configs/0.1b-16e.json");
