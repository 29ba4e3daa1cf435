/* Ops of the model on a device: kernels, numbers of groups, scratch. */
#include <math.h>

#include "device/device.h"

/* ---- rows ---- */

CH_ONE_KERNEL(softmax, ch_rows_at_once(a->n))
CH_ONE_KERNEL(softmax_backward, ch_rows_at_once(a->n))
CH_ONE_KERNEL(rmsnorm, ch_rows_at_once(a->n))

CH_DEVICE_OP(rmsnorm_backward) {
  CH_SCRATCH(x);
  int64_t blocks = (a->n + BLOCK - 1) / BLOCK;
  double CH_DEV *partial = CH_NEW(&x->scratch, double, blocks * a->d);
  CH_LAUNCH(x, rmsnorm_dw, ch_groups(blocks * a->d), .x = a->x, .rstd = a->rstd, .dy = a->dy, .partial = partial,
            .n = a->n, .d = a->d);
  CH_LAUNCH(x, add_blocks, ch_groups(a->d), .partial = partial, .sum = a->dw, .blocks = blocks, .d = a->d);
  CH_LAUNCH(x, rmsnorm_dx, ch_rows_at_once(a->n), .x = a->x, .w = a->w, .rstd = a->rstd, .dy = a->dy, .dx = a->dx,
            .n = a->n, .d = a->d, .dx_acc = a->dx_acc);
}

CH_DEVICE_OP(gather) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, gather, ch_rows_at_once(r->max_slots), .begin = r->expert_begin, .slot_token = r->slot_token, .x = a->x,
            .y = a->y, .y16 = a->y16, .e = r->experts, .d = a->d);
}

CH_DEVICE_OP(combine) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, combine, ch_rows_at_once(r->tokens), .token_begin = r->token_begin, .token_slot = r->token_slot,
            .slot_gate = r->slot_gate, .y = a->y, .out = a->out, .n = r->tokens, .d = a->d, .gated = a->gated,
            .out_acc = a->out_acc);
}

CH_DEVICE_OP(combine_backward) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, combine_backward, ch_rows_at_once(r->max_slots), .begin = r->expert_begin, .slot_token = r->slot_token,
            .slot_gate = r->slot_gate, .y = a->y, .dout = a->dout, .dy = a->dy, .dgate = a->dgate, .e = r->experts,
            .d = a->d, .gated = a->gated);
}

CH_DEVICE_OP(embedding) {
  CH_LAUNCH(x, embedding, ch_rows_at_once(a->n), .token = a->token, .w = a->w, .x = a->x, .n = a->n, .d = a->d,
            .scale = a->scale != 0 ? a->scale : 1);
}

CH_DEVICE_OP(embedding_backward) {
  CH_LAUNCH(x, embedding_backward, ch_groups((int64_t)CLASSES * a->d), .token = a->token, .dx = a->dx, .dw = a->dw,
            .n = a->n, .d = a->d, .scale = a->scale != 0 ? a->scale : 1);
}

/* ---- elements ---- */

/* Number of groups; the max if the number of rows is known only on the device. */
static int64_t groups_of(const int CH_DEV *rows, int64_t count) { return rows ? CH_MAX_GROUPS : ch_groups(count); }

#define ELEMENTS(op, args) CH_ONE_KERNEL(op, ch_groups(a->count))
#define ROWS_OF_ELEMENTS(op, args) CH_ONE_KERNEL(op, groups_of(a->rows, a->count))
CH_ELEMENT_OPS(ELEMENTS)
CH_ROW_ELEMENT_OPS(ROWS_OF_ELEMENTS)

/* u, or NULL for an activation without a gate, which tells the kernels apart. */
static const real CH_DEV *gated_by(const ch_activate_args *a) { return ch_gated(a->activation) ? a->u : NULL; }

CH_DEVICE_OP(activate) {
  CH_LAUNCH(x, activate, groups_of(a->rows, a->count), .rows = a->rows, .x = a->x, .u = gated_by(a), .y = a->y,
            .x16 = a->x16, .y16 = a->y16, .count = a->count, .silu = a->activation == CH_SWIGLU);
}

CH_DEVICE_OP(activate_backward) {
  CH_LAUNCH(x, activate_backward, groups_of(a->rows, a->count), .rows = a->rows, .x = a->x, .u = gated_by(a), .y = a->y,
            .dy = a->dy, .dx = a->dx, .du = a->du, .x16 = a->x16, .y16 = a->y16, .dy16 = a->dy16, .dx16 = a->dx16,
            .count = a->count, .silu = a->activation == CH_SWIGLU);
}

CH_DEVICE_OP(dropout) {
  uint32_t dropped = (uint32_t)(a->rate * 0x1p16 + 0.5);
  CH_LAUNCH(x, dropout, ch_groups(a->count), .x = a->x, .y = a->y, .count = a->count, .first = a->first,
            .seed = a->seed, .draw = a->draw, .stream = CH_STREAM_DROPOUT, .place = a->place, .dropped = dropped,
            .accumulate = a->accumulate, .scale = (float)(0x1p16 / (0x1p16 - (double)dropped)));
}

CH_DEVICE_OP(sumsq) {
  CH_SCRATCH(x);
  int64_t pieces = (a->count + PIECE - 1) / PIECE;
  double CH_DEV *partial = CH_NEW(&x->scratch, double, (a->arrays * pieces));
  CH_LAUNCH(x, sum_squares, ch_rows_at_once(a->arrays * pieces), .x = a->x, .partial = partial, .arrays = a->arrays,
            .count = a->count, .pieces = pieces);
  CH_LAUNCH(x, total_squares, 1, .partial = partial, .sum = a->sum, .total = a->total, .arrays = a->arrays,
            .pieces = pieces, .step = a->step);
}

/* ---- attention ---- */

CH_ONE_KERNEL(rope, ch_groups(a->n * a->heads * (a->rotated / 2)))
CH_ONE_KERNEL(rope_table, ch_groups((int64_t)a->positions *(a->rotated / 2)))

/* Uploads the bucket of every distance below `count`. */
static const int CH_DEV *put_buckets(ch_exec *x, int count, int buckets, int max_distance) {
  int *bucket = CH_NEW_HOST(&ch_host(x)->scratch, int, count);
  if (!ch_counting(x)) ch_attention_buckets(count, buckets, max_distance, bucket);
  return ch_upload(&x->scratch, bucket, (size_t)count * sizeof *bucket);
}

CH_DEVICE_OP(attention_cached) {
  CH_SCRATCH(x);
  const int CH_DEV *begin = ch_upload(&x->scratch, a->begin, ((size_t)a->B + 1) * sizeof *begin);
  const int CH_DEV *past = ch_upload(&x->scratch, a->past, (size_t)a->B * sizeof *past);
  if (ch_counting(x)) return;
  int kv_heads = ch_kv_heads(a->H, a->kv_heads);
  CH_LAUNCH(x, cache_append, (int64_t)a->B * kv_heads, .begin = begin, .past = past, .k = a->k, .v = a->v,
            .keys = a->keys, .values = a->values, .B = a->B, .kv_heads = kv_heads, .dh = a->dh,
            .positions = a->positions);
  CH_LAUNCH(x, attention_cached, (int64_t)a->begin[a->B] * a->H, .begin = begin, .past = past, .q = a->q,
            .keys = a->keys, .values = a->values, .bias = a->bias, .out = a->out, .B = a->B, .H = a->H,
            .group = a->H / kv_heads, .dh = a->dh, .positions = a->positions, .pad = CH_BIAS_PAD, .scale = a->scale);
}

CH_DEVICE_OP(attention_bias) {
  CH_SCRATCH(x);
  const int CH_DEV *bucket = put_buckets(x, a->positions, a->buckets, a->max_distance);
  CH_LAUNCH(x, attention_bias, ch_groups((int64_t)a->H * (a->positions + CH_BIAS_PAD)), .rel_bias = a->rel_bias,
            .bucket = bucket, .bias = a->bias, .H = a->H, .positions = a->positions, .pad = CH_BIAS_PAD);
}

/* ---- optimizers ---- */

CH_DEVICE_OP(adafactor) {
  CH_SCRATCH(x);
  real CH_DEV *measures = a->measures ? a->measures : CH_NEW(&x->scratch, real, a->batch * a->rows * CH_MEASURES);
  double CH_DEV *scales = CH_NEW(&x->scratch, double, 2 * a->batch);
  if (a->stage != CH_ADAFACTOR_APPLY) {
    CH_LAUNCH(x, adafactor_columns, ch_groups(a->batch * a->cols), .finite = a->finite, .g = a->g, .col = a->col,
              .batch = a->batch, .rows = a->rows, .cols = a->cols, .beta2 = a->beta2, .eps1 = a->eps1,
              .grad_scale = a->grad_scale);
    CH_LAUNCH(x, adafactor_rows, ch_rows_at_once(a->batch * a->rows), .finite = a->finite, .w = a->w, .g = a->g,
              .col = a->col, .measures = measures, .batch = a->batch, .rows = a->rows, .cols = a->cols,
              .grad_scale = a->grad_scale);
  }
  if (a->stage != CH_ADAFACTOR_MEASURE) {
    CH_LAUNCH(x, adafactor_scales, ch_rows_at_once(a->batch), .finite = a->finite, .measures = measures, .row = a->row,
              .scales = scales, .batch = a->batch, .rows = a->rows, .all_cols = a->all_cols ? a->all_cols : a->cols,
              .learning_rate = a->learning_rate, .beta2 = a->beta2, .eps1 = a->eps1, .eps2 = a->eps2, .clip = a->clip);
    CH_LAUNCH(x, adafactor_apply, ch_rows_at_once(a->batch * a->rows), .finite = a->finite, .w = a->w, .g = a->g,
              .row = a->row, .col = a->col, .scales = scales, .w16 = a->w16, .batch = a->batch, .rows = a->rows,
              .cols = a->cols, .grad_scale = a->grad_scale);
  }
}

CH_DEVICE_OP(adamw) {
  CH_LAUNCH(x, adamw, ch_groups(a->count), .finite = a->finite, .w = a->w, .g = a->g, .m = a->m, .v = a->v,
            .w16 = a->w16, .count = a->count, .learning_rate = a->learning_rate, .beta1 = a->beta1, .beta2 = a->beta2,
            .eps = a->eps, .weight_decay = a->weight_decay, .grad_scale = a->grad_scale,
            .correct_m = 1 - pow(a->beta1, (double)a->step), .correct_v = 1 - pow(a->beta2, (double)a->step));
}
