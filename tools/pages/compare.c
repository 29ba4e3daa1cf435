/* A page that lays runs beside each other: results, what differs in their configs, curves. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "base/json.h"
#include "choir/version.h"
#include "pages/chart.h"
#include "pages/history.h"
#include "pages/page.h"

/* The runs, and the fields of all their configs by dotted name: {"train.rate": ["0.01", null, ...]}. */
typedef struct {
  FILE *out;
  const char *const *name;
  const ch_history *history;
  int count;
  json_t *fields;
} comparison;

static double last(const ch_curve *c) { return c->count ? c->y[c->count - 1] : (double)NAN; }

static void cell(FILE *out, const char *text) {
  fputs("<td class=n>", out);
  ch_html_text(out, text);
}

static void number(FILE *out, const char *format, double value) {
  char text[64] = "";
  if (isfinite(value)) ch_format(text, sizeof text, format, value);
  cell(out, text);
}

static void head(const comparison *c, const char *first) {
  fprintf(c->out, "<table>\n<tr><th>%s", first);
  for (int i = 0; i < c->count; i++) {
    fputs("<th class=n>", c->out);
    ch_html_text(c->out, c->name[i]);
  }
  fputs("</tr>\n", c->out);
}

static void result_row(const comparison *c, const char *what, const char *format, double (*value)(const ch_history *)) {
  fprintf(c->out, "<tr><td>%s", what);
  for (int i = 0; i < c->count; i++) number(c->out, format, value(&c->history[i]));
  fputs("</tr>\n", c->out);
}

static double steps(const ch_history *h) { return h->curve[CH_LOSS].x[h->curve[CH_LOSS].count - 1]; }
static double training(const ch_history *h) { return last(&h->curve[CH_LOSS]); }
static double heldout(const ch_history *h) { return last(&h->curve[CH_HELDOUT_LOSS]); }
static double causal(const ch_history *h) {
  int same = h->eval && json_is_false(json_object_get(h->eval, "looks_across_tokens"));
  return same ? heldout(h) : last(&h->curve[CH_THRESHOLD_LOSS]);
}
static double bits(const ch_history *h) { return last(&h->curve[CH_BITS_PER_BYTE]); }
static double tokens(const ch_history *h) { return h->tokens; }
static double parameters(const ch_history *h) { return ch_number_at(h->run, "parameters"); }
static double active(const ch_history *h) { return ch_number_at(h->run, "active_parameters"); }
static double speed(const ch_history *h) { return ch_curve_median(&h->curve[CH_TOKENS_PER_SECOND]); }

static void results(const comparison *c) {
  fputs("<h2>Results, at the end of each</h2>\n", c->out);
  fputs("<div class=scroll>", c->out);
  head(c, "");
  result_row(c, "steps", "%.0f", steps);
  result_row(c, "training tokens", "%.0f", tokens);
  result_row(c, "loss in training, last step", "%.4f", training);
  result_row(c, "held-out loss, nats a token, by the router's own routing", "%.4f", heldout);
  result_row(c, "the same, causal", "%.4f", causal);
  result_row(c, "bits per byte, held out", "%.4f", bits);
  result_row(c, "parameters", "%.0f", parameters);
  result_row(c, "active per token", "%.0f", active);
  result_row(c, "tokens a second, median", "%.0f", speed);
  fputs(
      "</table></div>\n<p>Where a router looks across tokens its held-out loss is not that of writing text; the causal "
      "one "
      "is. Losses compare only where data and tokenizer are the same.</p>\n",
      c->out);
}

/* A leaf of the config of one run. */
typedef struct column {
  const comparison *c;
  int run;
} column;

/* Into its place among the others'. */
static void collect(void *context, const char *name, json_t *value) {
  const column *at = context;
  json_t *row = json_object_get(at->c->fields, name);
  if (!row) {
    ch_json_put(at->c->fields, name, row = json_array());
    for (int i = 0; i < at->c->count; i++) ch_json_add(row, json_null());
  }
  json_array_set(row, (size_t)at->run, value);
}

static int differs(const json_t *row) {
  for (size_t i = 1; i < json_array_size(row); i++)
    if (!json_equal(json_array_get(row, i), json_array_get(row, 0))) return 1;
  return 0;
}

static void field_row(const comparison *c, const char *name, const json_t *row) {
  fputs("<tr><td>", c->out);
  ch_html_text(c->out, name);
  for (int i = 0; i < c->count; i++) {
    const json_t *value = json_array_get(row, (size_t)i);
    char *text = ch_json_text(value);
    cell(c->out, json_is_null(value) || !text ? "" : text);
    free(text);
  }
  fputs("</tr>\n", c->out);
}

static void differences(const comparison *c) {
  const char *name;
  json_t *row;
  int found = 0;
  for (int i = 0; i < c->count; i++)
    ch_json_leaves(json_object_get(c->history[i].run, "config"), "", collect, &(column){c, i});
  json_object_foreach(c->fields, name, row) found += differs(row);
  fputs("<h2>What differs in their configs</h2>\n", c->out);
  if (!found) fputs("<p>Nothing.</p>\n", c->out);
  if (!found) return;
  fputs("<div class=scroll>", c->out);
  head(c, "field");
  json_object_foreach(c->fields, name, row) if (differs(row)) field_row(c, name, row);
  fputs("</table></div>\n", c->out);
}

static void chart(const comparison *c, ch_curve_name name, const char *title, const char *unit, int points) {
  ch_chart chart = {.title = title, .unit = unit};
  for (int i = 0; i < c->count; i++)
    if (c->history[i].curve[name].count)
      chart.series[chart.count++] =
          (ch_series){.curve = &c->history[i].curve[name], .label = c->name[i], .colour = i + 1, .points = points};
  if (chart.count) ch_chart_write(c->out, &chart);
}

static void curves(const comparison *c) {
  fputs("<h2>Curves</h2><div class=charts>\n", c->out);
  chart(c, CH_LOSS, "Loss in training", "nats a token, over steps", 0);
  chart(c, CH_HELDOUT_LOSS, "Held-out loss", "by the router's own routing", 1);
  chart(c, CH_THRESHOLD_LOSS, "Held-out loss, causal", "by thresholds", 1);
  chart(c, CH_BITS_PER_BYTE, "Bits per byte", "held out", 1);
  chart(c, CH_GRADIENT_NORM, "Gradient norm", "before clipping", 0);
  chart(c, CH_RATE, "Learning rate", "", 0);
  chart(c, CH_UNROUTED, "Unrouted", "share of tokens without an expert", 0);
  chart(c, CH_IMBALANCE, "Imbalance", "largest load of an expert over the mean, worst layer", 0);
  chart(c, CH_TOKENS_PER_SECOND, "Speed", "tokens a second", 0);
  fputs("</div></html>\n", c->out);
}

void ch_compare_page(FILE *out, const char *const *run_directories, const ch_history *histories, int count) {
  const comparison c = {out, run_directories, histories, count, json_object()};
  ch_page_begin(out, "runs compared", NULL, 0);
  fprintf(out, "<h1>%d runs</h1><p>choir %s</p>\n", count, choir_version());
  results(&c);
  differences(&c);
  curves(&c);
  json_decref(c.fields);
}
