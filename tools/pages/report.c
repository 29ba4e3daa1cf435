#include "pages/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "choir/version.h"
#include "file/json.h"
#include "pages/chart.h"
#include "pages/history.h"
#include "pages/page.h"

static double last(const ch_curve *c) { return c->count ? c->y[c->count - 1] : NAN; }

static void card_count(FILE *out, const char *label, double value) {
  if (value >= 1e9)
    ch_page_card(out, label, "%.2f", value / 1e9, " B");
  else if (value >= 1e6)
    ch_page_card(out, label, "%.1f", value / 1e6, " M");
  else if (value >= 1e4)
    ch_page_card(out, label, "%.1f", value / 1e3, " k");
  else
    ch_page_card(out, label, "%.0f", value, "");
}

static void cards(FILE *out, const ch_history *h) {
  const ch_curve *loss = &h->curve[CH_LOSS];
  fputs("<div class=cards>\n", out);
  ch_page_card(out, "held-out perplexity", "%.2f", ch_number_at(h->eval, "perplexity"), "");
  ch_page_card(out, "perplexity of unigrams", "%.1f", exp(ch_number_at(h->eval, "unigram_loss")), "");
  ch_page_card(out, "bits per byte, held out", "%.3f", last(&h->curve[CH_BITS_PER_BYTE]), "");
  ch_page_card(out, "held-out loss, nats a token", "%.4f", last(&h->curve[CH_HELDOUT_LOSS]), "");
  if (h->curve[CH_THRESHOLD_LOSS].count)
    ch_page_card(out, "the same, causal (by thresholds)", "%.4f", last(&h->curve[CH_THRESHOLD_LOSS]), "");
  card_count(out, "steps", loss->x[loss->count - 1]);
  card_count(out, "training tokens", h->tokens);
  card_count(out, "parameters", ch_number_at(h->run, "parameters"));
  card_count(out, "active per token", ch_number_at(h->run, "active_parameters"));
  card_count(out, "tokens a second (median)", ch_curve_median(&h->curve[CH_TOKENS_PER_SECOND]));
  ch_page_card(out, "of the machine's peak (median)", "%.0f", ch_curve_median(&h->curve[CH_PEAK_SHARE]), " %");
  fputs("</div>\n", out);
}

static void one_curve(FILE *out, const ch_history *h, ch_curve_name name, const char *title, const char *unit,
                      int from_zero) {
  const ch_curve *c = &h->curve[name];
  int something = 0;
  for (int i = 0; i < c->count; i++) something |= c->y[i] != 0;
  if (!something) return;
  ch_chart_write(
      out, &(ch_chart){.title = title, .unit = unit, .count = 1, .from_zero = from_zero, .series = {{.curve = c}}});
}

static void curves(FILE *out, const ch_history *h) {
  ch_chart loss = {.title = "Loss", .unit = "nats a token, over steps", .count = 1};
  loss.series[0] = (ch_series){.curve = &h->curve[CH_LOSS], .label = "training"};
  if (h->curve[CH_HELDOUT_LOSS].count)
    loss.series[loss.count++] = (ch_series){.curve = &h->curve[CH_HELDOUT_LOSS], .label = "held out", .points = 1};
  if (h->curve[CH_THRESHOLD_LOSS].count)
    loss.series[loss.count++] =
        (ch_series){.curve = &h->curve[CH_THRESHOLD_LOSS], .label = "held out, causal", .points = 1};
  if (isfinite(ch_number_at(h->eval, "unigram_loss")))
    loss.series[loss.count++] = (ch_series){.level = ch_number_at(h->eval, "unigram_loss"), .label = "unigrams"};
  fputs("<h2>Training</h2><div class=charts>\n", out);
  ch_chart_write(out, &loss);
  if (h->curve[CH_BITS_PER_BYTE].count)
    ch_chart_write(out, &(ch_chart){.title = "Bits per byte",
                                    .unit = "held out",
                                    .count = 1,
                                    .series = {{.curve = &h->curve[CH_BITS_PER_BYTE], .points = 1}}});
  one_curve(out, h, CH_GRADIENT_NORM, "Gradient norm", "before clipping", 1);
  one_curve(out, h, CH_RATE, "Learning rate", "", 1);
  one_curve(out, h, CH_AUX_LOSS, "Auxiliary loss", "weighted, of the router", 1);
  one_curve(out, h, CH_DROPPED, "Dropped", "share of choices that found their expert full", 1);
  one_curve(out, h, CH_UNROUTED, "Unrouted", "share of tokens without an expert", 1);
  one_curve(out, h, CH_IMBALANCE, "Imbalance", "largest load of an expert over the mean, worst layer", 1);
  one_curve(out, h, CH_TOKENS_PER_SECOND, "Speed", "tokens a second", 1);
  one_curve(out, h, CH_PEAK_SHARE, "Use of the machine", "model FLOPs, % of measured peak", 1);
  fputs("</div>\n", out);
}

/* The first `count` numbers of a JSON array, malloc'd; 0 where it has none, or what is no number. */
static double *numbers(const json_t *array, size_t count) {
  double *values = calloc(count + 1, sizeof *values);
  for (size_t i = 0; values && i < count; i++) {
    double value = json_number_value(json_array_get(array, i));
    values[i] = value > 0 ? fmin(value, 1e300) : 0; /* counts, all of them */
  }
  return values;
}

static long long number_of(const json_t *layer) { return json_integer_value(json_object_get(layer, "layer")); }

static void histogram_bars(FILE *out, const json_t *layer) {
  char title[64];
  const json_t *array = json_object_get(layer, "histogram");
  size_t size = json_array_size(array);
  double *values = numbers(array, size), tokens = 0;
  int bars = 0; /* without the zeros at the end */
  if (!values) return;
  for (size_t i = 0; i < size; i++) {
    tokens += values[i];
    if (values[i] > 0) bars = (int)i + 1;
  }
  for (int i = 0; i < bars; i++) values[i] *= 100 / tokens;
  snprintf(title, sizeof title, "Layer %lld: experts per token", number_of(layer));
  ch_bars_write(out,
                &(ch_bars){.title = title, .unit = "% of tokens", .axis = "experts", .values = values, .count = bars});
  free(values);
}

/* What every expert holds, and paler what it was asked to where that is more. */
static void load_bars(FILE *out, const json_t *layer) {
  char title[64];
  size_t experts = json_array_size(json_object_get(layer, "load"));
  double *load = numbers(json_object_get(layer, "load"), experts),
         *demand = numbers(json_object_get(layer, "demand"), experts);
  double mean = experts ? ch_number_at(layer, "assignments") / (double)experts : 0;
  int more = 0;
  for (size_t i = 0; load && demand && i < experts; i++) more |= demand[i] > load[i];
  snprintf(title, sizeof title, "Layer %lld: load of each expert", number_of(layer));
  if (load)
    ch_bars_write(out, &(ch_bars){.title = title,
                                  .unit = more ? "tokens held (pale: asked for); dashed: mean" : "tokens; dashed: mean",
                                  .axis = "expert",
                                  .values = load,
                                  .behind = more ? demand : NULL,
                                  .count = (int)experts,
                                  .level = mean > 0 ? fmin(mean, 1e300) : 0});
  free(load);
  free(demand);
}

enum { MOST_BARS = 1 << 18 }; /* of all layers of a routing: more than that a browser would not like */

static void layer_charts(FILE *out, const char *title, const char *about, const json_t *layers) {
  const json_t *layer;
  size_t i, bars = 0;
  if (!json_array_size(layers)) return;
  fprintf(out, "<h2>%s</h2>\n%s<div class=charts>\n", title, about);
  json_array_foreach(layers, i, layer) {
    bars += json_array_size(json_object_get(layer, "histogram")) + json_array_size(json_object_get(layer, "load")) + 64;
    if (bars > MOST_BARS) break;
    histogram_bars(out, layer);
    load_bars(out, layer);
  }
  fputs("</div>\n", out);
  if (i < json_array_size(layers)) fprintf(out, "<p>Left out: %zu more layers.</p>\n", json_array_size(layers) - i);
}

static void routing(FILE *out, const ch_history *h) {
  int across = json_is_true(json_object_get(h->eval, "looks_across_tokens"));
  layer_charts(out, "Routing, at the last evaluation",
               across ? "<p>The router chooses among all tokens of a batch, later ones included. The held-out loss "
                        "above is measured in the same way, and is not the loss of writing text token by token: that "
                        "is the causal one, routed by thresholds.</p>\n"
                      : "",
               json_object_get(h->eval, "layers"));
  layer_charts(out, "Routing as in serving, at the last evaluation",
               "<p>The same sequences without a look at other tokens: by thresholds or, where tokens choose, with "
               "room for all.</p>\n",
               json_object_get(json_object_get(h->eval, "threshold"), "layers"));
}

static void setting(void *context, const char *name, json_t *value) {
  FILE *out = context;
  char *text = ch_json_text(value);
  fputs("<tr><td>", out);
  ch_html_text(out, name);
  fputs("<td class=n>", out);
  ch_html_text(out, text ? text : "");
  fputs("</tr>\n", out);
  free(text);
}

void ch_report_page(FILE *out, const char *run_directory, const ch_history *h) {
  const json_t *config = json_object_get(h->run, "config");
  const char *name = json_string_value(json_object_get(json_object_get(config, "model"), "name"));
  ch_page_begin(out, run_directory, NULL, 0);
  fputs("<h1>", out);
  ch_html_text(out, name && *name ? name : "choir run");
  fputs("</h1><p>", out);
  ch_html_text(out, run_directory);
  fprintf(out, ", choir %s</p>\n", choir_version());
  cards(out, h);
  curves(out, h);
  routing(out, h);
  if (!config) return;
  fputs("<h2>Config</h2><div class=columns>\n", out);
  const char *key;
  json_t *part;
  json_object_foreach((json_t *)config, key, part) {
    fputs("<table>\n", out);
    ch_json_leaves(part, key, setting, out);
    fputs("</table>\n", out);
  }
  fputs("</div></html>\n", out);
}

/* Runs that a page is about. */
typedef struct {
  const char *const *runs;
  const ch_history *history;
  int count;
} pages;

static int write_page(FILE *out, const void *context) {
  const pages *p = context;
  if (p->count == 1)
    ch_report_page(out, p->runs[0], p->history);
  else
    ch_compare_page(out, p->runs, p->history, p->count);
  return CHOIR_OK;
}

static int report(const char *const *runs, int count, const char *output) {
  ch_history history[CH_SERIES_MOST] = {{.tokens = 0}};
  int read = 0, code = CHOIR_OK;
  while (read < count && !(code = ch_history_read(runs[read], &history[read]))) read++;
  if (!code) code = ch_page_save(output, write_page, &(pages){runs, history, count});
  while (read > 0) ch_history_free(&history[--read]);
  return code;
}

int ch_report_write(const char *run_directory, const char *output) { return report(&run_directory, 1, output); }

int ch_report_compare(const char *const *run_directories, int count, const char *output) {
  if (count < 2 || count > CH_SERIES_MOST)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d runs; a comparison takes 2 to %d", count, CH_SERIES_MOST);
  return report(run_directories, count, output);
}
