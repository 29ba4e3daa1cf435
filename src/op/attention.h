/* Arguments of the ops of attention; op.h has the rules. */
#ifndef CH_OP_ATTENTION_H
#define CH_OP_ATTENTION_H

#include <math.h>

#include "op/exec.h"

/* Attention, with an optional learned relative position bias. Position i attends to j <= i or, if bidirectional, to
 * every j:
 *   P[i,j] = softmax_j(scale * q_i.k_j + rel_bias[bucket(i-j), head]),  out_i = sum_j P[i,j] v_j.
 * q, out and their gradients are [B,T,H,dh] with row stride `ld` (0: H*dh) between positions; k, v and theirs are
 * [B,T,kv_heads,dh] with `kv_ld` (0: kv_heads*dh). Each group of H/kv_heads consecutive heads shares one head of keys
 * and values, whose gradients are sums over the group in ascending order (Ainslie et al. 2023). Works in row blocks: no
 * T x T matrix in main memory; backward recomputes P from lse. */
typedef struct {
  int B, T, H, dh;
  int kv_heads; /* 0: H */
  int64_t ld, kv_ld;
  int bidirectional;
  const int *length; /* [B] host, bidirectional only: length of each sequence, at least 1. Later positions are padding,
                        where out, dq, dk and dv are 0. NULL: all T */
  real scale;
  const real CH_DEV *q, *k, *v;
  const real CH_DEV *rel_bias; /* [buckets,H], or NULL: no bias */
  int buckets, max_distance;
  real CH_DEV *out;
  real CH_DEV *lse; /* [B,H,T] log of the softmax's denominator, saved for backward */
  const real CH_DEV *dout;
  real CH_DEV *dq, *dk, *dv; /* = */
  real CH_DEV *drel_bias;    /* [buckets,H] += ; only with rel_bias */
} ch_attention_args;

static inline int ch_kv_heads(int H, int kv_heads) { return kv_heads ? kv_heads : H; }
static inline int64_t ch_attention_ld(const ch_attention_args *a) { return a->ld ? a->ld : (int64_t)a->H * a->dh; }
static inline int64_t ch_attention_kv_ld(const ch_attention_args *a) {
  return a->kv_ld ? a->kv_ld : (int64_t)ch_kv_heads(a->H, a->kv_heads) * a->dh;
}

/* T5's unidirectional bucket of a distance i-j >= 0: exact below buckets/2, then logarithmic up to max_distance. */
static inline int ch_attention_bucket(int distance, int buckets, int max_distance) {
  int exact = buckets / 2;
  if (distance < exact) return distance;
  if (exact < 1 || max_distance <= exact) return buckets - 1;
  double share = log((double)distance / exact) / log((double)max_distance / exact);
  double bucket = exact + share * (buckets - exact);
  return bucket < buckets - 1 ? (int)bucket : buckets - 1;
}

/* The bucket of every distance below `count`. Distances beyond both max_distance and buckets share the last bucket. */
static inline void ch_attention_buckets(int count, int buckets, int max_distance, int *bucket) {
  int far = max_distance > buckets ? max_distance : buckets;
  for (int distance = 0; distance < count; distance++)
    bucket[distance] = ch_attention_bucket(distance < far ? distance : far, buckets, max_distance);
}

/* Distances i-j range from -ch_attention_ahead(a) to T-1; ch_attention_distances is their number. */
static inline int ch_attention_ahead(const ch_attention_args *a) { return a->bidirectional ? a->T - 1 : 0; }
static inline int ch_attention_distances(const ch_attention_args *a) { return a->T + ch_attention_ahead(a); }

/* The bucket of every distance: [ch_attention_distances(a)]. If attention is bidirectional, the first half of the
 * buckets is for keys at or before the position, the second for later keys, as in T5's encoder. */
static inline void ch_attention_all_buckets(const ch_attention_args *a, int *bucket) {
  int ahead = ch_attention_ahead(a), side = a->bidirectional ? a->buckets / 2 : a->buckets;
  ch_attention_buckets(a->T, side, a->max_distance, bucket + ahead);
  for (int distance = 1; distance <= ahead; distance++) bucket[ahead - distance] = side + bucket[ahead + distance];
}

/* The length of sequence b, and the number of keys that its position i attends to. */
static inline int ch_attention_length(const ch_attention_args *a, int64_t b) { return a->length ? a->length[b] : a->T; }
static inline int ch_attention_seen(const ch_attention_args *a, int64_t b, int i) {
  return a->bidirectional ? ch_attention_length(a, b) : i + 1;
}

/* Attention of new positions to cached keys and values, for inference; no backward. Sequence b's new positions are rows
 * begin[b] .. begin[b+1]-1 (none where these are equal); they follow the past[b] positions of its cache, to which their
 * keys and values are added first. The formula is that of ch_attention_args. A row's result does not depend on the
 * other rows, bit for bit. */
enum { CH_BIAS_PAD = 16 };
typedef struct {
  int B, H, dh;
  int kv_heads;     /* 0: H */
  int positions;    /* capacity of a cache per sequence: past[b] + new positions <= positions */
  int max_rows;     /* max new positions of all sequences together, for planning memory */
  const int *begin; /* [B+1] host */
  const int *past;  /* [B] host */
  real scale;
  const real CH_DEV *q, *k, *v; /* [rows,H*dh], [rows,kv_heads*dh] */
  real CH_DEV *keys, *values;   /* [B,kv_heads,positions,dh] */
  const real CH_DEV *bias;      /* [H,positions + CH_BIAS_PAD] as op attention_bias makes it, or NULL: none */
  real CH_DEV *out;             /* [rows,H*dh] */
} ch_attention_cached_args;

/* rel_bias [buckets,H] expanded by head and descending distance, in the order of the keys: bias[head * (positions +
 * CH_BIAS_PAD) + positions - 1 - distance]. The padding, which vector loads may read, is set to 0. */
typedef struct {
  int H, buckets, max_distance, positions;
  const real CH_DEV *rel_bias;
  real CH_DEV *bias;
} ch_attention_bias_args;

/* Rotary position embedding (Su et al. 2021), with the pairing of GPT-NeoX: the first `rotated` of a head's dh columns
 * form pairs (c, c + rotated/2). At position p a pair is rotated in place by the angle p theta^(-2c/rotated). So the
 * product of a query and a key depends only on their distance. */
typedef struct {
  int64_t n;
  int heads, dh, rotated;
  int back;                       /* 1: inverse rotation, for gradients in backward */
  int T;                          /* row t is at position t % T, if `position` is NULL */
  const int32_t CH_DEV *position; /* [n] positions of rows, or NULL */
  const real CH_DEV *rope_table;  /* [positions,rotated] output of op rope_table */
  real CH_DEV *x;                 /* [n,heads,dh] */
} ch_rope_args;

/* rope_table [positions,rotated]: per position the cosines of rotated/2 angles, then their sines. */
typedef struct {
  int positions, rotated;
  double theta;
  real CH_DEV *rope_table;
} ch_rope_table_args;

#endif
