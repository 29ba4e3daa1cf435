#include "study/study_tables.h"

#include <math.h>
#include <string.h>

#include "pages/page.h"
#include "study/study_values.h"

#define number ch_number_at
#define text ch_text_at
#define figure ch_number_text
#define interval ch_interval_text

/* ---- tables ---- */

static void losses(FILE *out, const json_t *arms) {
  static const char *const columns[] = {"arm",
                                        "causal loss",
                                        "\xC2\xB1 sd",
                                        "perplexity",
                                        "own routing",
                                        "\xC2\xB1 sd",
                                        "causal, to the first arm (95 %)",
                                        "runs",
                                        NULL};
  const json_t *arm;
  size_t i;
  ch_table_begin(out, "Held-out loss at the end",
                 "nats a token; own routing: the router's, which may look at other tokens", columns);
  json_array_foreach(arms, i, arm) {
    const json_t *causal = json_object_get(arm, "causal"), *own = json_object_get(arm, "own"),
                 *difference = json_object_get(arm, "difference");
    ch_table_label(out, text(arm, "name"));
    ch_table_cell(out, figure("%.4f", number(causal, "mean")));
    ch_table_cell(out, figure("%.4f", number(causal, "deviation")));
    ch_table_cell(out, figure("%.2f", exp(number(causal, "mean"))));
    ch_table_cell(out, figure("%.4f", number(own, "mean")));
    ch_table_cell(out, figure("%.4f", number(own, "deviation")));
    ch_table_cell(out, strcmp(text(difference, "from"), text(arm, "name"))
                           ? interval("%+.4f", json_object_get(difference, "causal"))
                           : "");
    ch_table_cell(out, figure("%.0f", number(causal, "count")));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

static void costs(FILE *out, const json_t *arms) {
  static const char *const columns[] = {"arm",          "parameters", "active", "FLOPs a token",
                                        "to the first", "experts",    "rate",   NULL};
  const json_t *arm;
  size_t i;
  ch_table_begin(out, "What a token costs", "training; equal in all arms unless the recipe means them to differ",
                 columns);
  json_array_foreach(arms, i, arm) {
    ch_table_label(out, text(arm, "name"));
    ch_table_cell(out, figure("%.3f M", 1e-6 * number(arm, "parameters")));
    ch_table_cell(out, figure("%.3f M", 1e-6 * number(arm, "active_parameters")));
    ch_table_cell(out, figure("%.3f M", 1e-6 * number(arm, "train_flops_per_token")));
    ch_table_cell(out, figure("%.3f", number(arm, "flops_to_first")));
    ch_table_cell(out, figure("%.0f", number(arm, "experts")));
    ch_table_cell(out, figure("%g", number(arm, "rate")));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

static void routing_rows(FILE *out, const json_t *arm, const char *key) {
  const json_t *r = json_object_get(arm, key);
  if (!json_is_object(r)) return;
  ch_table_label(out, text(arm, "name"));
  ch_table_cell(out, text(r, "routing"));
  ch_table_cell(out, figure("%.2f", number(r, "experts_per_token")));
  ch_table_cell(out, figure("%.2f %%", 100 * number(r, "none")));
  ch_table_cell(out, figure("%.2f %%", 100 * number(r, "dropped")));
  ch_table_cell(out, figure("%.2f", number(r, "fullest")));
  ch_table_cell(out, figure("%.2f %%", 100 * number(r, "over_capacity")));
  fputs("</tr>\n", out);
}

static void routing(FILE *out, const json_t *arms) {
  static const char *const columns[] = {"arm",
                                        "routing",
                                        "experts per token",
                                        "tokens without",
                                        "dropped choices",
                                        "fullest expert asked, over mean",
                                        "asked above capacity",
                                        NULL};
  const json_t *arm;
  size_t i;
  ch_table_begin(out, "Who goes where, at the last evaluation", "means over layers and seeds", columns);
  json_array_foreach(arms, i, arm) {
    routing_rows(out, arm, "routing");
    if (strcmp(text(json_object_get(arm, "routing"), "routing"),
               text(json_object_get(arm, "routing_causal"), "routing")))
      routing_rows(out, arm, "routing_causal");
  }
  ch_table_end(out);
}

static void timing(FILE *out, const json_t *summary, const json_t *arms) {
  static const char *const columns[] = {"arm",
                                        "step",
                                        "in experts",
                                        "step, to the first arm",
                                        "fullest expert holds",
                                        "was asked",
                                        "a device for every expert: step, to the first",
                                        "the same, only what it holds",
                                        NULL};
  const json_t *timed = json_object_get(json_object_get(summary, "timing"), "arms"), *arm;
  size_t i;
  if (!json_array_size(timed)) return;
  ch_table_begin(out, "Time of a step",
                 "measured in turns; intervals over rounds. The last two: all wait for the fullest expert", columns);
  json_array_foreach(arms, i, arm) {
    const json_t *t = json_array_get(timed, i);
    ch_table_label(out, text(arm, "name"));
    ch_table_cell(out, figure("%.2f ms", 1e3 * number(t, "step_seconds")));
    ch_table_cell(out, figure("%.2f ms", 1e3 * number(t, "expert_seconds")));
    ch_table_cell(out, interval("%.3f", json_object_get(t, "step_to_reference")));
    ch_table_cell(out, figure("%.2f", number(t, "fullest_holds")));
    ch_table_cell(out, figure("%.2f", number(t, "fullest_asked")));
    ch_table_cell(out, interval("%.3f", json_object_get(t, "device_to_reference")));
    ch_table_cell(out, interval("%.3f", json_object_get(t, "device_held_to_reference")));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

static void seeds(FILE *out, const json_t *arms) {
  static const char *const columns[] = {
      "arm", "seed", "causal loss", "own routing", "dropped in training", "imbalance in training", "step", "run", NULL};
  const json_t *arm, *run;
  size_t i, j;
  ch_table_begin(out, "Every run", "dropped and imbalance: means of the last tenth of training steps", columns);
  json_array_foreach(arms, i, arm) json_array_foreach(json_object_get(arm, "runs"), j, run) {
    ch_table_label(out, text(arm, "name"));
    ch_table_cell(out, figure("%.0f", number(run, "seed")));
    ch_table_cell(out, figure("%.4f", number(run, "causal")));
    ch_table_cell(out, figure("%.4f", number(run, "own")));
    ch_table_cell(out, figure("%.2f %%", 100 * number(run, "dropped")));
    ch_table_cell(out, figure("%.2f", number(run, "imbalance")));
    ch_table_cell(
        out, figure(json_is_true(json_object_get(run, "complete")) ? "%.0f" : "%.0f, unfinished", number(run, "step")));
    ch_table_cell(out, text(run, "name"));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

static void rates(FILE *out, const json_t *summary, const json_t *arms) {
  const char *columns[16] = {"arm"};
  char names[12][24], note[160];
  const json_t *arm, *row, *first = json_object_get(json_array_get(arms, 0), "rates");
  size_t i, j;
  int count = 1;
  json_array_foreach(first, j, row) if (count < 12) {
    snprintf(names[count], sizeof names[count], "%g", number(row, "rate"));
    columns[count] = names[count];
    count++;
  }
  if (count == 1) return;
  columns[count] = "taken";
  columns[count + 1] = "searched with";
  snprintf(note, sizeof note, "causal loss after %.4g M tokens, seed 1; the lowest is taken",
           1e-6 * number(summary, "rate_tokens"));
  ch_table_begin(out, "Rates", note, columns);
  json_array_foreach(arms, i, arm) {
    ch_table_label(out, text(arm, "name"));
    json_array_foreach(json_object_get(arm, "rates"), j, row) ch_table_cell(out, figure("%.4f", number(row, "causal")));
    ch_table_cell(out, figure("%g", number(arm, "rate")));
    ch_table_cell(out, text(arm, "rate_of"));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

static void pools(FILE *out, const json_t *arms) {
  static const char *const columns[] = {
      "arm", "pool, tokens", "sequences", "loss by batch", "less the causal loss (95 %)", NULL};
  const json_t *arm, *row;
  size_t i, j, rows = 0;
  json_array_foreach(arms, i, arm) rows += json_array_size(json_object_get(arm, "pools"));
  if (!rows) return;
  ch_table_begin(
      out, "What an evaluation by batch depends on",
      "neighbours: pieces of one document; scattered: mixtures, as in training. Above 0: batch routing is worse than "
      "thresholds",
      columns);
  json_array_foreach(arms, i, arm) json_array_foreach(json_object_get(arm, "pools"), j, row) {
    ch_table_label(out, text(arm, "name"));
    ch_table_cell(out, figure("%.0f", number(row, "pool")));
    ch_table_cell(out, json_is_true(json_object_get(row, "scattered")) ? "scattered" : "neighbours");
    ch_table_cell(out, figure("%.4f", number(json_object_get(row, "loss"), "mean")));
    ch_table_cell(out, interval("%+.4f", json_object_get(row, "less_causal")));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

static void counted(FILE *out, const char *title, const json_t *rows) {
  static const char *const columns[] = {"token", "seen", "experts", "without", NULL};
  const json_t *row;
  size_t i;
  ch_table_begin(out, title, "", columns);
  json_array_foreach(rows, i, row) {
    ch_table_label(out, text(row, "name"));
    ch_table_cell(out, figure("%.0f", number(row, "tokens")));
    ch_table_cell(out, figure("%.2f", number(row, "experts")));
    ch_table_cell(out, figure("%.1f %%", 100 * number(row, "none")));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
}

/* Of one arm, by one routing. */
static void tokens_of(FILE *out, const json_t *arm, const char *routing, const char *name) {
  const json_t *c = json_object_get(json_object_get(arm, "tokens"), routing);
  fputs("<h2>Which tokens get many experts and which none: ", out);
  ch_html_text(out, text(arm, "name"));
  fprintf(out,
          ", %s</h2><p>Means over MoE layers and occurrences in the held-out text, seed 1; tokens that stand at least "
          "40 times.</p><div class=sides>\n",
          name);
  counted(out, "Kinds of tokens", json_object_get(c, "kinds"));
  counted(out, "By frequency", json_object_get(c, "frequency"));
  counted(out, "Most experts", json_object_get(c, "most"));
  counted(out, "Fewest experts", json_object_get(c, "fewest"));
  fputs("</div>\n", out);
}

void ch_study_write_tables(FILE *out, const json_t *summary) {
  const json_t *arms = json_object_get(summary, "arms"), *arm;
  size_t i;
  fputs("<h2>Tables</h2>\n", out);
  losses(out, arms);
  costs(out, arms);
  routing(out, arms);
  timing(out, summary, arms);
  rates(out, summary, arms);
  pools(out, arms);
  seeds(out, arms);
  json_array_foreach(arms, i, arm) if (json_is_object(json_object_get(arm, "tokens"))) {
    tokens_of(out, arm, "causal", "by thresholds");
    tokens_of(out, arm, "own", "by its own routing");
  }
}
