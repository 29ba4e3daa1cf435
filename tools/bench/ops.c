/* Bench cases of single ops: matrix products, limited by arithmetic, and ops limited by memory. */
#include <math.h>

#include "base/error.h"
#include "bench/cases.h"

static void run_gemm(ch_exec *x, ch_bench_work *w) { x->ops->gemm(x, &w->gemm); }

static int make_gemm(ch_bench *b, ch_bench_work *w) {
  int64_t m = b->size[0], n = b->size[1], k = b->size[2];
  real CH_DEV *a = ch_bench_drawn(b, m * k, 1), *weight = ch_bench_drawn(b, k * n, 1 / sqrt((double)k)),
              *c = ch_bench_zeros(b, m * n);
  *w = (ch_bench_work){.run = run_gemm,
                       .gemm = {.m = m, .n = n, .k = k, .a = a, .b = weight, .c = c},
                       .out = {c},
                       .out_count = {m * n},
                       .flops = 2.0 * (double)m * (double)n * (double)k};
  w->gemm.trans_a = b->value[3] != 0;
  w->gemm.trans_b = b->value[4] != 0;
  return b->code;
}

static void run_attention(ch_exec *x, ch_bench_work *w) {
  x->ops->attention(x, &w->attention);
  x->ops->attention_backward(x, &w->attention);
}

static int make_attention(ch_bench *b, ch_bench_work *w) {
  enum { BUCKETS = 32 };
  int64_t B = b->size[0], T = b->size[1], H = b->size[2], dh = b->size[3], count = B * T * H * dh;
  real CH_DEV *in[5], *out[6];
  for (int i = 0; i < 4; i++) in[i] = ch_bench_drawn(b, count, 1);
  in[4] = ch_bench_drawn(b, BUCKETS * H, 0.1);
  for (int i = 0; i < 4; i++) out[i] = ch_bench_zeros(b, count);
  out[4] = ch_bench_zeros(b, BUCKETS * H);
  out[5] = ch_bench_zeros(b, B * H * T);
  int both_ways = b->value[4] != 0;
  /* Two products forward and four backward over the causal half, or over all; recomputing P is not counted. */
  *w = (ch_bench_work){.run = run_attention,
                       .out = {out[0], out[1], out[2], out[3], out[4], out[5]},
                       .out_count = {count, count, count, count, BUCKETS * H, B * H * T},
                       .flops = 6.0 * (1 + both_ways) * (double)count * (double)T};
  w->attention = (ch_attention_args){.B = (int)B,
                                     .T = (int)T,
                                     .H = (int)H,
                                     .dh = (int)dh,
                                     .bidirectional = both_ways,
                                     .scale = (real)(1 / sqrt((double)dh)),
                                     .q = in[0],
                                     .k = in[1],
                                     .v = in[2],
                                     .dout = in[3],
                                     .rel_bias = in[4],
                                     .buckets = BUCKETS,
                                     .max_distance = 128,
                                     .out = out[0],
                                     .dq = out[1],
                                     .dk = out[2],
                                     .dv = out[3],
                                     .drel_bias = out[4],
                                     .lse = out[5]};
  return b->code;
}

static void run_head(ch_exec *x, ch_bench_work *w) { x->ops->head(x, &w->head); }

static int make_head(ch_bench *b, ch_bench_work *w) {
  int64_t n = b->size[0], d = b->size[1], V = b->size[2];
  real CH_DEV *x = ch_bench_drawn(b, n * d, 1), *weight = ch_bench_drawn(b, V * d, 1), *dx = ch_bench_zeros(b, n * d),
              *dw = ch_bench_zeros(b, V * d), *loss = ch_bench_zeros(b, sizeof(double) / sizeof(real));
  int32_t *target = ch_bench_host(b, (size_t)n * sizeof *target);
  for (int64_t t = 0; target && t < n; t++) target[t] = (int32_t)(t * 7919 % V);
  *w = (ch_bench_work){
      .run = run_head, .out = {dx, dw}, .out_count = {n * d, V * d}, .flops = 6.0 * (double)n * (double)d * (double)V};
  w->head = (ch_head_args){.n = n,
                           .d = (int)d,
                           .V = (int)V,
                           .scale = (real)(1 / sqrt((double)d)),
                           .x = x,
                           .w = weight,
                           .target = ch_bench_put(b, target, (size_t)n * sizeof *target),
                           .loss_sum = (double CH_DEV *)loss,
                           .weight = 1 / (real)n,
                           .dx = dx,
                           .dw = dw};
  return b->code;
}

/* ---- limited by memory: bytes as if each array were read or written once ---- */

static void run_gelu(ch_exec *x, ch_bench_work *w) {
  x->ops->activate(x, &w->activate);
  x->ops->activate_backward(x, &w->activate);
}

static int make_gelu(ch_bench *b, ch_bench_work *w) {
  int64_t count = b->size[0];
  real CH_DEV *x = ch_bench_drawn(b, count, 1), *dy = ch_bench_drawn(b, count, 1), *y = ch_bench_zeros(b, count),
              *dx = ch_bench_zeros(b, count);
  *w = (ch_bench_work){.run = run_gelu,
                       .activate = {.count = count, .x = x, .y = y, .dy = dy, .dx = dx},
                       .out = {y, dx},
                       .out_count = {count, count},
                       .bytes = 5.0 * sizeof(real) * (double)count};
  return b->code;
}

static void run_rmsnorm(ch_exec *x, ch_bench_work *w) {
  x->ops->rmsnorm(x, &w->rmsnorm);
  x->ops->rmsnorm_backward(x, &w->rmsnorm);
}

static int make_rmsnorm(ch_bench *b, ch_bench_work *w) {
  int64_t n = b->size[0], d = b->size[1];
  real CH_DEV *x = ch_bench_drawn(b, n * d, 1), *weight = ch_bench_drawn(b, d, 1), *dy = ch_bench_drawn(b, n * d, 1),
              *y = ch_bench_zeros(b, n * d), *dx = ch_bench_zeros(b, n * d), *dw = ch_bench_zeros(b, d);
  *w = (ch_bench_work){.run = run_rmsnorm,
                       .rmsnorm = {.n = n, .d = (int)d, .eps = (real)1e-6, .x = x, .w = weight, .y = y, .dy = dy},
                       .out = {y, dx, dw},
                       .out_count = {n * d, n * d, d},
                       .bytes = 5.0 * sizeof(real) * (double)(n * d)};
  w->rmsnorm.rstd = ch_bench_zeros(b, n);
  w->rmsnorm.dx = dx;
  w->rmsnorm.dw = dw;
  return b->code;
}

/* A record of e experts with k tokens each. */
static int make_record(ch_bench *b, int64_t n, int64_t e, int64_t k, ch_record *r) {
  if (e * k > INT32_MAX) return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': too many slots", b->result->problem);
  if (k > n) return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': k is larger than n", b->result->problem);
  ch_bench_record(b, n, e, e * k, 1, r);
  r->load = (int)k;
  return b->code;
}

static void run_select(ch_exec *x, ch_bench_work *w) { x->ops->select(x, &w->select); }

static int make_select(ch_bench *b, ch_bench_work *w) {
  int64_t n = b->size[0], e = b->size[1], k = b->size[2] < n ? b->size[2] : n;
  *w = (ch_bench_work){
      .run = run_select, .pool_begin = {0, (int)n}, .k = (int)k, .bytes = sizeof(real) * (double)(n * e)};
  w->select = (ch_select_args){.pools = 1, .pool_begin = w->pool_begin, .k = &w->k, .record = &w->record};
  w->select.score = ch_bench_drawn(b, n * e, 1);
  CH_TRY(make_record(b, n, e, k, &w->record));
  w->selection = w->record.slot_token;
  w->selection_count = e * k;
  return CHOIR_OK;
}

/* Distributes slots over the tokens, with another offset for every expert. */
static int spread(ch_bench *b, int64_t n, int64_t e, int64_t k, const ch_record *r) {
  size_t begin_bytes = (size_t)(e + 1) * sizeof(int), token_bytes = (size_t)(e * k) * sizeof(int);
  int *begin = ch_bench_host(b, begin_bytes), *token = ch_bench_host(b, token_bytes);
  CH_TRY(b->code);
  for (int64_t i = 0; i <= e; i++) begin[i] = (int)(i * k);
  for (int64_t slot = 0; slot < e * k; slot++) token[slot] = (int)((slot % k * n + slot / k * 7919 % n) / k);
  b->memory->upload(r->expert_begin, begin, begin_bytes);
  b->memory->upload(r->slot_token, token, token_bytes);
  return CHOIR_OK;
}

static void run_gather(ch_exec *x, ch_bench_work *w) {
  x->ops->index(x, &(ch_index_args){.record = &w->record});
  x->ops->gather(x, &w->gather);
  x->ops->combine(x, &w->combine);
}

static int make_gather(ch_bench *b, ch_bench_work *w) {
  int64_t n = b->size[0], d = b->size[1], e = b->size[2], k = b->size[3];
  ch_record record;
  CH_TRY(make_record(b, n, e, k, &record));
  real CH_DEV *x = ch_bench_drawn(b, n * d, 1), *y = ch_bench_zeros(b, e * k * d), *out = ch_bench_zeros(b, n * d);
  *w = (ch_bench_work){.run = run_gather,
                       .record = record,
                       .out = {y, out},
                       .out_count = {e * k * d, n * d},
                       .bytes = sizeof(real) * (double)((3 * e * k + n) * d)};
  w->gather = (ch_gather_args){.record = &w->record, .d = (int)d, .x = x, .y = y};
  w->combine = (ch_combine_args){.record = &w->record, .d = (int)d, .gated = 1, .y = y, .out = out};
  return spread(b, n, e, k, &w->record);
}

static void run_adafactor(ch_exec *x, ch_bench_work *w) { x->ops->adafactor(x, &w->adafactor); }

static int make_adafactor(ch_bench *b, ch_bench_work *w) {
  int64_t batch = b->size[0], rows = b->size[1], cols = b->size[2], count = batch * rows * cols;
  real CH_DEV *weight = ch_bench_drawn(b, count, 1), *g = ch_bench_drawn(b, count, 1),
              *row = ch_bench_zeros(b, batch * rows), *col = ch_bench_zeros(b, batch * cols);
  *w = (ch_bench_work){.run = run_adafactor,
                       .adafactor = {.batch = batch, .rows = rows, .cols = cols, .w = weight, .g = g},
                       .out = {weight, row, col},
                       .out_count = {count, batch * rows, batch * cols},
                       .bytes = 3.0 * sizeof(real) * (double)count};
  ch_adafactor_args *a = &w->adafactor;
  a->row = row, a->col = col;
  a->learning_rate = 1e-3, a->beta2 = 0.99, a->eps1 = 1e-30, a->eps2 = 1e-3, a->clip = 1, a->grad_scale = 1;
  return b->code;
}

const ch_bench_case ch_bench_op_cases[] = {
    {.name = "gemm",
     .sizes = 3,
     .key = {{"m", -1, 48}, {"n", -1, 0}, {"k", -1, 0}, {"ta", 0, 0}, {"tb", 0, 0}},
     .make = make_gemm},
    {.name = "attention",
     .sizes = 4,
     .key = {{"B", 8, 1}, {"T", 512, 0}, {"H", 12, 2}, {"dh", 64, 0}, {"bidirectional", 0, 0}},
     .note = "forward and backward",
     .make = make_attention},
    {.name = "head",
     .sizes = 3,
     .key = {{"n", 4096, 64}, {"d", 768, 0}, {"V", 32000, 2000}},
     .note = "loss and gradients",
     .make = make_head},
    {.name = "gelu",
     .sizes = 1,
     .key = {{"count", 25165824, 1 << 20}},
     .note = "forward and backward",
     .make = make_gelu},
    {.name = "rmsnorm",
     .sizes = 2,
     .key = {{"n", 4096, 512}, {"d", 768, 0}},
     .note = "forward and backward",
     .make = make_rmsnorm},
    {.name = "select",
     .sizes = 3,
     .key = {{"n", 4096, 8192}, {"e", 64, 8}, {"k", 128, 0}},
     .note = "top k of n for each expert",
     .make = make_select},
    {.name = "gather",
     .sizes = 4,
     .key = {{"n", 4096, 0}, {"d", 768, 64}, {"e", 64, 0}, {"k", 128, 0}},
     .note = "index, dispatch, combine",
     .make = make_gather},
    {.name = "adafactor",
     .sizes = 3,
     .key = {{"batch", 16, 2}, {"rows", 768, 0}, {"cols", 3072, 0}},
     .note = "bytes as if w and g were read once and w written",
     .make = make_adafactor},
    {0},
};
