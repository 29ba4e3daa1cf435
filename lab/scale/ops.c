#include "ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "network.h"
#include "routes.h"

static const ch_cluster *rates; /* NULL: nothing takes time */

static void spend(const ch_exec *x, ch_flops_part part, double flops, double elements) {
  if (!rates || ch_counting(x)) return;
  double peak = x->compute == CH_COMPUTE_BF16 && part != CH_FLOPS_ROUTER ? rates->bf16 : rates->fp32;
  double arithmetic = flops / (peak * rates->share[part]);
  double memory = elements * (double)sizeof(real) / rates->memory_bandwidth;
  scale_network_compute(x->comm, arithmetic > memory ? arithmetic : memory);
}

/* An op that reads and writes so many elements and computes nothing to speak of. */
static void move(const ch_exec *x, double elements) { spend(x, CH_FLOPS_DENSE, 0, elements); }

#define OP(name, args) static void op_##name(ch_exec *x, const args *a)

/* ---- products ---- */

OP(gemm, ch_gemm_args) {
  for (; a; a = a->second) {
    double m = (double)a->m, n = (double)a->n, k = (double)a->k, c = m * n * (a->accumulate ? 2 : 1);
    spend(x, a->exact ? CH_FLOPS_ROUTER : CH_FLOPS_DENSE, 2 * m * n * k, m * k + k * n + c);
  }
}

OP(expert_gemm, ch_expert_gemm_args) {
  if (ch_counting(x)) return;
  double rows = CH_AS_HOST(const int, a->begin)[a->experts], n = (double)a->n, k = (double)a->k;
  const ch_activate_args *then = a->activate; /* arrays of [rows,n] more: y, and in backward x, of a gate both others */
  int more = !then ? 0 : (then->dx || then->dx16 ? 2 : 1) * (ch_gated(then->activation) ? 2 : 1);
  spend(x, CH_FLOPS_EXPERTS, 2 * rows * n * k,
        a->experts * n * k * (a->accumulate ? 2 : 1) + rows * (n + k) + more * rows * n);
}

/* A position sees half of the sequence. Forward has two products. */
static void attend(const ch_exec *x, const ch_attention_args *a, double products, double arrays) {
  double pairs = (double)a->B * a->H * a->T * (a->T + 1) / 2;
  double heads = (a->H + ch_kv_heads(a->H, a->kv_heads)) / 2.0; /* half of the arrays are those of keys and values */
  spend(x, CH_FLOPS_ATTENTION, products * 2 * pairs * a->dh, arrays * a->B * (double)a->T * heads * a->dh);
}

OP(attention, ch_attention_args) { attend(x, a, 2, 4); }
OP(attention_backward, ch_attention_args) { attend(x, a, 4, 8); }

OP(rope, ch_rope_args) { move(x, 2 * (double)a->n * a->heads * a->dh); }
OP(rope_table, ch_rope_table_args) { move(x, (double)a->positions * a->rotated); }

OP(head, ch_head_args) {
  double n = (double)a->n, d = a->d, V = a->V, passes = a->dx ? 3 : 1;
  if (ch_counting(x)) return;
  spend(x, CH_FLOPS_HEAD, passes * 2 * n * d * V, passes * (d * V + n * V));
  *CH_AS_HOST(double, a->loss_sum) = 0;
}

/* ---- passes over arrays ---- */

static double slots_of(const ch_exec *x, const ch_record *r) {
  return ch_counting(x) ? 0 : CH_AS_HOST(const int, r->expert_begin)[r->experts];
}

static double rows_of(const ch_exec *x, const int CH_DEV *rows, int64_t count) {
  return (double)count * (rows && !ch_counting(x) ? *CH_AS_HOST(const int, rows) : 1);
}

OP(gather, ch_gather_args) { move(x, 2 * slots_of(x, a->record) * a->d); }
OP(combine, ch_combine_args) {
  move(x, slots_of(x, a->record) * a->d + (a->out_acc ? 2.0 : 1.0) * a->record->tokens * a->d);
}
OP(combine_backward, ch_combine_args) { move(x, 3 * slots_of(x, a->record) * a->d); }
OP(softmax, ch_softmax_args) { move(x, 2 * (double)a->n * a->m); }
OP(softmax_backward, ch_softmax_args) { move(x, 3 * (double)a->n * a->m); }
OP(sigmoid, ch_sigmoid_args) { move(x, 2 * (double)a->count); }
OP(sigmoid_backward, ch_sigmoid_args) { move(x, 3 * (double)a->count); }
OP(activate, ch_activate_args) { move(x, (ch_gated(a->activation) ? 3 : 2) * rows_of(x, a->rows, a->count)); }
OP(activate_backward, ch_activate_args) { move(x, (ch_gated(a->activation) ? 5 : 3) * rows_of(x, a->rows, a->count)); }
OP(rmsnorm, ch_rmsnorm_args) { move(x, 2 * (double)a->n * a->d); }
OP(rmsnorm_backward, ch_rmsnorm_args) { move(x, 4 * (double)a->n * a->d); }
OP(embedding, ch_embedding_args) { move(x, 2 * (double)a->n * a->d); }
OP(embedding_backward, ch_embedding_args) { move(x, 3 * (double)a->n * a->d); }
OP(copy, ch_copy_args) { move(x, (a->x ? a->accumulate ? 3.0 : 2.0 : 1.0) * (double)a->count); }
OP(dropout, ch_dropout_args) { move(x, 2 * (double)a->count); }
OP(multiply, ch_multiply_args) { move(x, 3 * (double)a->count); }
OP(round_bf16, ch_round_args) { move(x, 1.5 * rows_of(x, a->rows, a->count)); }
OP(widen_bf16, ch_widen_args) { move(x, 1.5 * rows_of(x, a->rows, a->count)); }

OP(sumsq, ch_sumsq_args) {
  move(x, (double)(a->arrays * a->count));
  for (int64_t i = 0; i < a->arrays && !ch_counting(x); i++) CH_AS_HOST(double, a->sum)[i * a->step] = 0;
}

/* The gradient is read three times more and the weight twice, and written; of these MEASURE reads three, APPLY the
 * rest. */
OP(adafactor, ch_adafactor_args) {
  move(x, (a->stage == CH_ADAFACTOR_WHOLE ? 6 : 3) * (double)a->batch * (double)a->rows * (double)a->cols);
}
OP(adamw, ch_adamw_args) { move(x, 7 * (double)a->count); }

/* ---- routing: its arrays of scores ---- */

static ch_ops made_up; /* what routes.c does */

OP(select, ch_select_args) {
  move(x, 2 * (double)a->record->tokens * a->record->experts);
  made_up.select(x, a);
}

OP(best, ch_best_args) { move(x, (double)a->n * a->e); }
OP(balance, ch_balance_args) { move(x, (double)a->n * a->e); }
OP(balance_backward, ch_balance_args) { move(x, 2 * (double)a->n * a->e); }
OP(gate, ch_gate_args) { move(x, 2 * slots_of(x, a->record)); }
OP(gate_backward, ch_gate_args) {
  move(x, (double)a->record->tokens * a->record->experts + 2 * slots_of(x, a->record));
}

OP(loads, ch_loads_args) { (void)x, (void)a; }
OP(mean_cutoff, ch_mean_cutoff_args) { (void)x, (void)a; }
OP(running_mean, ch_running_mean_args) { (void)x, (void)a; }

/* ---- the backend ---- */

#define MISSING(name, args)                                                          \
  static void no_##name(ch_exec *x, const args *a) {                                 \
    (void)a;                                                                         \
    if (ch_counting(x)) return;                                                      \
    fprintf(stderr, "backend 'clock': nobody said how long op '%s' takes\n", #name); \
    exit(1);                                                                         \
  }
CH_OPS(MISSING)

/* An elementwise op without a time of its own reads two arrays and writes one. */
#define ELEMENTS(name, args) \
  static void elements_##name(ch_exec *x, const args *a) { move(x, 3 * (double)a->count); }
#define ROWS_OF_ELEMENTS(name, args) \
  static void elements_##name(ch_exec *x, const args *a) { move(x, 3 * rows_of(x, a->rows, a->count)); }
CH_ELEMENT_OPS(ELEMENTS)
CH_ROW_ELEMENT_OPS(ROWS_OF_ELEMENTS)

#define TIMED(op)                                                                                                     \
  op(gemm) op(expert_gemm) op(attention) op(attention_backward) op(rope) op(rope_table) op(head) op(gather)           \
      op(combine) op(combine_backward) op(softmax) op(softmax_backward) op(sigmoid) op(sigmoid_backward) op(activate) \
          op(activate_backward) op(rmsnorm) op(rmsnorm_backward) op(embedding) op(embedding_backward) op(copy)        \
              op(dropout) op(multiply) op(round_bf16) op(widen_bf16) op(sumsq) op(adafactor) op(adamw) op(select)     \
                  op(best) op(balance) op(balance_backward) op(gate) op(gate_backward) op(loads) op(mean_cutoff)      \
                      op(running_mean)

static void fill(ch_ops *ops, ch_compute compute) {
  (void)compute;
#define TAKE(name, args) ops->name = no_##name;
  CH_OPS(TAKE)
#define TAKE_ELEMENTS(name, args) ops->name = elements_##name;
  CH_ELEMENT_OPS(TAKE_ELEMENTS)
  CH_ROW_ELEMENT_OPS(TAKE_ELEMENTS)
  scale_fill_routes(ops);
  made_up = *ops;
#define PUT(name) ops->name = op_##name;
  TIMED(PUT)
}

static int supports(ch_compute compute, int emulate) { return (void)compute, (void)emulate, CHOIR_OK; }

/* Addresses. What stands outside of activations and scratch is neither read nor written, so ranks may share it. */
static void CH_DEV *alloc(const char *name, size_t bytes) {
  if (strcmp(name, "activations") && strcmp(name, "scratch"))
    return CH_AS_DEV(void, scale_network_nowhere((int64_t)bytes));
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, bytes, MADV_NOHUGEPAGE); /* where a few bytes are written, a small page */
  return CH_AS_DEV(void, p);
}

static void keep(void CH_DEV *p, size_t bytes) { (void)p, (void)bytes; }
static size_t unknown(void) { return 0; }

/* The host's memory with three functions replaced. */
static ch_memory memory;

const ch_backend *scale_clock(const ch_cluster *cluster) {
  static const ch_backend backend = {.name = "clock", .memory = &memory, .supports = supports, .fill = fill};
  rates = cluster;
  memory = ch_memory_host;
  memory.alloc = alloc;
  memory.free = keep;
  memory.available = unknown;
  return &backend;
}
