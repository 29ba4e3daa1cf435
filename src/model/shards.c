/* A pass by shards (op/shards.h): views of its sequences and of the tape behind them. */
#include "model/shards.h"

int ch_pass_shards(const ch_pass *p) { return p->shards > 1 ? p->shards : 1; }

ch_pass ch_shard_of_pass(const ch_pass *p) {
  ch_pass shard = *p;
  shard.B = p->B / ch_pass_shards(p);
  return shard;
}

ch_block ch_shard_of_block(const ch_transformer *m, const ch_block *b, const ch_pass *shard, int number) {
  int64_t row = (int64_t)number * shard->B * shard->T, d = m->config.d_model, width = m->width, kv_width = m->kv_width;
  ch_block s = *b;
  s.x += row * d;
  s.rstd1 += row;
  s.qh += row * width;
  s.kh += row * kv_width;
  s.vh += row * kv_width;
  s.att += row * width;
  s.lse += row * m->config.heads;
  return s;
}

ch_sum ch_sum_of(const ch_param *w) {
  return (ch_sum){.y = w->g, .count = w->count, .adds = !w->product, .dealt = w->owner >= 0, .owner = w->owner};
}
