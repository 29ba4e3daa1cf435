/* The table of fine-tuning in the paper's layout, as HTML and Markdown, and what it says in words. Everything is a
 * function of "tuned" in summary.json. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "file/json.h"
#include "pages/page.h"
#include "study/study_tuned.h"
#include "study/study_values.h"

enum { COLUMNS = 64 };

/* ---- the table as rows of texts ---- */

static void add(json_t *row, const char *text) { ch_json_add(row, json_string(text)); }

/* "52.1 ± 1.2 (53.0)": mean and deviation over seeds; in brackets the mean by batch routing. */
static void add_result(json_t *row, const json_t *cell) {
  const json_t *own = json_object_get(cell, "own"), *batch = json_object_get(cell, "batch");
  char text[96];
  int used = snprintf(text, sizeof text, "%s", ch_number_text("%.1f", ch_number_at(own, "mean")));
  if (isfinite(ch_number_at(own, "deviation")))
    used += snprintf(text + used, sizeof text - (size_t)used, "\xC2\xA0\xC2\xB1\xC2\xA0%.1f",
                     ch_number_at(own, "deviation"));
  if (isfinite(ch_number_at(batch, "mean")))
    snprintf(text + used, sizeof text - (size_t)used, " (%.1f)", ch_number_at(batch, "mean"));
  add(row, text);
}

/* Whether any task has been given an accuracy of a bag of words. */
static int has_words(const json_t *tuned) {
  const json_t *task;
  size_t i;
  json_array_foreach(json_object_get(tuned, "tasks"), i, task) if (isfinite(ch_number_at(task, "words"))) return 1;
  return 0;
}

static json_t *head_row(const json_t *tuned) {
  json_t *row = json_array();
  const json_t *arm;
  char text[CH_STUDY_NAME + 16];
  size_t i;
  add(row, "task");
  add(row, "commonest label");
  if (has_words(tuned)) add(row, "bag of words");
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) add(row, ch_text_at(arm, "name"));
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) {
    snprintf(text, sizeof text, "paper: %s", ch_text_at(arm, "name"));
    if (json_is_object(json_object_get(arm, "paper"))) add(row, text);
  }
  return row;
}

/* Means of "majority" or "words" over the tasks that averages are over; NaN where one has none. */
static double mean_of(const json_t *tuned, const char *key, int *count) {
  const json_t *task;
  size_t i;
  double sum = 0;
  *count = 0;
  json_array_foreach(json_object_get(tuned, "tasks"), i, task) if (json_is_true(json_object_get(task, "averaged"))) {
    sum += ch_number_at(task, key);
    ++*count;
  }
  return *count ? sum / *count : (double)NAN;
}

/* number: of the task; -1: the average. */
static json_t *row_of(const json_t *tuned, int number) {
  const json_t *task = number < 0 ? NULL : json_array_get(json_object_get(tuned, "tasks"), (size_t)number), *arm;
  json_t *row = json_array();
  char name[CH_STUDY_NAME];
  size_t i;
  int count;
  double majority = mean_of(tuned, "majority", &count), words = mean_of(tuned, "words", &count);
  snprintf(name, sizeof name, "average of %d", count);
  add(row, task ? ch_text_at(task, "name") : name);
  add(row, ch_number_text("%.1f", task ? ch_number_at(task, "majority") : majority));
  if (has_words(tuned)) add(row, ch_number_text("%.1f", task ? ch_number_at(task, "words") : words));
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) add_result(
      row, task ? json_array_get(json_object_get(arm, "tasks"), (size_t)number) : json_object_get(arm, "average"));
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) {
    const json_t *paper = json_object_get(arm, "paper");
    if (json_is_object(paper))
      add(row, ch_number_text("%.1f", ch_number_at(paper, task ? ch_text_at(task, "name") : "average")));
  }
  return row;
}

/* The table in the paper's layout, as rows of texts: the first is the head, the last the average. tuned: of
 * ch_tuned_json. */
static json_t *table_of(const json_t *tuned) {
  json_t *rows = json_array();
  int tasks = (int)json_array_size(json_object_get(tuned, "tasks"));
  ch_json_add(rows, head_row(tuned));
  for (int i = 0; i < tasks; i++) ch_json_add(rows, row_of(tuned, i));
  ch_json_add(rows, row_of(tuned, -1));
  return rows;
}

/* ---- in words ---- */

/* Differences that are larger than chance in the seeds makes them. */
static void say_pairs(FILE *out, const json_t *tuned) {
  const json_t *pair;
  size_t i;
  int pairs = 0, larger = 0, sure = 0;
  json_array_foreach(json_object_get(tuned, "pairs"), i, pair) {
    const json_t *e = json_object_get(pair, "points");
    double mean = ch_number_at(e, "mean");
    if (!(ch_number_at(e, "count") >= 2)) continue;
    pairs++;
    larger += fabs(mean) > ch_number_at(e, "deviation");
    sure += ch_number_at(e, "low") > 0 || ch_number_at(e, "high") < 0;
  }
  if (!pairs) {
    fputs("With fewer than two seeds nothing can be said about differences between arms.", out);
    return;
  }
  fprintf(
      out,
      "Averages: of %d pair%s of arms %d differ by more than the standard deviation of their difference over seeds, "
      "and %d by so much that its 95 %% interval leaves out 0 (of twenty pairs without any difference one would).",
      pairs, pairs == 1 ? "" : "s", larger, sure);
  json_array_foreach(json_object_get(tuned, "pairs"), i, pair) {
    const json_t *e = json_object_get(pair, "points");
    double mean = ch_number_at(e, "mean"), low = ch_number_at(e, "low"), high = ch_number_at(e, "high");
    int down = mean < 0;
    if (low > 0 || high < 0)
      fprintf(out, " %s is above %s by %.1f points (%.1f to %.1f).", ch_text_at(pair, down ? "rival" : "arm"),
              ch_text_at(pair, down ? "arm" : "rival"), fabs(mean), down ? -high : low, down ? -low : high);
  }
}

static int is_above(const json_t *arm, size_t task) {
  return json_is_true(json_object_get(json_array_get(json_object_get(arm, "tasks"), task), "above"));
}

/* Which tasks were learned at all. */
static void say_above(FILE *out, const json_t *tuned) {
  const json_t *arms = json_object_get(tuned, "arms"), *task, *arm;
  size_t i, a, learned = 0, others = 0;
  fputs("Above the commonest label, by more than two standard errors (of the dev set's rows and over seeds):", out);
  json_array_foreach(json_object_get(tuned, "tasks"), i, task) {
    size_t above = 0, named = 0;
    json_array_foreach(arms, a, arm) above += (size_t)is_above(arm, i);
    if (!above) continue;
    fprintf(out, "%s %s with ", learned++ ? ";" : "", ch_text_at(task, "name"));
    if (above == json_array_size(arms)) fputs("every arm", out);
    json_array_foreach(arms, a, arm) if (above < json_array_size(arms) && is_above(arm, i))
        fprintf(out, "%s%s", named++ ? ", " : "", ch_text_at(arm, "name"));
  }
  fputs(learned ? "." : " no task with any arm.", out);
  json_array_foreach(json_object_get(tuned, "tasks"), i, task) {
    size_t above = 0;
    json_array_foreach(arms, a, arm) above += (size_t)is_above(arm, i);
    if (learned && !above) fprintf(out, "%s %s", others++ ? "," : " With no arm:", ch_text_at(task, "name"));
  }
  if (others) fputs(".", out);
}

static void say_how(FILE *out, const json_t *tuned) {
  double steps = ch_number_at(tuned, "steps"), every = ch_number_at(tuned, "eval_every"),
         rows = ch_number_at(tuned, "rows");
  fprintf(
      out,
      "Best dev accuracy in %% of %.0f evaluations within %.0f steps of %.0f texts: mean \xC2\xB1 standard deviation "
      "over seeds of pre-training and fine-tuning, by causal routing (thresholds); in brackets by batch routing, "
      "where that is another.",
      ceil(steps / every), steps, ch_number_at(tuned, "batch_sequences"));
  if (rows > 0) fprintf(out, " %.0f rows of a dev set at most.", rows);
  fputs(" A maximum over evaluations is above what new rows would give, by several points on small sets.", out);
  if (*ch_text_at(tuned, "paper_note")) fprintf(out, " The paper: %s.", ch_text_at(tuned, "paper_note"));
}

static void say_missing(FILE *out, const json_t *tuned) {
  const json_t *missing = json_object_get(tuned, "missing"), *name;
  size_t i;
  if (!json_array_size(missing)) return;
  fputs("Left out, because their files were not there:", out);
  json_array_foreach(missing, i, name) fprintf(out, "%s %s", i ? "," : "", json_string_value(name));
  fputs(".", out);
}

static void (*const sayings[])(FILE *out, const json_t *tuned) = {say_how, say_above, say_pairs, say_missing};
enum { SAYINGS = sizeof sayings / sizeof *sayings };

/* One of them as text to be freed; NULL: no memory. */
static char *saying(int number, const json_t *tuned) {
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  sayings[number](out, tuned);
  int failed = ferror(out);
  if (!fclose(out) && !failed) return text;
  free(text);
  return NULL;
}

/* ---- files ---- */

void ch_tuned_page(FILE *out, const json_t *tuned) {
  json_t *rows = table_of(tuned), *row, *cell, *head = json_array_get(rows, 0);
  const char *columns[COLUMNS + 1] = {0};
  size_t i, j;
  json_array_foreach(head, j, cell) if (j < COLUMNS) columns[j] = json_string_value(cell);
  fputs("<h2>Fine-tuned</h2>\n", out);
  for (int n = 0; n < SAYINGS; n++) {
    char *text = saying(n, tuned);
    if (text && *text) {
      fputs("<p>", out);
      ch_html_text(out, text);
      fputs("</p>\n", out);
    }
    free(text);
  }
  ch_table_begin(out, "Accuracy on the dev sets", "in %", columns);
  json_array_foreach(rows, i, row) {
    if (!i) continue;
    json_array_foreach(row, j, cell)(j ? ch_table_cell : ch_table_label)(out, json_string_value(cell));
    fputs("</tr>\n", out);
  }
  ch_table_end(out);
  json_decref(rows);
}

/* A name may have what Markdown takes for the end of a cell. */
static void markdown_text(FILE *out, const char *text) {
  for (; *text; text++) fprintf(out, *text == '|' ? "\\%c" : "%c", *text);
}

static int write_markdown(FILE *out, const void *context) {
  const json_t *summary = context, *tuned = json_object_get(summary, "tuned");
  json_t *rows = table_of(tuned), *row, *cell;
  size_t i, j;
  fprintf(out, "# %s\n\n%s, %.0f seeds, %.1f M tokens of pre-training.\n\n", ch_text_at(summary, "title"),
          ch_text_at(summary, "scale"), ch_number_at(summary, "seeds"), 1e-6 * ch_number_at(summary, "tokens"));
  json_array_foreach(rows, i, row) {
    json_array_foreach(row, j, cell) {
      fputs(j ? " | " : "| ", out);
      markdown_text(out, json_string_value(cell));
    }
    fputs(" |\n", out);
    for (j = 0; !i && j < json_array_size(row); j++) fputs(j ? "---:|" : "|---|", out);
    if (!i) fputs("\n", out);
  }
  json_decref(rows);
  for (int n = 0; n < SAYINGS; n++) {
    char *text = saying(n, tuned);
    if (text && *text) fprintf(out, "\n%s\n", text);
    free(text);
  }
  return CHOIR_OK;
}

int ch_tuned_markdown(const json_t *summary, const char *path) { return ch_page_save(path, write_markdown, summary); }
