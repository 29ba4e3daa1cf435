/* Numbers and small charts as text, and parts of JSON that several verbs print. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Returns one of sixteen buffers in turn, so that one printf can use several numbers. */
static char *buffer(void) {
  static char ring[16][32];
  static unsigned next;
  return ring[next++ % 16];
}

const char *cli_count(double number) {
  static const char units[] = " kMBT";
  char *text = buffer();
  int unit = 0;
  for (; fabs(number) >= 999.5 && unit < 4; unit++) number /= 1000;
  int digits = unit == 0 || fabs(number) >= 99.95 ? 0 : 1;
  snprintf(text, 32, "%.*f%.*s", digits, number, unit > 0, units + unit);
  return text;
}

const char *cli_bytes(double bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  char *text = buffer();
  int unit = 0;
  for (; bytes >= 1023.5 && unit < 5; unit++) bytes /= 1024;
  snprintf(text, 32, "%.*f %s", unit == 0 || bytes >= 99.95 ? 0 : 1, bytes, units[unit]);
  return text;
}

const char *cli_grouped(int64_t number) {
  char *text = buffer(), digits[24];
  int length = snprintf(digits, sizeof digits, "%lld", (long long)number), at = 0;
  for (int i = 0; i < length; i++) {
    if (i && digits[i - 1] != '-' && (length - i) % 3 == 0) text[at++] = ',';
    text[at++] = digits[i];
  }
  text[at] = 0;
  return text;
}

const char *cli_duration(double seconds) {
  char *text = buffer();
  if (!(seconds >= 0) || seconds > 3.6e8) return "?";
  long s = lround(seconds);
  if (s >= 3600)
    snprintf(text, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else
    snprintf(text, 32, "%ld:%02ld", s / 60, s % 60);
  return text;
}

/* Names of the purposes of memory. */
static const struct {
  const char *name;
  size_t at; /* offset in choir_memory */
} purposes[] = {{"weights", offsetof(choir_memory, weights)},
                {"gradients", offsetof(choir_memory, gradients)},
                {"optimizer", offsetof(choir_memory, optimizer)},
                {"activations", offsetof(choir_memory, activations)},
                {"scratch", offsetof(choir_memory, scratch)},
                {"process", offsetof(choir_memory, process)},
                {"data", offsetof(choir_memory, data)}};
enum { PURPOSES = sizeof purposes / sizeof *purposes };

static int64_t purpose(const choir_memory *memory, int i) {
  return *(const int64_t *)((const char *)memory + purposes[i].at);
}

const char *cli_memory(const choir_memory *memory) {
  static char text[256];
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < PURPOSES && used < sizeof text; i++) {
    if (!purpose(memory, i)) continue;
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%s", cli_bytes((double)purpose(memory, i)));
    bytes[strcspn(bytes, " ")] = *CLI_TIE;
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s" CLI_TIE "%s", used ? ", " : "", purposes[i].name,
                             bytes);
  }
  return text;
}

json_t *cli_json_memory(const choir_memory *memory) {
  json_t *object = json_object();
  for (int i = 0; i < PURPOSES; i++) json_object_set_new(object, purposes[i].name, json_integer(purpose(memory, i)));
  return object;
}

char *cli_unescape(const char *text) {
  char *result = malloc(strlen(text) + 1), *to = result;
  if (!result) return NULL;
  for (; *text; text++) {
    if (*text != '\\') {
      *to++ = *text;
      continue;
    }
    static const char letters[] = "fnrt\\", meanings[] = "\f\n\r\t\\";
    const char *letter = text[1] ? strchr(letters, *++text) : NULL;
    if (!letter) {
      free(result);
      return NULL;
    }
    *to++ = meanings[letter - letters];
  }
  *to = 0;
  return result;
}

static atomic_int json_lost; /* memory ran out: an object may be incomplete */

static void *json_memory(size_t bytes) {
  void *memory = malloc(bytes);
  if (!memory) json_lost = 1;
  return memory;
}

void cli_json_watch(void) { json_set_alloc_funcs(json_memory, free); }

static int print_object(json_t *object, size_t shape) {
  int failed = json_lost || !object || json_dumpf(object, stdout, shape | JSON_REAL_PRECISION(10) | cli_json_flags());
  putchar('\n');
  json_decref(object);
  return failed ? cli_fail_with(json_lost ? "no memory for the JSON" : "the JSON could not be written") : 0;
}

int cli_json_print(json_t *object) { return print_object(object, JSON_INDENT(2)); }

int cli_json_line(json_t *object) { return print_object(object, JSON_COMPACT); }

json_t *cli_json_real(double number) { return isfinite(number) ? json_real(number) : json_null(); }

json_t *cli_json_stats(const choir_route_stats *stats) {
  char *text = NULL;
  json_t *root = choir_route_stats_get_json(stats, &text) ? NULL : json_loads(text, 0, NULL);
  free(text);
  return root;
}

json_t *cli_json_layers(const choir_model *model) {
  json_t *rows = json_array();
  for (int i = 0; i < choir_model_moe_layer_count(model); i++) {
    choir_route_stats stats;
    if (choir_model_get_route_stats(model, i, &stats)) {
      json_decref(rows);
      return NULL;
    }
    json_t *row = cli_json_stats(&stats);
    json_object_set_new(row, "layer", json_integer(stats.layer));
    json_array_append_new(rows, row);
    choir_route_stats_clear(&stats);
  }
  return rows;
}

void cli_print_certificate(const choir_certificate *c) {
  if (!c->assignments) return;
  cli_print(4,
            "  assignment: gap %.2g of the bound on the optimum, %s tokens over their cap (by at most %d), experts off "
            "their share by %d; before top-K by %.3g and %.3g; %s steps",
            c->gap, cli_grouped(c->over_cap), c->token_after, c->expert_after, c->token_before, c->expert_before,
            cli_grouped(c->iterations));
}

void cli_print_histogram(const choir_route_stats *stats) {
  int last = 0;
  int64_t total = 0, max = 1;
  for (int i = 0; i <= stats->experts; i++) {
    total += stats->histogram[i];
    if (stats->histogram[i]) last = i;
    if (stats->histogram[i] > max) max = stats->histogram[i];
  }
  printf("  experts   tokens   share\n");
  for (int i = 0; i <= last; i++) {
    double count = (double)stats->histogram[i], width = 40 * count / (double)max;
    int bar = (int)ceil(width < 1 ? width : width - 0.5); /* a nonzero value is visible */
    printf("  %7d %8s  %5.1f %%  %.*s\n", i, cli_count(count), total ? 100 * count / (double)total : 0.0, bar,
           "########################################");
  }
}

/* One character for each expert, for its load relative to the mean. Finer levels would suggest more precision than the
 * loads have. */
void cli_print_load(const char *before, const choir_route_stats *stats) {
  static const char levels[] = " .:-=+*#%@";
  int64_t min = INT64_MAX, max = 0;
  for (int i = 0; i < stats->experts; i++) {
    if (stats->load[i] < min) min = stats->load[i];
    if (stats->load[i] > max) max = stats->load[i];
  }
  double mean = stats->experts ? (double)stats->assignments / stats->experts : 0;
  char mean_text[16], shades[65];
  int shown = stats->experts < 64 ? stats->experts : 64;
  snprintf(mean_text, sizeof mean_text, "%.3g", mean); /* with few tokens the mean is not an integer */
  for (int i = 0; i < shown; i++) {
    int level = mean > 0 ? (int)(4.5 * (double)stats->load[i] / mean) : 0;
    shades[i] = levels[level > 9 ? 9 : level];
    if (shades[i] == ' ') shades[i] = *CLI_TIE;
  }
  cli_print((int)strlen(before), "%sload per expert %s to %s, mean %s, dropped %s  [%.*s]", before,
            cli_count((double)min), cli_count((double)max), mean < 100 ? mean_text : cli_count(mean),
            cli_count((double)stats->dropped), shown, shades);
}

int cli_is_masked(const char *objective) { return strcmp(objective, "next_token") != 0; }

const char *cli_measure(const char *objective) {
  if (!cli_is_masked(objective)) return "loss";
  return strcmp(objective, "masked_lm") ? "bound" : "masked loss";
}

void cli_print_outcome(const char *objective, int of_text, double bits, double loss, const char *routing,
                       double unigram_loss, double gzip) {
  const char *measure = cli_measure(objective);
  char baselines[64], name[48];
  snprintf(name, sizeof name, "%s%s%s", of_text ? "" : "held-out ", measure, of_text ? " on the text" : "");
  if (!strcmp(measure, "masked loss")) {
    cli_print(2, "%s: %.4f nats per masked token (unigram baseline: %.4f), 15 %% masked, %s routing", name, loss,
              unigram_loss, routing);
    return;
  }
  int used = snprintf(baselines, sizeof baselines, "unigram baseline: %.2f", bits * unigram_loss);
  if (isfinite(gzip)) snprintf(baselines + used, sizeof baselines - (size_t)used, ", gzip: %.2f", gzip);
  cli_print(2, "%s: %s%.2f bits per byte (%s), %s routing", name, strcmp(measure, "bound") ? "" : "at most ",
            bits * loss, baselines, routing);
}
