/* Sharded matrices are prefetched: any number of a layer, layers in any order. */
#include "comm_testing.h"
#include "model/prefetch.h"

/* Every other layer has more than are under way at a time, of many sizes. */
enum { LAYERS = 4, FEW = 3, MANY = 2 * CH_AT_ONCE + 3, ROWS = 2 + LAYERS / 2 * (FEW + MANY) };

static ch_param row_of(int layer, int number) {
  const int64_t count = layer < 0 ? 1 : 1 + 97 * (number % 7);
  return (ch_param){.layer = layer,
                    .whole = count,
                    .count = count,
                    .part = {.rows = 1, .columns = count, .width = count},
                    .owner = -1,
                    .matrix = layer >= 0};
}

static real value_of(int matrix, int64_t i) { return (real)(1.0 / (3 + matrix) + (double)i * 1e-3); }

/* Whether the layer's matrices equal their owners'; with bf16 products only the rounded copies are compared. */
static int has_arrived(const ch_comm *comm, const ch_params *params, int layer) {
  for (int k = 0; k < params->count; k++) {
    const ch_param *p = &params->p[k];
    must(!p->w == (p->remote && p->w16));
    for (int64_t i = 0; i < p->count && p->layer == layer; i++) {
      if (p->w16)
        must(p->w16[i] == ch_bf16_round((float)value_of(k, i)));
      else
        must(p->w[i] == value_of(k, i));
    }
  }
  return 0;
}

static void own(const ch_params *params) {
  for (int k = 0; k < params->count; k++) {
    const ch_param *p = &params->p[k];
    for (int64_t i = 0; i < p->count && !p->remote; i++) {
      p->w[i] = value_of(k, i);
      if (p->w16) p->w16[i] = ch_bf16_round((float)p->w[i]);
    }
  }
}

static int prefetch_layers(const ch_comm *comm, void *context) {
  const int bf16 = *(const int *)context;
  ch_param row[ROWS];
  ch_params params = {.p = row};
  ch_exec x;
  ch_arena weights;
  row[params.count++] = row_of(-1, 0);
  for (int l = 0; l < LAYERS; l++)
    for (int i = 0; i < (l % 2 ? MANY : FEW); i++) row[params.count++] = row_of(l, i);
  row[params.count++] = row_of(-1, 0);
  test_ok(ch_exec_init(&x, "cpu", bf16 ? CH_COMPUTE_BF16 : CH_COMPUTE_FP32, 1, 1));
  x.comm = comm;
  test_ok(ch_grid_make(comm, 1, 1, &x.grid));
  ch_params_shard_dense(&params, &x.grid.replica);
  ch_arena_init(&weights, "weights", &ch_memory_host);
  ch_params_alloc_weights(&params, &weights, bf16);
  test_ok(ch_arena_commit(&weights));
  ch_params_alloc_weights(&params, &weights, bf16);
  ch_prefetch_start(&x, &params); /* counted */
  test_ok(ch_exec_commit(&x));
  own(&params);
  ch_prefetch_start(&x, &params);
  if (comm->size > 1) must(x.prefetch);
  for (int time = 0; time < 2 * LAYERS; time++) { /* forward, then backward */
    int back = time >= LAYERS, layer = back ? 2 * LAYERS - 1 - time : time;
    for (int steps = 0; steps < time % 4; steps++) ch_prefetch_next(&x); /* too few calls, enough, one too many */
    ch_prefetch_move(&x);
    if (time && has_arrived(comm, &params, back ? layer + (time > LAYERS) : layer - 1)) return 1; /* still complete */
    ch_prefetch_layer(&x, back ? layer - 1 : layer + 1);
    if (has_arrived(comm, &params, layer)) return 1;
    if (time == LAYERS) must(!x.prefetch || !x.prefetch->count); /* the last two layers' are still there */
    ch_prefetch_move(&x);
  }
  ch_prefetch_stop(&x);
  must(!x.prefetch);
  ch_arena_free(&weights);
  ch_exec_free(&x);
  return 0;
}

static void any_number_of_matrices(void **state) {
  for (int size = 1; size <= 8; size++)
    for (int bf16 = 0; bf16 < 2; bf16++)
      if (forked_run(size, 0, prefetch_layers, &bf16)) fail_msg("%d ranks, %s", size, bf16 ? "bf16" : "fp32");
}

TEST_MAIN(NULL, NULL, any_number_of_matrices)
