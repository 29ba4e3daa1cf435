/* Products on a device, and the head. */
#include "device/device.h"

static int64_t stride(int64_t ld, int64_t width) { return ld ? ld : width; }
static int64_t tiles(int64_t m, int64_t n) { return (m + TILE - 1) / TILE * ((n + TILE - 1) / TILE); }

/* Type of a product's operand: float, rounded when read, or already bf16 (`rounded`). */
static int kind_of(const ch_exec *x, const void CH_DEV *rounded, int exact) {
  if (rounded) return AS_BF16;
  return x->compute == CH_COMPUTE_BF16 && !exact ? ROUNDED : AS_FLOAT;
}

static const void CH_DEV *either(const real CH_DEV *value, const ch_bf16 CH_DEV *rounded) {
  return rounded ? (const void CH_DEV *)rounded : value;
}

void ch_multiply_batch(ch_exec *x, const product_args *p, int64_t batch) {
  const ch_device *device = (const ch_device *)x->memory;
  if (ch_counting(x)) return;
  if (!device->multiply || !device->multiply(p, batch)) ch_launch(x, CH_KERNEL_product, batch * tiles(p->m, p->n), p);
}

/* Rounds an operand [count] in advance if the driver's library cannot round it when reading. */
static void round_before(ch_exec *x, const void CH_DEV **operand, int *is, int64_t count) {
  if (!((const ch_device *)x->memory)->multiply || *is != ROUNDED) return;
  ch_bf16 CH_DEV *rounded = CH_NEW(&x->scratch, ch_bf16, count);
  CH_LAUNCH(x, round_bf16, ch_groups(count), .x = *operand, .y = rounded, .count = count);
  *operand = rounded;
  *is = AS_BF16;
}

/* One product; a16: a->a in bf16, or NULL. */
static void multiply(ch_exec *x, const ch_gemm_args *a, const ch_bf16 CH_DEV *a16) {
  CH_SCRATCH(x);
  const ch_bf16 CH_DEV *b16 = kind_of(x, NULL, a->exact) == ROUNDED ? a->b16 : NULL;
  product_args p = {.a = either(a->a, a16),
                    .b = either(a->b, b16),
                    .c = a->c,
                    .m = a->m,
                    .n = a->n,
                    .k = a->k,
                    .lda = stride(a->lda, a->trans_a ? a->m : a->k),
                    .ldb = stride(a->ldb, a->trans_b ? a->k : a->n),
                    .ldc = stride(a->ldc, a->n),
                    .trans_a = a->trans_a,
                    .trans_b = a->trans_b,
                    .accumulate = a->accumulate,
                    .a_is = kind_of(x, a16, a->exact),
                    .b_is = kind_of(x, b16, a->exact),
                    .alpha = a->alpha ? a->alpha : 1};
  round_before(x, &p.a, &p.a_is, p.lda * (a->trans_a ? a->k : a->m));
  round_before(x, &p.b, &p.b_is, p.ldb * (a->trans_b ? a->n : a->k));
  ch_multiply_batch(x, &p, 1);
}

/* Whether two products round the same operand A. */
static int shares_a(const ch_gemm_args *p, const ch_gemm_args *q) {
  return p->a == q->a && !p->exact && !q->exact && !p->lda && !q->lda && p->m * p->k == q->m * q->k;
}

/* If the second product has the same A as the first, A is rounded once for all products that share it. */
CH_DEVICE_OP(gemm) {
  CH_SCRATCH(x);
  const void CH_DEV *a16 = a->a;
  int is = kind_of(x, NULL, a->exact);
  if (a->second && shares_a(a, a->second)) round_before(x, &a16, &is, a->m * a->k);
  for (const ch_gemm_args *one = a; one; one = one->second)
    multiply(x, one, is == AS_BF16 && shares_a(a, one) ? a16 : NULL);
}

/* Kernel arguments for the products of all experts; C is c or, for CH_TN, the weights' gradient. A strided-batched GEMM
 * needs equal loads known on the host. */
static product_args experts_of(const ch_exec *x, const ch_expert_gemm_args *a, void CH_DEV *c, int c_is) {
  int64_t rows = a->load >= 0 ? a->load : a->max_rows, of_rows = a->load >= 0, weight = a->k * a->n;
  product_args p = {.a = either(a->a, a->a16),
                    .begin = a->load >= 0 ? NULL : a->begin,
                    .n = a->n,
                    .lda = a->k,
                    .ldc = a->n,
                    .a_stride = of_rows * rows * a->k,
                    .a_is = kind_of(x, a->a16, 0),
                    .alpha = 1};
  if (a->form == CH_TN) {
    p.b = either(a->c, a->c16), p.b_is = kind_of(x, a->c16, 0);
    p.c = a->w, p.c_stride = weight, p.accumulate = a->accumulate;
    p.m = a->k, p.k = rows, p.ldb = a->n, p.b_stride = of_rows * rows * a->n;
    p.trans_a = p.ragged_k = 1;
  } else {
    const ch_bf16 CH_DEV *w16 = x->compute == CH_COMPUTE_BF16 ? a->w16 : NULL;
    p.b = either(a->w, w16), p.b_is = kind_of(x, w16, 0);
    p.c = c, p.c_is = c_is, p.c_stride = of_rows * rows * a->n;
    p.m = rows, p.k = a->k, p.ldb = a->form == CH_NT ? a->k : a->n, p.b_stride = weight;
    p.trans_b = a->form == CH_NT, p.accumulate = a->accumulate;
  }
  return p;
}

static const void CH_DEV *elements_on(const void CH_DEV *p, int64_t elements, int is) {
  return (const char CH_DEV *)p + elements * (int64_t)(is == AS_BF16 ? sizeof(ch_bf16) : sizeof(real));
}

/* Product `i` of a batch; begin: row offsets on the host. */
static product_args one_of(const product_args *batch, const int *begin, int i) {
  product_args p = *batch;
  int64_t first = begin[i], rows = begin[i + 1] - first;
  p.begin = NULL;
  p.a = elements_on(p.a, first * p.lda, p.a_is);
  p.b = elements_on(p.b, p.ragged_k ? first * p.ldb : i * p.b_stride, p.b_is);
  p.c = (void CH_DEV *)elements_on(p.c, p.ragged_k ? i * p.c_stride : first * p.ldc, p.c_is);
  *(p.ragged_k ? &p.k : &p.m) = rows;
  return p;
}

/* One call for all experts if their loads are equal or known only on the device, otherwise one call per expert. */
static void multiply_experts(ch_exec *x, const ch_expert_gemm_args *a, void CH_DEV *c, int c_is) {
  product_args p = experts_of(x, a, c, c_is);
  round_before(x, &p.a, &p.a_is, (int64_t)a->max_rows * a->k);
  round_before(x, &p.b, &p.b_is, a->form == CH_TN ? (int64_t)a->max_rows * a->n : a->experts * a->k * a->n);
  if (!p.begin || !a->host_begin || !((const ch_device *)x->memory)->multiply) {
    ch_multiply_batch(x, &p, a->experts);
    return;
  }
  for (int i = 0; i < a->experts; i++) {
    product_args one_product = one_of(&p, a->host_begin, i);
    if (a->host_begin[i] < a->host_begin[i + 1])
      ch_multiply_batch(x, &one_product, 1);
    else if (a->form == CH_TN && !a->accumulate)
      ch_zero(x, (void CH_DEV *)one_product.c, (size_t)(a->k * a->n) * sizeof(real));
  }
}

/* ---- padding of experts' rows to equal loads ---- */

/* Padded rows per expert: the max load, rounded up for tensor cores, if the host has read the loads; otherwise the
 * router's bound; 0: unknown. */
static int64_t equal_rows(const ch_expert_gemm_args *a) {
  enum { STEP = 8 };
  int max = 0;
  if (!a->host_begin) return a->max;
  for (int i = 0; i < a->experts; i++)
    if (a->host_begin[i + 1] - a->host_begin[i] > max) max = a->host_begin[i + 1] - a->host_begin[i];
  return (max + STEP - 1) / STEP * STEP;
}

/* Number of rows with padding, or 0: none is to be padded. Padding pays up to twice the rows, because one batch of
 * products is much faster than separate products. The counting run uses the bound max_rows, since later calls may need
 * that much. */
static int64_t padded_rows(const ch_exec *x, const ch_expert_gemm_args *a) {
  int64_t rows = a->experts * equal_rows(a), max = CH_WORTH_PADDING * (int64_t)a->max_rows;
  int64_t worth = a->host_begin ? CH_WORTH_PADDING * (int64_t)a->host_begin[a->experts] : max;
  if (!((const ch_device *)x->memory)->multiply || a->load >= 0) return 0;
  if (ch_counting(x)) return rows && rows < max ? rows : max;
  return rows <= worth ? rows : 0;
}

/* Replaces `value` or `rounded` by its padded rows [e][max,width], in bf16 if products are. */
static void pad(ch_exec *x, const ch_expert_gemm_args *a, int64_t rows, int64_t width, const real CH_DEV **value,
                const ch_bf16 CH_DEV **rounded) {
  int is = kind_of(x, *rounded, 0);
  void CH_DEV *padded = CH_NEW(&x->scratch, char, (rows * width * (is == AS_FLOAT ? sizeof(real) : sizeof(ch_bf16))));
  CH_LAUNCH(x, pad_rows, ch_rows_at_once(rows), .begin = a->begin, .rows = either(*value, *rounded), .padded = padded,
            .width = width, .e = a->experts, .max = (int)(rows / a->experts), .is = is);
  *value = is == AS_FLOAT ? padded : NULL;
  *rounded = is == AS_FLOAT ? NULL : padded;
}

static void multiply_padded(ch_exec *x, const ch_expert_gemm_args *a, int64_t rows, void CH_DEV *c, int c_is) {
  ch_expert_gemm_args p = *a;
  p.load = (int)(rows / a->experts);
  p.max_rows = (int)rows;
  pad(x, a, rows, a->k, &p.a, &p.a16);
  if (a->form == CH_TN) {
    const real CH_DEV *value = a->c;
    pad(x, a, rows, a->n, &value, &p.c16);
    p.c = (real CH_DEV *)value;
    multiply_experts(x, &p, NULL, AS_FLOAT);
    return;
  }
  void CH_DEV *padded = CH_NEW(&x->scratch, char, rows * a->n * (c_is == AS_BF16 ? sizeof(ch_bf16) : sizeof(real)));
  p.accumulate = 0;
  multiply_experts(x, &p, padded, c_is);
  CH_LAUNCH(x, unpad_rows, ch_rows_at_once(rows), .begin = a->begin, .rows = c, .padded = padded, .width = a->n,
            .e = a->experts, .max = p.load, .is = c_is, .accumulate = a->accumulate);
}

/* The product is written in bf16 if only an activation reads it, which rounds its input or output anyway. */
CH_DEVICE_OP(expert_gemm) {
  CH_SCRATCH(x);
  int64_t rows = padded_rows(x, a);
  int backward = a->activate && (a->activate->dx || a->activate->dx16), rounded = a->activate && !a->c;
  void CH_DEV *c = a->c;
  if (rounded)
    c = backward ? CH_NEW(&x->scratch, ch_bf16, (int64_t)a->max_rows * a->n) : (void CH_DEV *)a->activate->x16;
  if (rows)
    multiply_padded(x, a, rows, c, rounded ? AS_BF16 : AS_FLOAT);
  else
    multiply_experts(x, a, c, rounded ? AS_BF16 : AS_FLOAT);
  if (!a->activate) return;
  ch_activate_args through = *a->activate;
  if (backward && rounded)
    through.dy16 = c;
  else if (backward)
    through.dy = c;
  (backward ? x->ops->activate_backward : x->ops->activate)(x, &through);
}

/* ---- head ---- */

/* Rows whose logits exist at once: at most 128 MiB of logits. Every chunk reads and writes the whole gradient of the
 * weights, so that few large chunks are faster than many small ones. */
static int64_t chunk_rows(const ch_head_args *a) {
  int64_t rows = (1 << 25) / a->V;
  return rows < 64 ? 64 : rows < 2048 ? rows : 2048;
}

/* Scratch of a chunk of rows: logits, their gradients in bf16 if products round, losses. */
typedef struct {
  real CH_DEV *logits;
  ch_bf16 CH_DEV *rounded;
  double CH_DEV *loss;
} chunk;

static chunk chunk_new(ch_exec *x, const ch_head_args *a) {
  int64_t rows = chunk_rows(a), size = rows * a->V;
  chunk c = {.logits = CH_NEW(&x->scratch, real, size), .loss = CH_NEW(&x->scratch, double, rows)};
  if (x->compute == CH_COMPUTE_BF16 && a->dx) c.rounded = CH_NEW(&x->scratch, ch_bf16, size);
  return c;
}

static void head_forward(ch_exec *x, const ch_head_args *a, int64_t first, int64_t rows, const chunk *c) {
  CH_OP(x, gemm, .m = rows, .n = a->V, .k = a->d, .trans_b = 1, .a = a->x + first * a->d, .b = a->w, .b16 = a->w16,
        .c = c->logits, .alpha = a->scale);
  if (a->logits) CH_OP(x, copy, .count = rows * a->V, .x = c->logits, .y = a->logits + first * a->V);
}

static void head_backward(ch_exec *x, const ch_head_args *a, int64_t first, int64_t rows, const chunk *c) {
  CH_LAUNCH(x, head_losses, 1, .loss = c->loss, .row_weight = a->row_weight ? a->row_weight + first : NULL,
            .sum = a->loss_sum, .total = a->loss_total, .token_loss = a->token_loss ? a->token_loss + first : NULL,
            .n = rows);
  if (!a->dx) return;
  ch_gemm_args dx = {.m = rows, .n = a->d, .k = a->V, .a = c->logits, .b = a->w, .b16 = a->w16, .alpha = a->scale};
  dx.c = a->dx + first * a->d;
  multiply(x, &dx, c->rounded);
  ch_gemm_args dw = {.m = a->V, .n = a->d, .k = rows, .trans_a = 1, .a = c->logits, .c = a->dw, .alpha = a->scale};
  dw.b = a->x + first * a->d;
  dw.accumulate = a->accumulate || first > 0;
  multiply(x, &dw, c->rounded);
}

static void head_rows(ch_exec *x, const ch_head_args *a, int64_t first, int64_t rows, const chunk *c) {
  head_forward(x, a, first, rows, c);
  CH_LAUNCH(x, head_rows, rows, .target = a->target + first, .row_weight = a->row_weight ? a->row_weight + first : NULL,
            .logits = c->logits, .rounded = c->rounded, .loss = c->loss, .V = a->V, .gradient = a->dx != NULL,
            .weight = a->weight);
  head_backward(x, a, first, rows, c);
}

static void head_pairs(ch_exec *x, const ch_head_args *a, int64_t first, int64_t rows, const chunk *c,
                       const chunk *other, double CH_DEV *disagreement) {
  int64_t partner = first + a->n / 2;
  head_forward(x, a, first, rows, c);
  head_forward(x, a, partner, rows, other);
  CH_LAUNCH(x, head_pairs, rows, .target = a->target + first, .logits = c->logits, .other = other->logits,
            .rounded = c->rounded, .other_rounded = other->rounded, .loss = c->loss, .other_loss = other->loss,
            .disagreement = disagreement, .consistency = (double)a->consistency, .V = a->V, .gradient = a->dx != NULL,
            .weight = a->weight);
  CH_LAUNCH(x, head_losses, 1, .loss = disagreement, .sum = a->consistency_sum, .n = rows);
  head_backward(x, a, first, rows, c);
  head_backward(x, a, partner, rows, other);
}

CH_DEVICE_OP(head) {
  CH_SCRATCH(x);
  int64_t n = a->paired ? a->n / 2 : a->n, size = chunk_rows(a), first = 0;
  chunk c = chunk_new(x, a), other = {0};
  double CH_DEV *disagreement = NULL;
  if (a->paired) {
    other = chunk_new(x, a);
    disagreement = CH_NEW(&x->scratch, double, size);
    ch_zero(x, a->consistency_sum, sizeof *a->consistency_sum);
  }
  ch_zero(x, a->loss_sum, sizeof *a->loss_sum);
  do { /* runs once even without rows, to set dw */
    int64_t rows = n - first < size ? n - first : size;
    if (a->paired)
      head_pairs(x, a, first, rows, &c, &other, disagreement);
    else
      head_rows(x, a, first, rows, &c);
  } while ((first += size) < n);
}
