/* Every expert's best rows, whatever else: by the op `select`. */
#include "moe/assign/solver.h"

void ch_assign_top(ch_exec *x, ch_pool *p, const real *value, real *cutoff) {
  size_t mark = ch_arena_mark(&x->scratch);
  int *begin = CH_NEW_HOST(&x->scratch, int, p->e + 1), *token = CH_NEW_HOST(&x->scratch, int, (int64_t)p->e * p->rows);
  ch_record r = {
      .tokens = p->rows, .experts = p->e, .expert_begin = CH_AS_DEV(int, begin), .slot_token = CH_AS_DEV(int, token)};
  x->ops->select(x, &(ch_select_args){.pools = 1,
                                      .pool_begin = (int[]){0, p->rows},
                                      .k = &p->k,
                                      .score = CH_AS_DEV(const real, value),
                                      .record = &r,
                                      .cutoff = CH_AS_DEV(real, cutoff)});
  if (!ch_counting(x))
    for (int i = 0; i < p->e; i++)
      for (int s = begin[i]; s < begin[i + 1]; s++) p->taken[(int64_t)i * p->rows + token[s]] = 1;
  ch_arena_release(&x->scratch, mark);
}

void ch_assign_uncapped(ch_exec *x, ch_pool *p) {
  size_t mark = ch_arena_mark(&x->scratch);
  real *cutoff = CH_NEW_HOST(&x->scratch, real, p->e);
  ch_assign_top(x, p, p->score, cutoff);
  if (!ch_counting(x))
    for (int i = 0; i < p->e; i++) p->beta[i] = (double)cutoff[i];
  p->expert_before = p->token_before = 0;
  p->iterations = 0;
  ch_arena_release(&x->scratch, mark);
}
