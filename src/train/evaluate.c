#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "comm/collective.h"
#include "comm/watch.h"
#include "data/data.h"
#include "model/config.h"
#include "model/mask.h"

/* Copies window `index` [length+1] to `tokens`. */
static void get_window(const ch_windows *w, int64_t index, int32_t *tokens) {
  if (w->data) {
    ch_data_heldout(w->data, w->length, index, tokens);
    return;
  }
  for (int64_t i = 0; i <= w->length; i++) {
    int64_t at = index * w->length + i;
    tokens[i] = at < w->text_tokens ? w->text[at] : -1;
  }
}

ch_windows ch_windows_text(const int32_t *tokens, int64_t count, int length) {
  return (ch_windows){
      .count = (count - 2 + length) / length, .length = length, .stride = 1, .text = tokens, .text_tokens = count};
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Multiples of the golden ratio, modulo one, lie evenly however many there are; a stride without common divisor with
 * the count reaches every window once. */
int64_t ch_windows_stride(int64_t count) {
  const double golden = 0.6180339887498949;
  int64_t stride = (int64_t)(golden * (double)count + 0.5);
  while (stride > 1 && common_divisor(count, stride) > 1) stride--;
  return stride > 1 ? stride : 1;
}

ch_windows ch_windows_heldout(const choir_data *data, int length) {
  int64_t count = ch_data_heldout_windows(data, length);
  return (ch_windows){.count = count, .length = length, .stride = ch_windows_stride(count), .data = data};
}

int ch_unigram_log(const uint64_t *counts, int vocab_size, double **unigram) {
  CH_TRY(CH_ALLOC(unigram, vocab_size, "unigram probabilities"));
  double *logs = *unigram, total = vocab_size;
  for (int v = 0; v < vocab_size; v++) total += (double)counts[v];
  for (int v = 0; v < vocab_size; v++) logs[v] = log(((double)counts[v] + 1) / total);
  return CHOIR_OK;
}

double ch_heldout_bytes(const choir_data *data, int64_t tokens) {
  choir_data_info info;
  choir_data_get_info(data, &info);
  return (double)tokens * (double)info.heldout_bytes / (double)info.heldout_tokens;
}

void ch_eval_bytes(choir_eval_result *r, double bytes) {
  r->bytes = (int64_t)(bytes + 0.5);
  r->gzip_bits_per_byte = (double)NAN;
  r->bits_per_byte = bytes > 0 ? r->loss * (double)r->tokens / bytes / log(2) : 0;
}

void ch_eval_text_bytes(choir_eval_result *r, const ch_text_tokens *text) {
  int64_t targets = (int64_t)text->count - 1;
  ch_eval_bytes(r, (double)text->bytes * (double)r->tokens / (double)targets);
  if (text->gzip && r->tokens == targets) r->gzip_bits_per_byte = 8 * (double)text->gzip / (double)text->bytes;
}

int64_t ch_window_cut(const int32_t *window, int T, int32_t *token, int32_t *target) {
  int64_t targets = 0;
  for (int t = 0; t < T; t++) {
    target[t] = window[t + 1];
    token[t] = target[t] < 0 ? -1 : window[t];
    targets += target[t] >= 0;
  }
  return targets;
}

static double unigram_sum(const double *unigram, const int32_t *target, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; unigram && i < n; i++)
    if (target[i] >= 0) sum -= unigram[target[i]];
  return sum;
}

/* The evaluation of one masked sequence at one mask ratio: the mean loss of its masked tokens, and the number of all
 * its tokens, its weight in the mean over sequences. */
typedef struct {
  double ratio, loss;
  int64_t tokens;
} ratio_loss;

/* One evaluation: every window, `samples` times. */
typedef struct {
  choir_model *model;
  const ch_windows *w;
  int64_t end;          /* windows */
  int B, rows, samples; /* windows of a batch; the same with padding; `samples` is 1 unless the model is masked */
  int32_t *token, *target, *row;
  float *token_loss, *weight;
  ratio_loss *found; /* [samples,end], or NULL: not a masked model */
} window_evaluation;

/* Window number i of those evaluated. */
static int64_t window_of(const window_evaluation *e, int64_t i) { return i * e->w->stride % e->w->count; }

/* Masks row b (window i of a sample) and sets its weights, so that the weighted losses of masked tokens sum to their
 * mean times the number of tokens. The mask ratios of a batch's windows are evenly spaced. */
static void mask_row(const window_evaluation *e, int sample, int64_t i, int64_t b) {
  int T = e->w->length, n = 0;
  int64_t stratum = sample * e->end + i * ch_windows_stride(e->end) % e->end;
  ratio_loss *found = &e->found[sample * e->end + i];
  for (int t = 0; t < T; t++) n += e->row[t] >= 0;
  found->ratio = e->w->mask_at;
  int k = ch_mask_evaluation(&e->model->config, stratum, e->samples * e->end, window_of(e, i), sample, e->row, T,
                             e->token + b * T, e->target + b * T, &found->ratio);
  for (int t = 0; t < T; t++) e->weight[b * T + t] = k ? (float)((double)n / k) : 0;
  found->tokens = n;
}

/* Lays out windows begin .. end-1 as tokens and targets; the remaining rows are padding. Returns the number of
 * tokens with a loss. */
static int64_t fill_batch(const window_evaluation *e, int sample, int64_t begin, int64_t end) {
  int T = e->w->length;
  int64_t tokens = 0;
  for (int64_t b = 0; b < e->rows; b++) {
    int there = begin + b < end;
    if (there)
      get_window(e->w, window_of(e, begin + b), e->row);
    else
      for (int t = 0; t <= T; t++) e->row[t] = -1;
    if (e->found && there) {
      mask_row(e, sample, begin + b, b);
      tokens += e->found[sample * e->end + begin + b].tokens;
    } else {
      tokens += ch_window_cut(e->row, T, e->token + b * T, e->target + b * T);
    }
  }
  return tokens;
}

/* After a pass over masked windows: stores each window's loss. Multiplies token_loss by the weights, and sets the
 * targets to all tokens of the window, for `seen`. Returns the sum of the tokens' unigram losses. */
static double take_masked(const window_evaluation *e, int sample, int64_t begin, int64_t end, const double *unigram) {
  int T = e->w->length;
  double baseline = 0;
  for (int64_t i = begin; i < end; i++) {
    int32_t *target = e->target + (i - begin) * T;
    float *loss = e->token_loss + (i - begin) * T;
    double sum = 0;
    ratio_loss *found = &e->found[sample * e->end + i];
    get_window(e->w, window_of(e, i), e->row);
    for (int t = 0; t < T; t++) sum += (double)(loss[t] *= e->weight[(i - begin) * T + t]);
    for (int t = 0; t < T; t++) target[t] = e->row[t];
    baseline += unigram_sum(unigram, target, T);
    found->loss = found->tokens ? sum / (double)found->tokens : 0;
  }
  return baseline;
}

static int by_ratio(const void *a, const void *b) {
  double x = ((const ratio_loss *)a)->ratio, y = ((const ratio_loss *)b)->ratio;
  return (x > y) - (x < y);
}

/* The strata are in order, with one evaluation in each; neighbors differ by chance and hardly by their ratio. So
 * half the squared difference of two neighbors estimates the variance of one ("collapsed strata", Cochran 1977, section
 * 5A.12). */
static double standard_error(ratio_loss *found, int64_t count, double mean) {
  double squares = 0, tokens = 0;
  qsort(found, (size_t)count, sizeof *found, by_ratio);
  for (int64_t i = 0; i < count; i++) tokens += (double)found[i].tokens;
  for (int64_t i = 0; i + 1 < count; i += 2) {
    double a = (double)found[i].tokens * (found[i].loss - mean),
           b = (double)found[i + 1].tokens * (found[i + 1].loss - mean);
    squares += (a - b) * (a - b);
  }
  return count > 1 ? sqrt(squares) / tokens : (double)NAN;
}

static void take_ratios(const ratio_loss *found, int64_t count, choir_eval_result *r) {
  enum { TENTHS = sizeof r->ratio / sizeof *r->ratio };
  for (int part = 0; part < TENTHS; part++) {
    choir_eval_ratio *to = &r->ratio[r->ratio_count];
    double sum = 0;
    *to = (choir_eval_ratio){.from = (double)part / TENTHS, .to = (part + 1.0) / TENTHS};
    for (int64_t i = 0; i < count; i++)
      if ((int)(found[i].ratio * TENTHS) == part) sum += found[i].loss, to->evaluations++;
    to->loss = sum / (double)to->evaluations;
    r->ratio_count += to->evaluations > 0;
  }
}

static void show_losses(const ch_windows *w, int64_t begin, int64_t end, const int32_t *target, const float *loss) {
  for (int64_t i = begin; i < end && w->seen; i++, target += w->length, loss += w->length)
    w->seen(w->context, i * w->stride % w->count, target, loss);
}

/* Rows of a batch with padding: a whole number of gradient chunks, so that results are the same on any number of
 * ranks. Rows of padding change only the time. */
static int rows_of(const choir_model *model, int B) {
  int grad_chunks = model->grad_chunks;
  return grad_chunks > 1 ? (B + grad_chunks - 1) / grad_chunks * grad_chunks : B;
}

/* Checks that all ranks evaluate the same windows. */
static int same_windows(const choir_model *model, const ch_windows *w, int B, int64_t end) {
  const char *routing = choir_model_routing(model);
  uint64_t text = w->data ? w->data->hash : XXH64(w->text, (size_t)w->text_tokens * sizeof *w->text, 0);
  const double *factor = &model->net.config.router.eval_capacity_factor;
  const ch_fact facts[] = {{"batch size", (uint64_t)B},
                           {"capacity factor", XXH64(factor, sizeof *factor, 0)},
                           {"request to calibrate", w->observe != 0},
                           {"sequence length", (uint64_t)w->length},
                           {"number of sequences", (uint64_t)end},
                           {"order of sequences", (uint64_t)w->stride},
                           {"number of mask ratios", (uint64_t)w->mask_samples},
                           {"mask ratio", XXH64(&w->mask_at, sizeof w->mask_at, 0)},
                           {"text to evaluate", text},
                           {"routing", XXH64(routing, strlen(routing), 0)},
                           {"request for routings", model->callback != NULL}};
  return CH_SAME(model->x.comm, facts);
}

static ch_pass pass_of(const window_evaluation *e) {
  return (ch_pass){.B = e->rows,
                   .T = e->w->length,
                   .grad_chunks = ch_model_grad_chunks(e->model, e->rows),
                   .token = e->token,
                   .target = e->target,
                   .row_weight = e->found ? e->weight : NULL,
                   .token_loss = e->token_loss,
                   .route = {.causal = e->model->causal, .prefer = e->w->prefer}};
}

static int plan_passes(const window_evaluation *e) {
  if (!e->w->prefer) return ch_model_plan(e->model, e->rows, e->w->length, 0);
  ch_pass pass = pass_of(e);
  return ch_model_plan_passes(e->model, &pass, 1);
}

/* Allocates memory and plans the passes: everything that can fail on a single rank, before the ranks agree on an
 * error code. Losses and weights have the same width as token ids. */
static int prepare(window_evaluation *e) {
  int T = e->w->length;
  int64_t n = (int64_t)e->rows * T;
  CH_TRY(CH_ALLOC(&e->token, 4 * n + T + 1, "an evaluation batch"));
  e->target = e->token + n;
  e->row = e->target + n;
  e->weight = (float *)(e->row + T + 1);
  int masked = ch_config_masked(&e->model->config);
  if (e->w->seen || masked) e->token_loss = e->weight + n;
  if (masked) CH_TRY(CH_ALLOC(&e->found, e->samples * e->end, "losses of windows"));
  return plan_passes(e);
}

/* Evaluates windows begin .. end-1 of a sample. */
static void run_batch(const window_evaluation *e, int sample, int64_t begin, int64_t end, const double *unigram,
                      choir_eval_result *r) {
  choir_model *model = e->model;
  int64_t n = (int64_t)e->rows * e->w->length;
  r->tokens += fill_batch(e, sample, begin, end);
  ch_pass pass = pass_of(e);
  pass.observe = e->w->observe && (end - begin == e->B || !begin);
  pass.micro = (uint64_t)(begin / e->B);
  ch_model_measure(model, &model->x, &pass);
  r->loss += pass.loss_sum;
  r->unigram_loss += e->found ? take_masked(e, sample, begin, end, unigram) : unigram_sum(unigram, e->target, n);
  show_losses(e->w, begin, end, e->target, e->token_loss);
}

static int run_sample(const window_evaluation *e, int sample, const double *unigram, choir_progress_callback progress,
                      void *context, choir_eval_result *r) {
  const ch_comm *comm = e->model->x.comm;
  int code = CHOIR_OK;
  int64_t all = e->samples * e->end;
  for (int64_t begin = 0, next; begin < e->end && !code; begin = next) {
    next = begin + e->B < e->end ? begin + e->B : e->end;
    ch_watch_section(comm, "evaluation, sequence", begin);
    run_batch(e, sample, begin, next, unigram, r);
    code = ch_comm_agree(
        comm, ch_model_check_cancelled(e->model, progress, context, sample * e->end + next, all, "sequences"));
  }
  return code;
}

/* Divides the sums by the counts. */
static int finish(const window_evaluation *e, choir_eval_result *r) {
  if (!r->tokens) return ch_error(CHOIR_ERROR_ARGUMENT, "nothing to evaluate: no held-out window has two tokens");
  r->loss /= (double)r->tokens;
  r->unigram_loss /= (double)r->tokens;
  r->perplexity = exp(r->loss);
  r->tokens /= e->samples;
  if (!e->found) return CHOIR_OK;
  r->standard_error = standard_error(e->found, e->samples * e->end, r->loss);
  take_ratios(e->found, e->samples * e->end, r);
  return CHOIR_OK;
}

int ch_evaluate(choir_model *model, const ch_windows *windows, int B, int64_t limit, const double *unigram,
                choir_progress_callback progress, void *context, choir_eval_result *result) {
  int masked = ch_config_masked(&model->config);
  window_evaluation e = {.model = model,
                         .w = windows,
                         .end = limit > 0 && limit < windows->count ? limit : windows->count,
                         .B = B,
                         .rows = rows_of(model, B),
                         .samples = masked && windows->mask_samples > 1 ? windows->mask_samples : 1};
  int code = ch_comm_agree(model->x.comm, prepare(&e));
  if (!code) code = same_windows(model, windows, B, e.end);
  *result = (choir_eval_result){.routing = choir_model_routing(model),
                                .looks_across_tokens = choir_model_looks_across_tokens(model),
                                .objective = ch_objectives[model->config.train.objective]};
  if (!code) ch_transformer_clear_stats(&model->net);
  for (int sample = 0; sample < e.samples && !code; sample++)
    code = run_sample(&e, sample, unigram, progress, context, result);
  if (!code) code = finish(&e, result);
  if (!code) ch_note_served_cost(model, windows, B, e.end);
  free(e.token);
  free(e.found);
  return code;
}

/* ---- statistics of layers during an evaluation */

static void count_layer(void *context, const choir_routing *routing) {
  const ch_layer_stats *w = context;
  choir_route_stats_count(&w->layer[routing->moe], routing);
  if (w->log) ch_route_log_append(&w->log[routing->moe], routing);
  if (w->also) w->also(w->context, routing);
}

static int begin_logs(const choir_model *model, int length, ch_layer_stats *w) {
  int layers = choir_model_moe_layer_count(model);
  if (!layers || choir_model_looks_across_tokens(model) || ch_config_bidirectional(&model->config.model))
    return CHOIR_OK;
  CH_TRY(CH_ALLOC(&w->log, layers, "logs of routing"));
  for (int i = 0; i < layers; i++) w->log[i] = (ch_route_log){.experts = model->config.model.experts, .length = length};
  return CHOIR_OK;
}

int ch_layer_stats_begin(choir_model *model, int vocab_size, int length, ch_layer_stats *w) {
  int layers = choir_model_moe_layer_count(model), code = CHOIR_OK;
  w->layers = 0;
  w->log = NULL;
  CH_TRY(CH_ALLOC(&w->layer, layers, "statistics of layers"));
  for (; w->layers < layers && !code; w->layers += !code)
    code = choir_route_stats_init(choir_model_config(model)->model.experts, vocab_size, &w->layer[w->layers]);
  if (!code) code = begin_logs(model, length, w);
  if (code)
    ch_layer_stats_free(w);
  else
    choir_model_on_routing(model, count_layer, w);
  return code;
}

int ch_layer_stats_locality(const ch_layer_stats *w, ch_locality **locality) {
  *locality = NULL;
  if (!w->log) return CHOIR_OK;
  CH_TRY(CH_ALLOC(locality, w->layers + 1, "locality of routing"));
  for (int i = 0; i < w->layers; i++) {
    CH_TRY(ch_locality_make(&w->log[i], &(*locality)[i]));
    ch_locality_add(&(*locality)[w->layers], &(*locality)[i]);
  }
  return CHOIR_OK;
}

void ch_layer_stats_free(ch_layer_stats *w) {
  for (int i = 0; i < w->layers; i++) {
    choir_route_stats_clear(&w->layer[i]);
    if (w->log) ch_route_log_free(&w->log[i]);
  }
  free(w->layer);
  free(w->log);
  w->layer = NULL;
  w->log = NULL;
  w->layers = 0;
}
