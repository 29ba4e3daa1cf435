#include "cpu/threaded/q8.h"

#include "cpu/simd/fill.h"
#include "cpu/simd/q8.h"
#include "cpu/threaded/product.h"

/* Cost of reading a weight, in multiplications of bytes (the unit of cost). */
enum {
  READING = 8,
  ROWS = 64,               /* max rows per task: they stay in L2 */
  SMALLEST_TASK = 1 << 17, /* min cost per task */
  LARGEST_TASK = 1 << 20,
  WORTH_IT = 1 << 18, /* min cost for a second thread */
  ROUNDING_WORTH_IT = 1 << 16
};

typedef void q8_kernel(const ch_q8_product *p);
static q8_kernel *kernel(void) {
#if defined(__x86_64__)
  if (ch_machine_has_vnni()) return ch_q8_product_run_avx512_vnni;
#endif
  return CH_SIMD_PICK(ch_q8_product_run);
}

/* Quantizes rows of floats, into scratch. */
static ch_q8_rows rounded_rows(ch_exec *x, int64_t rows, int64_t depth, const float *a, int64_t lda) {
  int64_t blocks = ch_q8_blocks(depth);
  ch_q8_rows all = {CH_NEW(&x->scratch, int8_t, rows * blocks * CH_Q8_VALUES),
                    CH_NEW(&x->scratch, ch_q8_block, rows * blocks)};
  if (ch_counting(x)) return all;
  void (*round_rows)(int64_t, int64_t, const float *, int64_t, ch_q8_rows) = CH_SIMD_PICK(ch_q8_round_rows);
#pragma omp parallel for schedule(static) num_threads(ch_threads_for(x, rows *depth, ROUNDING_WORTH_IT))
  for (int64_t r = 0; r < rows; r++) {
    ch_q8_rows row = {all.q + r * blocks * CH_Q8_VALUES, all.block + r * blocks};
    round_rows(1, depth, a + r * lda, lda, row);
  }
  return all;
}

/* A product and its split into tasks of `rows` rows and `panels` panels; tasks with the same panels are consecutive. */
typedef struct {
  ch_q8_product p;
  const ch_activate_args *activate;
  int64_t element;                   /* index of C's first element in the activation's arrays */
  int64_t rows, panels, down, begin; /* down: number of tasks with the same panels; begin: index of the first task */
} q8_work;

static int64_t work_of(const ch_q8_product *p, int64_t rows, int64_t panels) {
  return panels * CH_Q8_OUTPUTS * p->depth * (rows + READING);
}

/* Splits all products; returns the number of tasks; *all: their cost. */
static int64_t cut_all(const ch_exec *x, int count, q8_work *w, int64_t *all) {
  int64_t tasks = 0;
  *all = 0;
  for (int i = 0; i < count; i++) *all += work_of(&w[i].p, w[i].p.m, ch_q8_panels(w[i].p.n));
  int64_t task = *all / (8 * (int64_t)x->threads);
  task = task < SMALLEST_TASK ? SMALLEST_TASK : task > LARGEST_TASK ? LARGEST_TASK : task;
  for (int i = 0; i < count; i++) {
    ch_q8_product *p = &w[i].p;
    int64_t one;
    w[i].begin = tasks;
    if (p->m <= 0 || p->n <= 0) continue;
    w[i].rows = p->m < ROWS ? p->m : ROWS;
    one = work_of(p, w[i].rows, 1);
    w[i].panels = one < task && one > 0 ? task / one : 1;
    w[i].down = (p->m + w[i].rows - 1) / w[i].rows;
    tasks += w[i].down * ((ch_q8_panels(p->n) + w[i].panels - 1) / w[i].panels);
  }
  return tasks;
}

/* Runs task `index` of a product and its activation. */
static void run_task(const q8_work *w, int64_t index, q8_kernel *run, ch_activate_run *activate) {
  const ch_q8_product *p = &w->p;
  int64_t row = index % w->down * w->rows, panel = index / w->down * w->panels, output = panel * CH_Q8_OUTPUTS;
  int64_t blocks = ch_q8_blocks(p->depth), columns = w->panels * CH_Q8_OUTPUTS;
  ch_q8_product task = *p;
  task.m = p->m - row < w->rows ? p->m - row : w->rows;
  task.n = p->n - output < columns ? p->n - output : columns;
  task.a = (ch_q8_rows){p->a.q + row * blocks * CH_Q8_VALUES, p->a.block + row * blocks};
  task.b = p->b + panel * ch_q8_panel_bytes(p->depth);
  task.c = p->c + row * p->ldc + output;
  run(&task);
  for (int64_t i = 0; i < task.m && w->activate; i++)
    activate(w->activate, task.c + i * p->ldc, w->element + (row + i) * p->ldc + output, task.n);
}

/* The product that contains `task`. */
static const q8_work *work_with(const q8_work *w, int count, int64_t task) {
  int low = 0, high = count - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (w[middle].begin <= task)
      low = middle;
    else
      high = middle - 1;
  }
  return &w[low];
}

static void run_all(ch_exec *x, int count, q8_work *w) {
  int64_t all, tasks = cut_all(x, count, w, &all);
  q8_kernel *run = kernel();
  ch_activate_run *activate = CH_SIMD_PICK(ch_activate_elements);
  int threads = tasks > 1 ? ch_threads_for(x, all, WORTH_IT) : 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < tasks; task++) {
    const q8_work *of = work_with(w, count, task);
    run_task(of, task - of->begin, run, activate);
  }
}

void ch_q8_gemm(ch_exec *x, const ch_gemm_args *g) {
  int count = 0, made = 0;
  for (const ch_gemm_args *one = g; one; one = one->second) count++;
  CH_SCRATCH(x);
  q8_work *w = CH_NEW(&x->scratch, q8_work, count);
  const ch_gemm_args *before = NULL;
  ch_q8_rows rows = {0};
  for (; g; before = g, g = g->second) {
    int64_t lda = ch_stride(g->lda, g->k);
    int same = before && before->a == g->a && before->m == g->m && before->k == g->k && before->lda == g->lda;
    if (!same) rows = rounded_rows(x, g->m, g->k, g->a, lda);
    if (ch_counting(x)) continue;
    w[made++] = (q8_work){.p = {.m = g->m,
                                .n = g->n,
                                .depth = g->k,
                                .ldc = ch_stride(g->ldc, g->n),
                                .a = rows,
                                .b = g->b8,
                                .c = g->c,
                                .alpha = g->alpha ? g->alpha : 1,
                                .accumulate = g->accumulate}};
  }
  if (!ch_counting(x)) run_all(x, count, w);
}

void ch_q8_expert_gemm(ch_exec *x, const ch_expert_gemm_args *g) {
  CH_SCRATCH(x);
  q8_work *w = CH_NEW(&x->scratch, q8_work, g->experts);
  ch_q8_rows rows = rounded_rows(x, ch_expert_rows(x, g), g->k, g->a, g->k);
  int64_t blocks = ch_q8_blocks(g->k);
  if (ch_counting(x)) return;
  for (int i = 0; i < g->experts; i++) {
    int64_t first = g->begin[i];
    w[i] = (q8_work){.p = {.m = g->begin[i + 1] - first,
                           .n = g->n,
                           .depth = g->k,
                           .ldc = g->n,
                           .a = {rows.q + first * blocks * CH_Q8_VALUES, rows.block + first * blocks},
                           .b = g->w8 + i * ch_q8_matrix_bytes(g->n, g->k),
                           .c = g->c + first * g->n,
                           .alpha = 1,
                           .accumulate = g->accumulate},
                     .activate = g->activate,
                     .element = first * g->n};
  }
  run_all(x, g->experts, w);
}
