#include "moe/dispatch.h"

void ch_dispatch_alloc(ch_exec *x, ch_arena *a, int n, int e, int d, int max_slots, int most, ch_dispatch *ex) {
  *ex =
      (ch_dispatch){.with = x->comm->size == 1 ? &ch_dispatch_local : &ch_dispatch_all_to_all, .n = n, .e = e, .d = d};
  ex->with->plan(x, a, max_slots, most, ex);
}

void ch_dispatch_split(ch_exec *x, const ch_record *all, int begin, ch_dispatch *ex) {
  ex->all = *all;
  ex->begin = begin;
  ex->with->split(x, ex);
}
