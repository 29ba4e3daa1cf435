/* Bench cases that memory limits: GELU, RMSNorm, selection, dispatch and combine, the optimizer. */
#include <stdio.h>

#include "base/error.h"
#include "bench/cases.h"

static void note_error_at(ch_bench *b, const char *what, const char *key, int64_t value) {
  snprintf(b->result->note, sizeof b->result->note, "%s; error at %s=%lld", what, key, (long long)value);
}

static void run_gelu(ch_exec *x, const void *args) {
  x->ops->activate(x, args);
  x->ops->activate_backward(x, args);
}

static int make_gelu(ch_bench *b, int small, ch_bench_work *w) {
  int64_t count;
  CH_TRY(ch_bench_sizes(b, 1, &count));
  if (small) count = ch_bench_least(count, 1 << 20);
  real CH_DEV *x, *y, *dy, *dx;
  CH_TRY(ch_bench_array(b, count, 1, &x));
  CH_TRY(ch_bench_array(b, count, 0, &y));
  CH_TRY(ch_bench_array(b, count, 1, &dy));
  CH_TRY(ch_bench_array(b, count, 0, &dx));
  ch_activate_args *args = NULL;
  CH_TRY(ch_bench_host(b, sizeof *args, &args));
  *args = (ch_activate_args){.count = count, .x = x, .y = y, .dy = dy, .dx = dx};
  *w = (ch_bench_work){.run = run_gelu,
                       .args = args,
                       .out = {y, dx},
                       .out_count = {count, count},
                       .bytes = 5.0 * sizeof(real) * (double)count};
  if (small) note_error_at(b, "forward and backward", "count", count);
  return CHOIR_OK;
}

static void run_rmsnorm(ch_exec *x, const void *args) {
  x->ops->rmsnorm(x, args);
  x->ops->rmsnorm_backward(x, args);
}

static int make_rmsnorm(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[2];
  CH_TRY(ch_bench_sizes(b, 2, s));
  int64_t n = small ? ch_bench_least(s[0], 512) : s[0], d = s[1];
  real CH_DEV *x, *weight, *y, *rstd, *dy, *dx, *dw;
  CH_TRY(ch_bench_array(b, n * d, 1, &x));
  CH_TRY(ch_bench_array(b, d, 1, &weight));
  CH_TRY(ch_bench_array(b, n * d, 1, &dy));
  CH_TRY(ch_bench_array(b, n * d, 0, &y));
  CH_TRY(ch_bench_array(b, n * d, 0, &dx));
  CH_TRY(ch_bench_array(b, n, 0, &rstd));
  CH_TRY(ch_bench_array(b, d, 0, &dw));
  ch_rmsnorm_args *args = NULL;
  CH_TRY(ch_bench_host(b, sizeof *args, &args));
  *args = (ch_rmsnorm_args){
      .n = n, .d = (int)d, .eps = (real)1e-6, .x = x, .w = weight, .y = y, .rstd = rstd, .dy = dy, .dx = dx, .dw = dw};
  *w = (ch_bench_work){.run = run_rmsnorm,
                       .args = args,
                       .out = {y, dx, dw},
                       .out_count = {n * d, n * d, d},
                       .bytes = 5.0 * sizeof(real) * (double)(n * d)};
  if (small) note_error_at(b, "forward and backward", "n", n);
  return CHOIR_OK;
}

/* A record of e experts with k tokens each. */
static int make_record(ch_bench *b, int64_t n, int64_t e, int64_t k, ch_record *r) {
  int64_t slots = e * k;
  if (slots > INT32_MAX) return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': too many slots", b->result->problem);
  if (k > n) return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': k is larger than n", b->result->problem);
  *r = (ch_record){.tokens = (int)n, .experts = (int)e, .max_slots = (int)slots, .load = (int)k};
  CH_TRY(ch_bench_ints(b, e + 1, &r->expert_begin));
  CH_TRY(ch_bench_ints(b, slots, &r->slot_token));
  CH_TRY(ch_bench_ints(b, n + 1, &r->token_begin));
  CH_TRY(ch_bench_ints(b, slots, &r->token_slot));
  return ch_bench_array(b, slots, 1, &r->slot_gate);
}

typedef struct {
  ch_select_args args;
  ch_record record;
  int begin[2], k;
} select_case;

static void run_select(ch_exec *x, const void *args) { x->ops->select(x, args); }

static int make_select(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[3];
  CH_TRY(ch_bench_sizes(b, 3, s));
  int64_t n = small ? ch_bench_least(s[0], 8192) : s[0], e = small ? ch_bench_least(s[1], 8) : s[1],
          k = ch_bench_least(s[2], n);
  real CH_DEV *score;
  CH_TRY(ch_bench_array(b, n * e, 1, &score));
  select_case *c = NULL;
  CH_TRY(ch_bench_host(b, sizeof *c, &c));
  CH_TRY(make_record(b, n, e, k, &c->record));
  c->begin[1] = (int)n;
  c->k = (int)k;
  c->args = (ch_select_args){.pools = 1, .pool_begin = c->begin, .k = &c->k, .score = score, .record = &c->record};
  *w = (ch_bench_work){.run = run_select,
                       .args = &c->args,
                       .bytes = sizeof(real) * (double)(n * e),
                       .selection = c->record.slot_token,
                       .selection_count = e * k};
  if (small) note_error_at(b, "top k of n for each expert", "e", e);
  return CHOIR_OK;
}

typedef struct {
  ch_record record;
  ch_gather_args gather;
  ch_combine_args combine;
} gather_case;

/* Slots spread over the tokens, with another offset for every expert. */
static int spread(ch_bench *b, int64_t n, int64_t e, int64_t k, const ch_record *r) {
  int *begin = NULL, *token = NULL;
  CH_TRY(ch_bench_host(b, (size_t)(e + 1) * sizeof *begin, &begin));
  CH_TRY(ch_bench_host(b, (size_t)(e * k) * sizeof *token, &token));
  for (int64_t i = 0; i <= e; i++) begin[i] = (int)(i * k);
  for (int64_t slot = 0; slot < e * k; slot++) token[slot] = (int)((slot % k * n + slot / k * 7919 % n) / k);
  b->memory->put(r->expert_begin, begin, (size_t)(e + 1) * sizeof *begin);
  b->memory->put(r->slot_token, token, (size_t)(e * k) * sizeof *token);
  return CHOIR_OK;
}

static void run_gather(ch_exec *x, const void *args) {
  gather_case *c = (gather_case *)args;
  x->ops->index(x, &(ch_index_args){.record = &c->record});
  x->ops->gather(x, &c->gather);
  x->ops->combine(x, &c->combine);
}

static int make_gather(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[4];
  CH_TRY(ch_bench_sizes(b, 4, s));
  int64_t n = s[0], d = small ? ch_bench_least(s[1], 64) : s[1], e = s[2], k = s[3];
  real CH_DEV *x, *y, *out;
  gather_case *c = NULL;
  CH_TRY(ch_bench_host(b, sizeof *c, &c));
  CH_TRY(make_record(b, n, e, k, &c->record));
  CH_TRY(ch_bench_array(b, n * d, 1, &x));
  CH_TRY(ch_bench_array(b, e * k * d, 0, &y));
  CH_TRY(ch_bench_array(b, n * d, 0, &out));
  CH_TRY(spread(b, n, e, k, &c->record));
  c->gather = (ch_gather_args){.record = &c->record, .d = (int)d, .x = x, .y = y};
  c->combine = (ch_combine_args){.record = &c->record, .d = (int)d, .gated = 1, .y = y, .out = out};
  *w = (ch_bench_work){.run = run_gather,
                       .args = c,
                       .out = {y, out},
                       .out_count = {e * k * d, n * d},
                       .bytes = sizeof(real) * (double)((3 * e * k + n) * d)};
  if (small) note_error_at(b, "index, dispatch, combine", "d", d);
  return CHOIR_OK;
}

static void run_adafactor(ch_exec *x, const void *args) { x->ops->adafactor(x, args); }

static int make_adafactor(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[3];
  CH_TRY(ch_bench_sizes(b, 3, s));
  int64_t batch = small ? ch_bench_least(s[0], 2) : s[0], rows = s[1], cols = s[2], count = batch * rows * cols;
  real CH_DEV *weight, *g, *row, *col;
  CH_TRY(ch_bench_array(b, count, 1, &weight));
  CH_TRY(ch_bench_array(b, count, 1, &g));
  CH_TRY(ch_bench_array(b, batch * rows, 0, &row));
  CH_TRY(ch_bench_array(b, batch * cols, 0, &col));
  ch_adafactor_args *args = NULL;
  CH_TRY(ch_bench_host(b, sizeof *args, &args));
  *args = (ch_adafactor_args){.batch = batch,
                              .rows = rows,
                              .cols = cols,
                              .w = weight,
                              .g = g,
                              .row = row,
                              .col = col,
                              .rate = 1e-3,
                              .beta2 = 0.99,
                              .eps1 = 1e-30,
                              .eps2 = 1e-3,
                              .clip = 1,
                              .grad_scale = 1};
  *w = (ch_bench_work){.run = run_adafactor,
                       .args = args,
                       .out = {weight, row, col},
                       .out_count = {count, batch * rows, batch * cols},
                       .bytes = 3.0 * sizeof(real) * (double)count};
  if (small) note_error_at(b, "bytes as if w and g were read once and w written", "batch", batch);
  return CHOIR_OK;
}

const ch_bench_case ch_bench_pointwise_cases[] = {
    {.name = "gelu", .key = {{"count", 25165824}}, .make = make_gelu},
    {.name = "rmsnorm", .key = {{"n", 4096}, {"d", 768}}, .make = make_rmsnorm},
    {.name = "select", .key = {{"n", 4096}, {"e", 64}, {"k", 128}}, .make = make_select},
    {.name = "gather", .key = {{"n", 4096}, {"d", 768}, {"e", 64}, {"k", 128}}, .make = make_gather},
    {.name = "adafactor", .key = {{"batch", 16}, {"rows", 768}, {"cols", 3072}}, .make = make_adafactor},
    {0},
};
