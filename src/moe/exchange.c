#include "moe/exchange.h"

void ch_exchange_dispatch(ch_exec *x, const ch_record *r, int d, const real CH_DEV *tokens, real CH_DEV *rows) {
  x->ops->gather(x, &(ch_gather_args){.record = r, .d = d, .x = tokens, .y = rows});
}

void ch_exchange_combine(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows, real CH_DEV *tokens,
                         int accumulate) {
  x->ops->combine(x,
                  &(ch_combine_args){.record = r, .d = d, .gated = 1, .out_acc = accumulate, .y = rows, .out = tokens});
}

void ch_exchange_combine_backward(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows,
                                  const real CH_DEV *dtokens, real CH_DEV *drows, real CH_DEV *dgate) {
  x->ops->combine_backward(
      x, &(ch_combine_args){.record = r, .d = d, .gated = 1, .y = rows, .dout = dtokens, .dy = drows, .dgate = dgate});
}

void ch_exchange_return(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows, real CH_DEV *tokens) {
  x->ops->combine(x, &(ch_combine_args){.record = r, .d = d, .y = rows, .out = tokens});
}
