/* The page of a study: claims and verdicts, charts, tables. A function of summary.json. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "pages/page.h"
#include "study/study.h"
#include "study/study_tables.h"
#include "study/study_tuned.h"
#include "study/study_values.h"

#define number ch_number_at
#define text ch_text_at

/* "0.031 nats (0.012 to 0.050)", and what else is to be said. */
static void value(FILE *out, const json_t *claim, const json_t *e) {
  const char *unit = text(claim, "unit");
  const char *format = !strcmp(unit, "times") ? "%.2f" : !strcmp(unit, "share") ? "%.3f" : "%+.4f";
  if (!strcmp(unit, "points")) format = "%+.2f";
  if (!isfinite(number(e, "mean"))) {
    fputs("not yet", out);
    return;
  }
  fprintf(out, "%s %s", ch_interval_text(format, e), !strcmp(unit, "share") ? "of tokens" : unit);
  double missed = number(e, "not_reached"), count = number(e, "count");
  if (missed > 0 && missed >= count)
    fputs("; not reached: the rival ends lower, and gets there so much sooner itself", out);
  else if (missed > 0)
    fprintf(out, "; not reached with %.0f of %.0f seeds", missed, count);
}

static void row(FILE *out, const char *name, const json_t *claim, const char *key) {
  const json_t *e = json_object_get(claim, key);
  if (!json_is_object(e)) return;
  fprintf(out, "<dt>%s</dt><dd>", name);
  value(out, claim, e);
  if (!strcmp(key, "own")) fprintf(out, " (%s)", text(e, "verdict"));
  fputs("</dd>", out);
}

static const char *class_of(const char *verdict) {
  if (!strcmp(verdict, "holds weakly")) return "weakly";
  return !strcmp(verdict, "holds") || !strcmp(verdict, "contradicted") ? verdict : "open";
}

static void write_claim(FILE *out, const json_t *claim) {
  const char *verdict = text(claim, "verdict");
  fprintf(out, "<div class=\"claim %s\"><p>", class_of(verdict));
  ch_html_text(out, text(claim, "text"));
  fprintf(out, "</p><dl><dt>verdict</dt><dd><b>%s</b></dd>", verdict);
  if (*text(claim, "paper")) {
    fputs("<dt>paper</dt><dd>", out);
    ch_html_text(out, text(claim, "paper"));
    fputs("</dd>", out);
  }
  row(out, json_object_get(claim, "own") ? "ours, causal" : "ours", claim, "causal");
  row(out, "own routing", claim, "own");
  fputs("</dl></div>\n", out);
}

static void head(FILE *out, const json_t *summary) {
  double tokens = number(summary, "tokens"), data = number(summary, "data_tokens");
  fputs("<h1>", out);
  ch_html_text(out, text(summary, "title"));
  fputs("</h1><p>", out);
  ch_html_text(out, text(summary, "question"));
  if (*text(summary, "figure")) {
    fputs(" Zhou et al. 2022: ", out);
    ch_html_text(out, text(summary, "figure"));
    fputs(".", out);
  }
  fputs("</p><p>", out);
  ch_html_text(out, text(summary, "scale"));
  fprintf(
      out,
      ": %.0f seeds, %.4g M tokens a run (%.0f steps of %.0f), %.2f times the data; vocabulary %.0f, data %s; "
      "held-out loss on %.0f tokens, in sequences of %.0f from all over the held-out share. The same windows in the "
      "same order in all arms. choir %s.</p>\n",
      number(summary, "seeds"), 1e-6 * tokens, number(summary, "steps"), number(summary, "step_tokens"), tokens / data,
      number(summary, "vocab_size"), text(summary, "data_hash"), number(summary, "eval_tokens"),
      number(summary, "sequence_length"), text(summary, "version"));
}

static void notes(FILE *out) {
  fputs(
      "<h2>How to read this</h2><p><b>Causal</b> losses are of a routing that looks at no other token: experts take by "
      "thresholds, or tokens "
      "choose without capacity. It is what a model has when it writes, and leads here. <b>Own routing</b> is the "
      "router's: where experts choose "
      "among all tokens of a pool it looks at later tokens and other texts, and its loss depends on the pool of the "
      "evaluation.</p>"
      "<p><b>Intervals</b> are 95 % of Student's distribution over seeds (of step times: over rounds) of differences "
      "between runs of the same "
      "seed. <b>Verdicts</b> come from a rule. Holds: the interval is on the claimed side of no effect, and the mean "
      "reaches the "
      "paper's figure where it gives one. Holds weakly: the 80 % interval is on that side. Contradicted: the 95 % "
      "interval is on the other side. "
      "Else it does not show at this scale.</p>",
      out);
}

static int page(FILE *out, const void *context) {
  const json_t *summary = context;
  const json_t *claim;
  size_t i;
  ch_page_begin(out, text(summary, "title"), ch_study_css, 1);
  head(out, summary);
  fputs("<div class=claims>\n", out);
  json_array_foreach(json_object_get(summary, "claims"), i, claim) write_claim(out, claim);
  fputs("</div>\n", out);
  if (json_object_get(summary, "tuned")) ch_tuned_page(out, json_object_get(summary, "tuned"));
  CH_TRY(ch_study_write_charts(out, summary, NULL));
  ch_study_write_tables(out, summary);
  notes(out);
  fprintf(out, "<script>\n%s</script></html>\n", ch_study_js);
  return CHOIR_OK;
}

int ch_study_page(const ch_study *s, const json_t *summary, const char *path) {
  char figures[PATH_MAX + 16];
  CH_TRY(ch_page_save(path, page, summary));
  snprintf(figures, sizeof figures, "%s/figures", s->own);
  return ch_study_write_charts(NULL, summary, figures);
}
