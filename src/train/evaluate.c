#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/collective.h"
#include "comm/watch.h"
#include "data/data.h"

/* The window of that number [length+1]. */
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

double *ch_unigram_log(const uint64_t *counts, int vocab_size) {
  double *logs = reallocarray(NULL, (size_t)vocab_size, sizeof *logs);
  if (!logs) return NULL;
  double total = vocab_size;
  for (int v = 0; v < vocab_size; v++) total += (double)counts[v];
  for (int v = 0; v < vocab_size; v++) logs[v] = log(((double)counts[v] + 1) / total);
  return logs;
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

/* Windows begin .. end-1 as tokens and targets in `rows` rows, those beyond them padding. Gives how many targets. */
static int64_t fill_batch(const ch_windows *w, int64_t begin, int64_t end, int rows, int32_t *row, int32_t *token,
                          int32_t *target) {
  int T = w->length;
  int64_t targets = 0;
  for (int64_t b = 0; b < rows; b++) {
    if (begin + b < end)
      get_window(w, (begin + b) * w->stride % w->count, row);
    else
      for (int t = 0; t <= T; t++) row[t] = -1;
    targets += ch_window_cut(row, T, token + b * T, target + b * T);
  }
  return targets;
}

static void show_losses(const ch_windows *w, int64_t begin, int64_t end, const int32_t *target, const float *loss) {
  for (int64_t i = begin; i < end && w->seen; i++, target += w->length, loss += w->length)
    w->seen(w->context, i * w->stride % w->count, target, loss);
}

static double unigram_sum(const double *unigram, const int32_t *target, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; unigram && i < n; i++)
    if (target[i] >= 0) sum -= unigram[target[i]];
  return sum;
}

/* Rows of padding change nothing but the time: as many as make whole shards, and so the same numbers on any number of
 * ranks. */
static int rows_of(const choir_model *model, int B) {
  int shards = model->shards;
  return shards > 1 ? (B + shards - 1) / shards * shards : B;
}

/* Ranks that evaluate together take the same windows. */
static int same_windows(const choir_model *model, const ch_windows *w, int B, int64_t end) {
  const char *routing = choir_model_routing(model);
  uint64_t text = w->data ? w->data->hash : XXH64(w->text, (size_t)w->text_tokens * sizeof *w->text, 0);
  const double *factor = &model->net.config.router.eval_capacity_factor;
  const ch_fact facts[] = {{"batch size", (uint64_t)B},
                           {"capacity factor", XXH64(factor, sizeof *factor, 0)},
                           {"wish to calibrate", w->observe != 0},
                           {"sequence length", (uint64_t)w->length},
                           {"number of sequences", (uint64_t)end},
                           {"order of sequences", (uint64_t)w->stride},
                           {"text to evaluate", text},
                           {"routing", XXH64(routing, strlen(routing), 0)},
                           {"wish to see routings", model->callback != NULL}};
  return CH_SAME(model->x.comm, facts);
}

/* Whatever may fail on one rank alone. */
static int prepare_rows(choir_model *model, int rows, int T, int32_t **buffer) {
  int64_t n = (int64_t)rows * T;
  CH_TRY(ch_model_plan(model, rows, T, 0));
  *buffer = reallocarray(NULL, (size_t)(3 * n + T + 1), sizeof **buffer); /* losses are as wide as ids */
  return *buffer ? CHOIR_OK
                 : ch_error(CHOIR_ERROR_MEMORY, "no memory for an evaluation batch of %lld tokens", (long long)n);
}

int ch_evaluate(choir_model *model, const ch_windows *windows, int B, int64_t limit, const double *unigram,
                int (*progress)(void *, int64_t, int64_t), void *context, choir_eval_result *result) {
  const ch_comm *comm = model->x.comm;
  int rows = rows_of(model, B);
  int64_t n = (int64_t)rows * windows->length, end = limit > 0 && limit < windows->count ? limit : windows->count;
  int32_t *buffer = NULL;
  int code = ch_comm_agree(comm, prepare_rows(model, rows, windows->length, &buffer));
  if (!code) code = same_windows(model, windows, B, end);
  if (code) {
    free(buffer);
    return code;
  }
  int32_t *token = buffer, *target = buffer + n, *row = buffer + 2 * n;
  float *token_loss = windows->seen ? (float *)(row + windows->length + 1) : NULL;
  double loss = 0, baseline = 0;
  *result = (choir_eval_result){.routing = choir_model_routing(model),
                                .looks_across_tokens = choir_model_looks_across_tokens(model)};
  ch_transformer_clear_stats(&model->net);
  for (int64_t begin = 0, next; begin < end && !code; begin = next) {
    next = begin + B < end ? begin + B : end;
    ch_watch_section(comm, "evaluation, sequence", begin);
    result->tokens += fill_batch(windows, begin, next, rows, row, token, target);
    ch_pass pass = {.B = rows,
                    .T = windows->length,
                    .shards = ch_model_shards(model, rows),
                    .token = token,
                    .target = target,
                    .token_loss = token_loss,
                    .route = {.causal = model->causal},
                    .observe = windows->observe && (next - begin == B || !begin),
                    .micro = (uint64_t)(begin / B),
                    .hook = ch_model_routing_hook(model)};
    ch_transformer_run(&model->x, &model->net, &pass);
    loss += pass.loss_sum;
    show_losses(windows, begin, next, target, token_loss);
    baseline += unigram_sum(unigram, target, n);
    if (progress && ch_model_stopped(model, progress, context, next, end))
      code = ch_error(CHOIR_ERROR_INTERRUPTED, "evaluation stopped after %lld of %lld windows", (long long)next,
                      (long long)end);
    code = ch_comm_agree(comm, code);
  }
  free(buffer);
  if (code) return code;
  if (!result->tokens) return ch_error(CHOIR_ERROR_ARGUMENT, "nothing to evaluate: no held-out window has two tokens");
  result->loss = loss / (double)result->tokens;
  result->unigram_loss = baseline / (double)result->tokens;
  result->perplexity = exp(result->loss);
  return CHOIR_OK;
}

/* ---- statistics of layers, meanwhile */

static void count_layer(void *context, const choir_routing *routing) {
  const ch_layer_stats *w = context;
  choir_route_stats_count(&w->layer[routing->moe], routing);
  if (w->also) w->also(w->context, routing);
}

int ch_layer_stats_begin(choir_model *model, int vocab_size, ch_layer_stats *w) {
  int layers = choir_model_moe_layers(model);
  w->layers = 0;
  w->layer = calloc((size_t)layers + 1, sizeof *w->layer);
  if (!w->layer) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics of %d layers", layers);
  for (; w->layers < layers; w->layers++) {
    int code = choir_route_stats_begin(choir_model_config_of(model)->model.experts, vocab_size, &w->layer[w->layers]);
    if (!code) continue;
    ch_layer_stats_free(w);
    return code;
  }
  choir_model_on_routing(model, count_layer, w);
  return CHOIR_OK;
}

void ch_layer_stats_free(ch_layer_stats *w) {
  for (int i = 0; i < w->layers; i++) choir_route_stats_free(&w->layer[i]);
  free(w->layer);
  w->layer = NULL;
  w->layers = 0;
}
