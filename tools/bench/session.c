/* Bench cases `decode` and `prompt`: one sequence in a session, with threshold routing. */
#include "infer/session.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "bench/cases.h"
#include "moe/route_stats.h"

typedef struct {
  choir_config config;
  choir_model *model;
  choir_session *session;
  int prompt, tokens; /* decode: tokens after a prompt; prompt: tokens of the single call, with `prompt` 0 */
  int32_t *token;     /* [prompt + tokens] */
  float *logits;      /* [rows,V] host: the session's logits after every decoded token, or after the prompt */
  int rows;
} serving;

/* Sets thresholds in a new model: after two batches routed as in training, a token of the same kind has about as
 * many experts as in training. */
static int set_thresholds(ch_bench *b, choir_model *model) {
  enum { SEQUENCES = 4, LENGTH = 256, BATCHES = 2 };
  const int32_t *token = ch_bench_tokens(b, BATCHES * SEQUENCES * LENGTH, model->config.model.vocab_size);
  CH_TRY(b->code);
  CH_TRY(ch_model_plan(model, SEQUENCES, LENGTH, 0));
  for (int i = 0; i < BATCHES; i++) {
    ch_pass pass = {.B = SEQUENCES,
                    .T = LENGTH,
                    .token = token + i * SEQUENCES * LENGTH,
                    .route = {.training = 1},
                    .observe = ch_router_has_thresholds(model->net.router),
                    .seed = 1,
                    .micro = (uint64_t)i};
    ch_transformer_run(&model->x, &model->net, &pass);
  }
  return choir_model_set_routing(model, "threshold");
}

static int set_up_serving(ch_bench *b, serving *s) {
  int64_t length = s->prompt + s->tokens;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  run.threads = b->options->threads;
  run.backend = b->backend->name;
  CH_TRY(ch_bench_config(b, &s->config));
  CH_TRY(choir_model_create(&s->config, 1, &run, &s->model));
  CH_TRY(set_thresholds(b, s->model));
  s->token = ch_bench_tokens(b, length, s->config.model.vocab_size);
  s->logits = ch_bench_host(b, (size_t)s->rows * (size_t)s->config.model.vocab_size * sizeof *s->logits);
  CH_TRY(b->code);
  choir_session_options options = {
      .size = sizeof options, .slots = 1, .length = (int)length, .chunk = s->prompt ? s->prompt : s->tokens};
  return choir_session_create(s->model, &options, &s->session);
}

/* These calls are valid by construction: their code is always CHOIR_OK. */
static void decode(void *context) {
  serving *s = context;
  int64_t V = s->config.model.vocab_size;
  int one = 1;
  choir_session_rewind(s->session, 0, s->prompt);
  for (int t = 0; t < s->tokens; t++)
    choir_session_advance(s->session, &one, s->token + s->prompt + t, s->logits + t * V, NULL);
}

static void process_prompt(void *context) {
  serving *s = context;
  choir_session_rewind(s->session, 0, 0);
  choir_session_advance(s->session, &s->tokens, s->token, s->logits, NULL);
}

static void training_forward(void *context) {
  serving *s = context;
  choir_model *model = s->model;
  ch_pass pass = {.B = 1, .T = s->tokens, .token = s->token, .target = s->token, .route = {.training = 1}, .seed = 1};
  ch_transformer_run(&model->x, &model->net, &pass);
}

/* Mean number of experts per token since the statistics were cleared. */
static double experts_per_token(const ch_transformer *net) {
  return ch_route_stats_summary(net->stats, net->moe_layers).slots;
}

/* Counts operations and bytes of all weights that a token is multiplied with. A tied embedding counts as the head. */
static void weights_met(const ch_transformer *net, double experts, double *flops, double *bytes) {
  *flops = *bytes = 0;
  for (int i = 0; i < net->params.count; i++) {
    const ch_param *p = &net->params.p[i];
    if (!p->product) continue;
    double count = (double)p->count * (p->expert ? experts / net->config.experts : 1);
    *flops += 2 * count;
    *bytes += count * (double)(p->w16 ? sizeof(ch_bf16) : sizeof(real));
  }
}

/* Compares the session's logits with those of one pass over the whole sequence, which does not use the session's
 * caches, products and chunks. */
static int compare_serving(ch_bench *b, serving *s) {
  int64_t V = s->config.model.vocab_size, length = s->prompt + s->tokens;
  float *all = ch_bench_host(b, (size_t)(length * V) * sizeof *all);
  choir_forward_result ignored;
  CH_TRY(b->code);
  CH_TRY(choir_model_forward(s->model, 1, (int)length, s->token, all, 0, &ignored));
  b->result->error = ch_bench_error(s->logits, all + (length - s->rows) * V, s->rows * V);
  return CHOIR_OK;
}

/* Times decoding between two measurements of the read bandwidth that it is compared with: on a shared machine the
 * bandwidth changes every few seconds. The higher one counts. */
static int time_decoding(ch_bench *b, serving *s, double *read_gbs) {
  ch_peak before = {0}, after = {0};
  const double seconds = 0.2;
  int threads = b->options->threads, wanted = b->options->peak != NULL;
  if (wanted) CH_TRY(ch_backend_peak(b->backend->name, threads, seconds, 1, &before));
  ch_bench_time(b, decode, s);
  if (wanted) CH_TRY(ch_backend_peak(b->backend->name, threads, seconds, 1, &after));
  *read_gbs = fmax(before.read_gbs, after.read_gbs);
  return CHOIR_OK;
}

static int measure_decode(ch_bench *b, serving *s) {
  ch_bench_result *r = b->result;
  double flops, bytes, read_gbs;
  CH_TRY(set_up_serving(b, s));
  CH_TRY(choir_session_advance(s->session, &s->prompt, s->token, NULL, NULL));
  ch_transformer_clear_stats(&s->session->net);
  CH_TRY(time_decoding(b, s, &read_gbs));
  double experts = experts_per_token(&s->session->net);
  weights_met(&s->session->net, experts, &flops, &bytes);
  ch_bench_rates(b, flops * s->tokens, bytes * s->tokens);
  r->share = read_gbs > 0 ? r->gbs / read_gbs : 0;
  r->tokens = s->tokens;
  r->rate = s->tokens / r->seconds;
  r->unit = "tokens/s";
  if (s->session->net.moe_layers) ch_bench_figure(b, "experts a token", experts);
  ch_bench_figure(b, "MB of weights a token", bytes * 1e-6);
  ch_bench_figure(b, "GB/s", r->gbs);
  if (read_gbs > 0) ch_bench_figure(b, "GB/s of reading", read_gbs);
  snprintf(r->note, sizeof r->note,
           "one sequence, share of the bandwidth of reading; error of all logits against one pass over the whole "
           "sequence");
  return compare_serving(b, s);
}

/* Operations of a forward pass over `n` tokens, `rows` of which go through the head. */
static double forward_flops(const ch_transformer *net, double experts, double n, double rows) {
  double flops, bytes, head = 2.0 * net->config.d_model * net->config.vocab_size;
  weights_met(net, experts, &flops, &bytes);
  return n * (flops - head + 4.0 * net->config.layers * net->width * (n + 1) / 2) + rows * head;
}

static int measure_training(ch_bench *b, serving *s, ch_bench_result *r) {
  ch_bench as_training = *b;
  as_training.result = r;
  CH_TRY(choir_model_set_routing(s->model, NULL));
  CH_TRY(ch_model_plan(s->model, 1, s->tokens, 0));
  ch_transformer_clear_stats(&s->model->net);
  ch_bench_time(&as_training, training_forward, s);
  double experts = experts_per_token(&s->model->net);
  ch_bench_rates(&as_training, forward_flops(&s->model->net, experts, s->tokens, s->tokens), 0);
  return CHOIR_OK;
}

static int measure_prompt(ch_bench *b, serving *s) {
  ch_bench_result *r = b->result, training = {0};
  CH_TRY(set_up_serving(b, s));
  ch_bench_time(b, process_prompt, s);
  double experts = experts_per_token(&s->session->net);
  ch_bench_rates(b, forward_flops(&s->session->net, experts, s->tokens, 1), 0);
  CH_TRY(compare_serving(b, s));
  CH_TRY(measure_training(b, s, &training));
  r->tokens = s->tokens;
  ch_bench_figure(b, "tokens/s", s->tokens / r->seconds);
  if (s->session->net.moe_layers) ch_bench_figure(b, "experts a token", experts);
  ch_bench_figure(b, "GFLOP/s of training's forward", training.gflops);
  ch_bench_figure(b, "prompt over training", r->gflops / training.gflops);
  snprintf(r->note, sizeof r->note,
           "logits after the last token only, training's after all; error of these logits against a pass without "
           "session");
  return CHOIR_OK;
}

static int run_serving(ch_bench *b, serving *s, int (*measure)(ch_bench *b, serving *s)) {
  int code = measure(b, s);
  choir_session_free(s->session);
  choir_model_free(s->model);
  return code;
}

int ch_bench_decode(ch_bench *b) {
  serving s = {.prompt = (int)b->size[0], .tokens = (int)b->size[1], .rows = (int)b->size[1]};
  return run_serving(b, &s, measure_decode);
}

int ch_bench_prompt(ch_bench *b) {
  return run_serving(b, &(serving){.tokens = (int)b->size[0], .rows = 1}, measure_prompt);
}
