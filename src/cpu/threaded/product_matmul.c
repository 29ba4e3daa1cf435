/* Matmul primitives of oneDNN, made once for each shape and kept.
 *
 * A primitive is shared by all threads; what one execution needs for itself (handles of its operands, a scratchpad:
 * with the library's own scratchpad concurrent executions give wrong results) is a run, taken from the primitive's
 * pool. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cpu/threaded/onednn.h"
#include "cpu/threaded/product.h"

enum { TABLE = 4096, MOST = 1024, POOL = 16 };

typedef struct {
  int64_t m, n, k, lda, ldb, ldc;
  int flags;
  float alpha;
} shape;

typedef struct {
  dnnl_memory_t a, b, c, scratch;
  void *own; /* scratchpad of this run, where the caller's is too small */
} run;

typedef struct {
  shape key;
  dnnl_primitive_t primitive;
  ch_onednn_desc a, b, c;
  ch_onednn_view scratch;
  dnnl_primitive_desc_t desc; /* holds `scratch` */
  size_t scratch_bytes;
  _Atomic(run *) pool[POOL];
} matmul;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static _Atomic(matmul *) table[TABLE]; /* open addressing; entries are only ever added, under the lock */
static int entries;

static int same(const shape *a, const shape *b) {
  return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
         a->flags == b->flags && a->alpha == b->alpha;
}

static size_t slot_of(const shape *s) {
  const int64_t part[] = {s->m, s->n, s->k, s->lda, s->ldb, s->ldc, s->flags};
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) hash = (hash ^ (uint64_t)part[i]) * 0x9e3779b97f4a7c15u;
  return (size_t)(hash >> 40);
}

static shape shape_of(const ch_product *p) {
  return (shape){
      p->m,    p->n, p->k, p->lda, p->ldb, p->ldc, p->trans_a | p->trans_b << 1 | p->accumulate << 2 | p->bf16 << 3,
      p->alpha};
}

/* Descriptors of the operands: row-major with a stride, transposed ones by swapping strides. */
static int describe(const ch_product *p, matmul *m) {
  dnnl_data_type_t type = p->bf16 ? dnnl_bf16 : dnnl_f32;
  dnnl_dims_t a = {p->m, p->k}, b = {p->k, p->n}, c = {p->m, p->n};
  dnnl_dims_t step_a = {p->trans_a ? 1 : p->lda, p->trans_a ? p->lda : 1};
  dnnl_dims_t step_b = {p->trans_b ? 1 : p->ldb, p->trans_b ? p->ldb : 1};
  dnnl_dims_t step_c = {p->ldc, 1};
  return ch_onednn_describe(&m->a, type, a, step_a) || ch_onednn_describe(&m->b, type, b, step_b) ||
         ch_onednn_describe(&m->c, dnnl_f32, c, step_c);
}

/* User scratchpad; alpha and += are part of the product. */
static int make_attributes(const ch_product *p, dnnl_primitive_attr_t *attributes) {
  if (dnnl_primitive_attr_create(attributes)) return 1;
  int failed = dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user) ||
               ch_onednn_epilogue(*attributes, p->alpha, p->accumulate);
  if (failed) dnnl_primitive_attr_destroy(*attributes);
  return failed;
}

static void destroy_run(run *r) {
  const dnnl_memory_t part[] = {r->a, r->b, r->c, r->scratch};
  for (int i = 0; i < 4; i++)
    if (part[i]) dnnl_memory_destroy(part[i]);
  free(r->own);
  free(r);
}

static void destroy(matmul *m) {
  for (int i = 0; i < POOL; i++)
    if (m->pool[i]) destroy_run(m->pool[i]);
  if (m->primitive) dnnl_primitive_destroy(m->primitive);
  if (m->desc) dnnl_primitive_desc_destroy(m->desc);
  ch_onednn_forget(&m->a), ch_onednn_forget(&m->b), ch_onednn_forget(&m->c);
  free(m);
}

static matmul *make(const ch_product *p) {
  if (!stream &&
      (dnnl_engine_create(&engine, dnnl_cpu, 0) || dnnl_stream_create(&stream, engine, dnnl_stream_default_flags)))
    return NULL;
  matmul *m = calloc(1, sizeof *m);
  dnnl_primitive_attr_t attributes;
  if (!m) return NULL;
  m->key = shape_of(p);
  if (describe(p, m) || make_attributes(p, &attributes)) return destroy(m), NULL;
  int failed = ch_onednn_matmul(&m->desc, engine, ch_onednn_see(&m->a), ch_onednn_see(&m->b), ch_onednn_see(&m->c),
                                attributes) ||
               dnnl_primitive_create(&m->primitive, m->desc);
  dnnl_primitive_attr_destroy(attributes);
  if (failed) return destroy(m), NULL;
  m->scratch = dnnl_primitive_desc_query_md(m->desc, dnnl_query_scratchpad_md, 0);
  m->scratch_bytes = dnnl_memory_desc_get_size(m->scratch);
  return m;
}

/* The primitive of this shape. *kept 0: the table is full, the caller destroys it. */
static matmul *find(const ch_product *p, int *kept) {
  shape key = shape_of(p);
  size_t first = slot_of(&key), i;
  matmul *m;
  *kept = 1;
  for (i = first; (m = atomic_load_explicit(&table[i % TABLE], memory_order_acquire)); i++)
    if (same(&m->key, &key)) return m;
  pthread_mutex_lock(&lock);
  for (; (m = table[i % TABLE]); i++) /* another thread may have added it meanwhile */
    if (same(&m->key, &key)) break;
  if (!m && (m = make(p))) {
    if (entries < MOST)
      atomic_store_explicit(&table[i % TABLE], m, memory_order_release), entries++;
    else
      *kept = 0;
  }
  pthread_mutex_unlock(&lock);
  return m;
}

static run *take_run(matmul *m) {
  for (int i = 0; i < POOL; i++) {
    run *r = atomic_exchange(&m->pool[i], NULL);
    if (r) return r;
  }
  run *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  if (m->scratch_bytes > CH_MATMUL_SCRATCH && !(r->own = aligned_alloc(64, (m->scratch_bytes + 63) & ~(size_t)63)))
    return free(r), NULL;
  if (dnnl_memory_create(&r->a, ch_onednn_see(&m->a), engine, DNNL_MEMORY_NONE) ||
      dnnl_memory_create(&r->b, ch_onednn_see(&m->b), engine, DNNL_MEMORY_NONE) ||
      dnnl_memory_create(&r->c, ch_onednn_see(&m->c), engine, DNNL_MEMORY_NONE) ||
      dnnl_memory_create(&r->scratch, m->scratch, engine, DNNL_MEMORY_NONE))
    return destroy_run(r), NULL;
  return r;
}

static void return_run(matmul *m, run *r) {
  for (int i = 0; i < POOL && r; i++) r = atomic_exchange(&m->pool[i], r);
  if (r) destroy_run(r);
}

static int execute(matmul *m, run *r, const ch_product *p, void *scratch) {
  if (dnnl_memory_set_data_handle(r->a, (void *)p->a) || dnnl_memory_set_data_handle(r->b, (void *)p->b) ||
      dnnl_memory_set_data_handle(r->c, p->c) || dnnl_memory_set_data_handle(r->scratch, r->own ? r->own : scratch))
    return 1;
  const dnnl_exec_arg_t arguments[] = {
      {DNNL_ARG_SRC, r->a}, {DNNL_ARG_WEIGHTS, r->b}, {DNNL_ARG_DST, r->c}, {DNNL_ARG_SCRATCHPAD, r->scratch}};
  return dnnl_primitive_execute(m->primitive, stream, 4, arguments) != dnnl_success;
}

int ch_product_matmul(const ch_product *p, void *scratch) {
  int kept;
  matmul *m = find(p, &kept);
  if (!m) return 1;
  run *r = take_run(m);
  int failed = !r || execute(m, r, p, scratch);
  if (r) return_run(m, r);
  if (!kept) destroy(m);
  return failed;
}
