/* Bench cases of matrix products: gemm, attention, the tied head. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "bench/cases.h"

static void run_gemm(ch_exec *x, const void *args) { x->ops->gemm(x, args); }

static int make_gemm(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[3];
  CH_TRY(ch_bench_sizes(b, 3, s));
  int64_t m = small ? ch_bench_least(s[0], 48) : s[0], n = s[1], k = s[2];
  real CH_DEV *a, *weight, *c;
  CH_TRY(ch_bench_array(b, m * k, 1, &a));
  CH_TRY(ch_bench_array(b, k * n, 1 / sqrt((double)k), &weight));
  CH_TRY(ch_bench_array(b, m * n, 0, &c));
  ch_gemm_args *args = NULL;
  CH_TRY(ch_bench_host(b, sizeof *args, &args));
  *args = (ch_gemm_args){
      .m = m, .n = n, .k = k, .trans_a = b->value[3] != 0, .trans_b = b->value[4] != 0, .a = a, .b = weight, .c = c};
  *w = (ch_bench_work){.run = run_gemm,
                       .args = args,
                       .out = {c},
                       .out_count = {m * n},
                       .flops = 2.0 * (double)m * (double)n * (double)k};
  if (small) snprintf(b->result->note, sizeof b->result->note, "error at m=%d", (int)m);
  return CHOIR_OK;
}

static void run_attention(ch_exec *x, const void *args) {
  x->ops->attention(x, args);
  x->ops->attention_backward(x, args);
}

static int make_attention(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[4];
  CH_TRY(ch_bench_sizes(b, 4, s));
  enum { BUCKETS = 32 };
  int64_t B = small ? 1 : s[0], T = s[1], H = small ? ch_bench_least(s[2], 2) : s[2], dh = s[3], count = B * T * H * dh;
  real CH_DEV *in[5], *out[6];
  for (int i = 0; i < 4; i++) CH_TRY(ch_bench_array(b, count, 1, &in[i]));
  CH_TRY(ch_bench_array(b, BUCKETS * H, 0.1, &in[4]));
  for (int i = 0; i < 4; i++) CH_TRY(ch_bench_array(b, count, 0, &out[i]));
  CH_TRY(ch_bench_array(b, BUCKETS * H, 0, &out[4]));
  CH_TRY(ch_bench_array(b, B * H * T, 0, &out[5]));
  ch_attention_args *args = NULL;
  CH_TRY(ch_bench_host(b, sizeof *args, &args));
  *args = (ch_attention_args){.B = (int)B,
                              .T = (int)T,
                              .H = (int)H,
                              .dh = (int)dh,
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
  /* two products forward and four backward over the causal half; doing P again is not counted */
  *w = (ch_bench_work){.run = run_attention,
                       .args = args,
                       .out = {out[0], out[1], out[2], out[3], out[4], out[5]},
                       .out_count = {count, count, count, count, BUCKETS * H, B * H * T},
                       .flops = 6.0 * (double)count * (double)T};
  if (small) snprintf(b->result->note, sizeof b->result->note, "forward and backward; error at B=1 H=%d", (int)H);
  return CHOIR_OK;
}

static void run_head(ch_exec *x, const void *args) { x->ops->head(x, args); }

static int make_head(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[3];
  CH_TRY(ch_bench_sizes(b, 3, s));
  int64_t n = small ? ch_bench_least(s[0], 64) : s[0], d = s[1], V = small ? ch_bench_least(s[2], 2000) : s[2];
  real CH_DEV *x, *weight, *dx, *dw;
  int32_t *target = NULL;
  const void CH_DEV *targets = NULL;
  real CH_DEV *loss;
  CH_TRY(ch_bench_array(b, n * d, 1, &x));
  CH_TRY(ch_bench_array(b, V * d, 1, &weight));
  CH_TRY(ch_bench_array(b, n * d, 0, &dx));
  CH_TRY(ch_bench_array(b, V * d, 0, &dw));
  CH_TRY(ch_bench_array(b, (int64_t)(sizeof(double) / sizeof(real)), 0, &loss));
  CH_TRY(ch_bench_host(b, (size_t)n * sizeof *target, &target));
  ch_head_args *args = NULL;
  CH_TRY(ch_bench_host(b, sizeof *args, &args));
  for (int64_t t = 0; t < n; t++) target[t] = (int32_t)(t * 7919 % V);
  CH_TRY(ch_bench_put(b, target, (size_t)n * sizeof *target, &targets));
  *args = (ch_head_args){.n = n,
                         .d = (int)d,
                         .V = (int)V,
                         .scale = (real)(1 / sqrt((double)d)),
                         .x = x,
                         .w = weight,
                         .target = targets,
                         .loss_sum = (double CH_DEV *)loss,
                         .weight = 1 / (real)n,
                         .dx = dx,
                         .dw = dw};
  *w = (ch_bench_work){.run = run_head,
                       .args = args,
                       .out = {dx, dw},
                       .out_count = {n * d, V * d},
                       .flops = 6.0 * (double)n * (double)d * (double)V};
  if (small)
    snprintf(b->result->note, sizeof b->result->note, "loss and gradients; error at n=%d V=%d", (int)n, (int)V);
  return CHOIR_OK;
}

const ch_bench_case ch_bench_product_cases[] = {
    {.name = "gemm", .key = {{"m", -1}, {"n", -1}, {"k", -1}, {"ta", 0}, {"tb", 0}}, .make = make_gemm},
    {.name = "attention", .key = {{"B", 8}, {"T", 512}, {"H", 12}, {"dh", 64}}, .make = make_attention},
    {.name = "head", .key = {{"n", 4096}, {"d", 768}, {"V", 32000}}, .make = make_head},
    {0},
};
