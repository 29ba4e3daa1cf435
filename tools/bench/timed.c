#include "bench/timed.h"

#include <string.h>

#include "base/machine.h"

#define TIMED(op, args_type, part)                         \
  static void timed_##op(ch_exec *x, const args_type *a) { \
    ch_timed *t = (ch_timed *)x;                           \
    double begin = ch_machine_seconds();                   \
    t->inner->op(x, a);                                    \
    x->memory->synchronise();                              \
    t->seconds[part] += ch_machine_seconds() - begin;      \
  }
TIMED(expert_gemm, ch_expert_gemm_args, CH_PART_PRODUCTS)
TIMED(gemm, ch_gemm_args, CH_PART_ROUTER)
TIMED(gather, ch_gather_args, CH_PART_DISPATCH)
TIMED(combine, ch_combine_args, CH_PART_COMBINE)
TIMED(combine_backward, ch_combine_args, CH_PART_COMBINE)

void ch_timed_start(ch_timed *t) {
  t->inner = t->x.ops;
  t->wrapped = *t->inner;
  t->wrapped.expert_gemm = timed_expert_gemm;
  t->wrapped.gemm = timed_gemm;
  t->wrapped.gather = timed_gather;
  t->wrapped.combine = timed_combine;
  t->wrapped.combine_backward = timed_combine_backward;
  t->x.ops = &t->wrapped;
}

void ch_timed_stop(ch_timed *t) { t->x.ops = t->inner; }

void ch_timed_reset(ch_timed *t) {
  memset(t->seconds, 0, sizeof t->seconds);
  t->begin = ch_machine_seconds();
}

void ch_timed_report(const ch_timed *t, ch_bench_result *result) {
  static const char *const names[CH_PARTS] = {"expert products, GELU", "router products", "dispatch", "combine",
                                              "routing"};
  double total = ch_machine_seconds() - t->begin, in_ops = 0;
  int runs = result->repetitions + 1; /* the first one was not timed as a repetition */
  for (int i = 0; i < CH_PARTS; i++) in_ops += t->seconds[i];
  for (int i = 0; i < CH_PARTS; i++) result->part[i] = (ch_bench_part){names[i], t->seconds[i] / runs};
  result->part[CH_PART_ROUTING].seconds += (total - in_ops) / runs;
  result->parts = CH_PARTS;
  result->beside_products = 1 - (t->seconds[CH_PART_PRODUCTS] + t->seconds[CH_PART_ROUTER]) / total;
}
