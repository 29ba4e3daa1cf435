/* Attention on a device, by matrix products, on tensor cores with compute=bf16. Processes blocks of rows of several
 * heads at a time, so that their scores stay in the device's L2 cache; a block of causal attention has no columns
 * beyond its last row. */
#include "device/device.h"

/* Rows per block; min number of scores per block of heads: with fewer, a kernel would take less time than the gap to
 * the next kernel. */
enum { BLOCK_ROWS = 256, MIN_SCORES = 1 << 21 };

/* An attention's sizes: a pair is a sequence and a head. */
typedef struct {
  const ch_attention_args *a;
  int64_t pairs, at_once, pitch;     /* pitch: stride of rows of scores, aligned for libraries */
  int64_t scores;                    /* scores allocated per block, monotonic in T and B */
  int rows, group;                   /* rows per block; query heads per KV head */
  int is;                            /* operand type of products: AS_FLOAT, or AS_BF16 if they round */
  const int CH_DEV *bucket, *length; /* length [B]; NULL: T */
} attention_shape;

/* Uploads the bucket of every distance; NULL without a bias. */
static const int CH_DEV *put_buckets(ch_exec *x, const ch_attention_args *a) {
  if (!a->rel_bias) return NULL;
  int count = ch_attention_distances(a), *bucket = CH_NEW_HOST(&ch_host(x)->scratch, int, count);
  if (!ch_counting(x)) ch_attention_all_buckets(a, bucket);
  return ch_upload(&x->scratch, bucket, (size_t)count * sizeof *bucket);
}

static size_t operand_size(const attention_shape *s) { return s->is == AS_BF16 ? sizeof(ch_bf16) : sizeof(real); }

/* Max number of scores per block. The block's `arrays` arrays of floats (scores; in backward also their gradients) and
 * their bf16 copies fill three quarters of the L2 cache; the other operands of the products have the rest. */
static int64_t max_scores(const ch_exec *x, const attention_shape *s, int arrays) {
  size_t bytes = (size_t)arrays * (sizeof(real) + (s->is == AS_BF16 ? sizeof(ch_bf16) : 0));
  int64_t fit = ((const ch_device *)x->memory)->cache() / 4 * 3 / (int64_t)bytes;
  return fit > MIN_SCORES ? fit : MIN_SCORES;
}

static attention_shape shape_of(ch_exec *x, const ch_attention_args *a, int arrays) {
  attention_shape s = {
      .a = a,
      .pairs = (int64_t)a->B * a->H,
      .pitch = (a->T + 7) / 8 * 8,
      .rows = a->T < BLOCK_ROWS ? a->T : BLOCK_ROWS,
      .group = a->H / ch_kv_heads(a->H, a->kv_heads),
      .is = x->compute == CH_COMPUTE_BF16 ? AS_BF16 : AS_FLOAT,
      .bucket = put_buckets(x, a),
      .length = a->length ? ch_upload(&x->scratch, a->length, (size_t)a->B * sizeof *a->length) : NULL};
  int64_t head = s.rows * s.pitch, all = s.pairs * head, max = max_scores(x, &s, arrays);
  s.at_once = head < max ? max / head : 1;
  s.scores = all < max ? all : head < max ? max : head;
  return s;
}

static void CH_DEV *operand_new(ch_exec *x, const attention_shape *s, int64_t count) {
  return ch_arena_alloc(&x->scratch, (size_t)count * operand_size(s));
}

static const void CH_DEV *element(const attention_shape *s, const void CH_DEV *operand, int64_t i) {
  return (const char CH_DEV *)operand + (size_t)i * operand_size(s);
}

/* Transposes [B,T,heads,dh] to [B,H,T,dh] for products; repeats keys and values for each query head. */
static const void CH_DEV *split(ch_exec *x, const attention_shape *s, const real CH_DEV *value, int64_t ld, int group) {
  const ch_attention_args *a = s->a;
  void CH_DEV *y = operand_new(x, s, s->pairs * a->T * a->dh);
  CH_LAUNCH(x, split_heads, ch_rows_at_once((int64_t)a->B * a->T), .x = value, .y = y, .ld = ld, .B = a->B, .T = a->T,
            .H = a->H, .group = group, .dh = a->dh, .is = s->is);
  return y;
}

static void merge(ch_exec *x, const attention_shape *s, const real CH_DEV *value, real CH_DEV *y, int64_t ld,
                  int group) {
  const ch_attention_args *a = s->a;
  CH_LAUNCH(x, merge_heads, ch_rows_at_once((int64_t)a->B * a->T), .x = value, .y = y, .ld = ld, .B = a->B, .T = a->T,
            .H = a->H, .group = group, .dh = a->dh);
}

/* A block: rows first_row .. first_row + rows - 1 of some pairs, and the number of their visible keys. */
typedef struct {
  int64_t first_pair, pairs;
  int first_row, rows, columns;
} block;

#define BLOCK_FIELDS(s, k)                                                                                            \
  .first_pair = (k)->first_pair, .pairs = (k)->pairs, .pitch = (s)->pitch, .first_row = (k)->first_row,               \
  .rows = (k)->rows, .columns = (k)->columns, .T = (s)->a->T, .H = (s)->a->H, .bidirectional = (s)->a->bidirectional, \
  .is = (s)->is

/* Groups that process a block's rows. */
static int64_t row_groups(const block *k) {
  const int at_once = GROUP / LANES;
  return (k->pairs * k->rows + at_once - 1) / at_once;
}

/* Advances *k to the next block; 0 after the last one. A block without rows precedes the first block. The order is from
 * the last rows to the first: the last rows see all keys, so the first block initializes all sums per key. */
static int next_block(const attention_shape *s, block *k) {
  int T = s->a->T;
  if (k->first_row == 0 && k->rows) k->first_pair += s->at_once;
  k->first_row = k->first_row ? k->first_row - s->rows : (T - 1) / s->rows * s->rows;
  k->rows = T - k->first_row < s->rows ? T - k->first_row : s->rows;
  k->pairs = s->pairs - k->first_pair < s->at_once ? s->pairs - k->first_pair : s->at_once;
  k->columns = s->a->bidirectional ? T : k->first_row + k->rows;
  return k->first_pair < s->pairs;
}

/* scores [pairs,rows,pitch] = scale X_block Y^T, with X and Y [B,H,T,dh]. */
static void row_products(ch_exec *x, const attention_shape *s, const block *k, real scale, const void CH_DEV *X,
                         const void CH_DEV *Y, real CH_DEV *scores) {
  int64_t dh = s->a->dh, T = s->a->T;
  product_args p = {.a = element(s, X, (k->first_pair * T + k->first_row) * dh),
                    .b = element(s, Y, k->first_pair * T * dh),
                    .c = scores,
                    .m = k->rows,
                    .n = k->columns,
                    .k = dh,
                    .lda = dh,
                    .ldb = dh,
                    .ldc = s->pitch,
                    .a_stride = T * dh,
                    .b_stride = T * dh,
                    .c_stride = k->rows * s->pitch,
                    .trans_b = 1,
                    .a_is = s->is,
                    .b_is = s->is,
                    .alpha = scale};
  ch_multiply_batch(x, &p, k->pairs);
}

/* With weights W [pairs,rows,pitch]: out_block = scale W Y, sums over the visible keys, or, transposed, out (+)= scale
 * W^T Y_block, gradients of these keys, which the last rows' block initializes. Y and out [B,H,T,dh]. */
static void weighted_sums(ch_exec *x, const attention_shape *s, const block *k, int transposed, real scale,
                          const void CH_DEV *W, const void CH_DEV *Y, real CH_DEV *out) {
  int64_t dh = s->a->dh, T = s->a->T, keys = k->first_pair * T * dh, rows = keys + k->first_row * dh;
  product_args p = {.a = W,
                    .b = element(s, Y, transposed ? rows : keys),
                    .c = out + (transposed ? keys : rows),
                    .m = transposed ? k->columns : k->rows,
                    .n = dh,
                    .k = transposed ? k->rows : k->columns,
                    .lda = s->pitch,
                    .ldb = dh,
                    .ldc = dh,
                    .a_stride = k->rows * s->pitch,
                    .b_stride = T * dh,
                    .c_stride = T * dh,
                    .trans_a = transposed,
                    .accumulate = transposed && k->first_row + k->rows < T,
                    .a_is = s->is,
                    .b_is = s->is,
                    .alpha = scale};
  ch_multiply_batch(x, &p, k->pairs);
}

CH_DEVICE_OP(attention) {
  CH_SCRATCH(x);
  attention_shape s = shape_of(x, a, 1);
  const void CH_DEV *q = split(x, &s, a->q, ch_attention_ld(a), 1);
  const void CH_DEV *k = split(x, &s, a->k, ch_attention_kv_ld(a), s.group);
  const void CH_DEV *v = split(x, &s, a->v, ch_attention_kv_ld(a), s.group);
  real CH_DEV *out = CH_NEW(&x->scratch, real, s.pairs * a->T * a->dh);
  real CH_DEV *scores = CH_NEW(&x->scratch, real, s.scores);
  void CH_DEV *weights = s.is == AS_FLOAT ? scores : operand_new(x, &s, s.scores);
  for (block b = {0}; next_block(&s, &b);) {
    row_products(x, &s, &b, a->scale, q, k, scores);
    CH_LAUNCH(x, attention_weights, row_groups(&b), .score = scores, .rel_bias = a->rel_bias, .bucket = s.bucket,
              .length = s.length, .weight = weights, .lse = a->lse, BLOCK_FIELDS(&s, &b));
    weighted_sums(x, &s, &b, 0, 1, weights, v, out);
  }
  merge(x, &s, out, a->out, ch_attention_ld(a), 1);
}

CH_DEVICE_OP(attention_backward) {
  CH_SCRATCH(x);
  attention_shape s = shape_of(x, a, 2);
  int64_t size = s.pairs * a->T * a->dh, distances = ch_attention_distances(a);
  const void CH_DEV *q = split(x, &s, a->q, ch_attention_ld(a), 1);
  const void CH_DEV *k = split(x, &s, a->k, ch_attention_kv_ld(a), s.group);
  const void CH_DEV *v = split(x, &s, a->v, ch_attention_kv_ld(a), s.group);
  const void CH_DEV *dout = split(x, &s, a->dout, ch_attention_ld(a), 1);
  real CH_DEV *dq = CH_NEW(&x->scratch, real, size), *dk = CH_NEW(&x->scratch, real, size),
              *dv = CH_NEW(&x->scratch, real, size), *scores = CH_NEW(&x->scratch, real, s.scores),
              *dweights = CH_NEW(&x->scratch, real, s.scores);
  void CH_DEV *weights = s.is == AS_FLOAT ? scores : operand_new(x, &s, s.scores);
  void CH_DEV *dscores = s.is == AS_FLOAT ? dweights : operand_new(x, &s, s.scores);
  int segments = (s.rows + ROWS_SUMMED - 1) / ROWS_SUMMED;
  double CH_DEV *slope = a->rel_bias ? CH_NEW(&x->scratch, double, (s.pairs * segments * distances)) : NULL;
  for (block b = {0}; next_block(&s, &b);) {
    row_products(x, &s, &b, a->scale, q, k, scores);
    row_products(x, &s, &b, 1, dout, v, dweights);
    CH_LAUNCH(x, attention_slopes, row_groups(&b), .score = scores, .dweight = dweights, .rel_bias = a->rel_bias,
              .bucket = s.bucket, .length = s.length, .lse = a->lse, .weight = weights, .dscore = dscores,
              BLOCK_FIELDS(&s, &b));
    if (slope)
      CH_LAUNCH(x, attention_distances, ch_groups(b.pairs * segments * distances), .dscore = dscores, .slope = slope,
                BLOCK_FIELDS(&s, &b), .segments = segments, .accumulate = b.first_row + b.rows < a->T);
    weighted_sums(x, &s, &b, 0, a->scale, dscores, k, dq);
    weighted_sums(x, &s, &b, 1, a->scale, dscores, q, dk);
    weighted_sums(x, &s, &b, 1, 1, weights, dout, dv);
  }
  merge(x, &s, dq, a->dq, ch_attention_ld(a), 1);
  merge(x, &s, dk, a->dk, ch_attention_kv_ld(a), s.group);
  merge(x, &s, dv, a->dv, ch_attention_kv_ld(a), s.group);
  if (slope)
    CH_LAUNCH(x, attention_dbias, (int64_t)a->buckets * a->H, .slope = slope, .bucket = s.bucket,
              .drel_bias = a->drel_bias, .B = a->B, .segments = segments, .distances = (int)distances, .H = a->H);
}
