#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "infer/score.h"
#include "task/set.h"

static int begin_predictions(const ch_examples *e, int labels, ch_predictions *p) {
  size_t count = (size_t)e->count;
  *p = (ch_predictions){.count = e->count, .labels = labels};
  int code = CH_ALLOC(&p->label, count, "predictions");
  if (!code) code = CH_ALLOC(&p->score, count * (size_t)labels, "scores of labels");
  if (code) ch_predictions_free(p);
  return code;
}

void ch_predictions_free(ch_predictions *p) {
  free(p->label);
  free(p->score);
  *p = (ch_predictions){0};
}

/* Sets the most likely labels, or frees the predictions after an error; returns the code. */
static int finish_predictions(ch_predictions *p, int code) {
  if (code) ch_predictions_free(p);
  for (int64_t i = 0; i < p->count; i++) {
    const double *score = p->score + i * p->labels;
    for (int l = 1; l < p->labels; l++)
      if (score[l] > score[p->label[i]]) p->label[i] = l;
  }
  return code;
}

static int labels_of(const ch_examples *e) {
  int labels = 0;
  while (labels < CH_TASK_LABELS && e->word_begin[labels + 1]) labels++;
  return labels;
}

/* ---- by thresholds */

int ch_predict_alone(choir_model *model, const ch_examples *e, const choir_score_options *o, ch_predictions *p) {
  int labels = labels_of(e), code = begin_predictions(e, labels, p);
  if (code || !e->count) return code;
  size_t count = (size_t)e->count * (size_t)labels;
  ch_score_item *item;
  choir_scored *score = NULL;
  choir_score_result result = {0};
  code = CH_ALLOC(&item, count, "labels to score");
  if (!code) code = CH_ALLOC(&score, count, "scores of labels");
  for (size_t i = 0; i < count && !code; i++) {
    int64_t example = (int64_t)i / labels;
    int label = (int)((int64_t)i % labels);
    item[i] = (ch_score_item){.context = ch_examples_prompt(e, example),
                              .contexts = ch_examples_length(e, example),
                              .continuation = ch_examples_word(e, label),
                              .continuations = ch_examples_word_length(e, label),
                              .score = &score[i]};
  }
  if (!code) code = ch_score_run(model, item, (int64_t)count, o, &result);
  for (size_t i = 0; i < count && !code; i++)
    p->score[i] = score[i].log_likelihood / ch_examples_word_length(e, (int)(i % (size_t)labels));
  free(item);
  free(score);
  return finish_predictions(p, code);
}

/* ---- by batch routing */

typedef struct {
  choir_model *model;
  const ch_examples *e;
  ch_predictions *p;
  int B, V;
  int32_t *token, *row; /* [B,T] of the longest; [B * longest word] */
  float *logits;        /* [B * longest word,V] */
} batches;

static int longest(const ch_examples *e) { return ch_padded_length(e, e->longest + e->longest_word - 1); }

/* The examples of a batch: B, or all examples if there are fewer, because the rest of the batch would be padding,
 * which is computed like other tokens. But at least as many tokens as the routers need for their experts. */
static int fit(const ch_examples *e, int B, int experts) {
  int64_t min = (experts + CH_LENGTH_STEP - 1) / CH_LENGTH_STEP, max = e->count > min ? e->count : min;
  return B < max ? B : (int)max;
}

int ch_predict_passes(const ch_examples *e, int B, int experts, ch_pass **passes, int *count) {
  static const int32_t some = 0;
  static real some_logits;
  B = fit(e, B, experts);
  *count = B ? longest(e) / e->step : 0;
  CH_TRY(CH_ALLOC(passes, *count, "a plan of passes"));
  for (int i = 0; i < *count; i++)
    (*passes)[i] = (ch_pass){.B = B,
                             .T = (i + 1) * e->step,
                             .token = &some,
                             .row = &some,
                             .rows = B * e->longest_word,
                             .logits = &some_logits};
  return CHOIR_OK;
}

/* Whether two words differ at most in their last token: then one pass scores both. */
static int same_stem(const ch_examples *e, int a, int b) {
  int length = ch_examples_word_length(e, a);
  return length == ch_examples_word_length(e, b) &&
         !memcmp(ch_examples_word(e, a), ch_examples_word(e, b), (size_t)(length - 1) * sizeof(int32_t));
}

static int collect_predictions(const batches *w, int64_t first, int64_t end, int stem) {
  const float *row = w->logits;
  int length = ch_examples_word_length(w->e, stem);
  for (int64_t i = first; i < end; i++)
    for (int t = 0; t < length; t++, row += w->V) {
      ch_summary s = ch_summarize(row, w->V);
      if (!isfinite(s.log_sum))
        return ch_error(CHOIR_ERROR_NUMERIC, "example %lld: the logits are not finite numbers", (long long)i);
      for (int l = stem; l < w->p->labels; l++)
        if (same_stem(w->e, stem, l))
          w->p->score[i * w->p->labels + l] += ((double)row[ch_examples_word(w->e, l)[t]] - s.log_sum) / length;
    }
  return CHOIR_OK;
}

static int run_batch(batches *w, int64_t first, int64_t end) {
  int max = 0;
  for (int64_t i = first; i < end; i++)
    if (ch_examples_length(w->e, i) > max) max = ch_examples_length(w->e, i);
  for (int stem = 0; stem < w->p->labels; stem++) {
    int known = 0;
    for (int l = 0; l < stem; l++) known |= same_stem(w->e, l, stem);
    if (known) continue;
    int T = ch_padded_length(w->e, max + ch_examples_word_length(w->e, stem) - 1);
    int rows = ch_examples_lay_out(w->e, NULL, first, (int)(end - first), stem, w->B, T, w->token, w->row, NULL);
    ch_pass pass = {.B = w->B, .T = T, .token = w->token, .row = w->row, .rows = rows, .logits = w->logits};
    ch_model_measure(w->model, &w->model->x, &pass);
    CH_TRY(collect_predictions(w, first, end, stem));
  }
  return CHOIR_OK;
}

static int run_batches(batches *w, const choir_score_options *o) {
  int64_t count = w->e->count;
  for (int64_t first = 0; first < count; first += w->B) {
    int64_t end = first + w->B < count ? first + w->B : count;
    CH_TRY(run_batch(w, first, end));
    CH_TRY(ch_model_check_cancelled(w->model, o->progress, o->context, end, count, "texts"));
  }
  return CHOIR_OK;
}

int ch_predict_batches(choir_model *model, const ch_examples *e, int B, const choir_score_options *o,
                       ch_predictions *p) {
  CH_TRY(begin_predictions(e, labels_of(e), p));
  const ch_model_config *c = &model->config.model;
  batches w = {.model = model, .e = e, .p = p, .B = fit(e, B, c->experts), .V = c->vocab_size};
  size_t rows = (size_t)w.B * (size_t)e->longest_word;
  int code = CH_ALLOC(&w.token, (size_t)w.B * (size_t)longest(e), "tokens of a batch");
  if (!code) code = CH_ALLOC(&w.row, rows, "rows of labels");
  if (!code) code = CH_ALLOC(&w.logits, rows * (size_t)w.V, "logits of labels");
  if (!code) code = run_batches(&w, o);
  free(w.token), free(w.row), free(w.logits);
  return finish_predictions(p, code);
}
