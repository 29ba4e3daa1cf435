#include "device/cuda_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
  ARGS = 160,          /* bytes of a kernel's arguments at most */
  MAX_COMMANDS = 8192, /* that wait */
  MIN_GRAPH = 4,       /* commands; fewer are launched as fast */
  GRAPHS = 64          /* that are kept */
};
static const size_t STAGING = (size_t)4 << 20,
                    WORKSPACE = (size_t)32 << 20; /* of host arrays; what cuBLAS recommends */
#define ARGS_FIT(name) _Static_assert(sizeof(name##_args) <= ARGS, "ARGS is too small for " #name);
KERNELS(ARGS_FIT)

/* A call that waits. All bytes that nothing sets are 0. */
typedef struct queue_command {
  enum { LAUNCH, MULTIPLY, ZERO, COPY, PUT } kind;
  ch_kernel kernel; /* LAUNCH */
  int64_t count;    /* groups of a LAUNCH, products of a MULTIPLY */
  union {
    char args[ARGS]; /* LAUNCH */
    product_args product;
    struct {
      device_address to, from; /* of a PUT: where it begins in `staging` */
      size_t bytes;
    };
    uint64_t words[ARGS / sizeof(uint64_t)];
  };
} queue_command;

/* Commands that were captured. Of a LAUNCH `node` is its place in the graph, and `list` has its last arguments. */
typedef struct queue_graph {
  cuda_handle graph, exec, *node;
  queue_command *list;
  int count;
  uint64_t shape, used; /* used: when */
} queue_graph;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_handle stream, cublas;
static const cuda_handle *functions;
static int unbuffered;
static queue_command waiting[MAX_COMMANDS];
static int count;
static char *staging; /* memory of the host's that the device reads on its own */
static size_t staged; /* bytes in use until the device has been waited for */
static queue_graph graphs[GRAPHS];
static int graph_count, without_graphs;
static uint64_t seen[GRAPHS], runs; /* shapes that ran, but for those of graphs */

int ch_cuda_queue_open(const cuda_handle *function, cuda_handle blas, int at_once) {
  device_address workspace = 0;
  functions = function;
  cublas = blas;
  unbuffered = at_once;
  const char *wanted = getenv("CHOIR_CUDA_GRAPHS"); /* "1": until graphs are timed, plain launches are the default */
  without_graphs = at_once || !wanted || strcmp(wanted, "1") || !ch_cuda_has_graphs();
  return CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING) && CALL(cublasSetStream_v2, cublas, stream) &&
         CALL(cuMemAlloc_v2, &workspace, WORKSPACE) &&
         CALL(cublasSetWorkspace_v2, cublas, (void *)(uintptr_t)workspace,
              WORKSPACE) && /* else a graph would allocate */
         CALL(cuMemHostAlloc, (void **)&staging, STAGING, 0);
}

/* ---- one command ---- */

/* The result of a call of CUDA's, whose name is kept for a message. */
static const char *called = "";
#define NAMED(name, ...) (called = #name, ch_cuda.name(__VA_ARGS__))

static unsigned items_of(ch_kernel kernel) { return kernel == CH_KERNEL_product ? TILE * TILE : GROUP; }

/* cuBLAS has columns where choir has rows: C^T = op(B)^T op(A)^T. */
static int issue_product(const product_args *p, int64_t batch) {
  int type = p->a_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F, c_type = p->c_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
  float beta = p->accumulate ? 1 : 0;
  return NAMED(cublasGemmStridedBatchedEx, cublas, p->trans_b, p->trans_a, (int)p->n, (int)p->m, (int)p->k, &p->alpha,
               (const void *)p->b, type, (int)p->ldb, p->b_stride, (const void *)p->a, type, (int)p->lda, p->a_stride,
               &beta, (void *)p->c, c_type, (int)p->ldc, p->c_stride, (int)batch, CUBLAS_COMPUTE_32F,
               CUBLAS_GEMM_DEFAULT);
}

/* To the stream; gives CUDA's error. */
static int issue(queue_command *c) {
  void *parameters[] = {c->args};
  switch (c->kind) {
    case LAUNCH:
      return NAMED(cuLaunchKernel, functions[c->kernel], (unsigned)c->count, 1, 1, items_of(c->kernel), 1, 1, 0, stream,
                   parameters, NULL);
    case MULTIPLY:
      return issue_product(&c->product, c->count);
    case ZERO:
      return NAMED(cuMemsetD8Async, c->to, 0, c->bytes, stream);
    case COPY:
      return NAMED(cuMemcpyDtoDAsync_v2, c->to, c->from, c->bytes, stream);
    case PUT:
      return NAMED(cuMemcpyHtoDAsync_v2, c->to, staging + c->from, c->bytes, stream);
  }
  return 0;
}

/* ---- graphs ---- */

/* Of two commands of one shape only the arguments of a kernel differ. */
static int same_shape(const queue_command *a, const queue_command *b) {
  return a->kind == b->kind && a->kernel == b->kernel && a->count == b->count &&
         (a->kind == LAUNCH || !memcmp(a->args, b->args, ARGS));
}

/* A number that sequences of one shape share. */
static uint64_t shape_of_waiting(void) {
  uint64_t h = (uint64_t)count;
#define MIX(word) h = (h ^ (uint64_t)(word)) * 0x9E3779B97F4A7C15u, h ^= h >> 29
  for (int i = 0; i < count; i++) {
    MIX(waiting[i].kind << 16 | (int)waiting[i].kernel);
    MIX(waiting[i].count);
    for (int w = 0; w < ARGS / 8 && waiting[i].kind != LAUNCH; w++) MIX(waiting[i].words[w]);
  }
  return h;
}

static int fits_graph(const queue_graph *g, uint64_t shape) {
  if (g->shape != shape || g->count != count) return 0;
  for (int i = 0; i < count; i++)
    if (!same_shape(&g->list[i], &waiting[i])) return 0;
  return 1;
}

static void free_graph(queue_graph *g) {
  if (g->exec) ch_cuda.cuGraphExecDestroy(g->exec);
  if (g->graph) ch_cuda.cuGraphDestroy(g->graph);
  free(g->node);
  free(g->list);
  *g = (queue_graph){0};
}

/* Results are the same without graphs. */
static void go_without_graphs(int code) {
  without_graphs = 1;
  ch_notice("backend 'cuda': %s failed: %s; kernels are launched one by one, not as graphs", called,
            ch_cuda_reason(called, code).text);
}

/* The node of what was captured last: what the next would wait for. */
static int find_node(cuda_handle *node) {
  enum { CUDA_ERROR_INVALID_VALUE = 1 };
  int status;
  uint64_t id;
  cuda_handle graph;
  const cuda_handle *last;
  size_t number = 0;
  int code = NAMED(cuStreamGetCaptureInfo_v2, stream, &status, &id, &graph, &last, &number);
  if (!code && number != 1) code = CUDA_ERROR_INVALID_VALUE;
  if (!code) *node = *last;
  return code;
}

/* Makes a graph of its list; gives CUDA's error. */
static int capture(queue_graph *g) {
  int code = NAMED(cuStreamBeginCapture_v2, stream, CAPTURE_RELAXED);
  if (code) return code;
  for (int i = 0; i < g->count && !code; i++) {
    code = issue(&g->list[i]);
    if (!code && g->list[i].kind == LAUNCH) code = find_node(&g->node[i]);
  }
  int ended = ch_cuda.cuStreamEndCapture(stream, &g->graph); /* of a capture that failed, too */
  if (!code && ended) code = ended, called = "cuStreamEndCapture";
  return code ? code : NAMED(cuGraphInstantiateWithFlags, &g->exec, g->graph, 0);
}

/* Room for another graph: if all places are taken, the graph that ran least recently makes room. */
static queue_graph *graph_place(void) {
  queue_graph *oldest = graphs;
  if (graph_count < GRAPHS) return &graphs[graph_count++];
  for (int i = 1; i < GRAPHS; i++)
    if (graphs[i].used < oldest->used) oldest = &graphs[i];
  free_graph(oldest);
  return oldest;
}

/* Captures the waiting commands; NULL: CUDA refused. */
static queue_graph *graph_new(uint64_t shape) {
  queue_graph *g = graph_place();
  *g = (queue_graph){.count = count, .shape = shape};
  g->list = calloc((size_t)count, sizeof *g->list);
  g->node = calloc((size_t)count, sizeof *g->node);
  if (g->list && g->node) memcpy(g->list, waiting, (size_t)count * sizeof *g->list);
  int code = g->list && g->node ? capture(g) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!code) return g;
  free_graph(g);
  go_without_graphs(code);
  return NULL;
}

/* The graph of the waiting commands, captured now if their shape ran before; NULL: launch one by one. */
static queue_graph *find_graph(void) {
  if (without_graphs || count < MIN_GRAPH) return NULL;
  uint64_t shape = shape_of_waiting();
  for (int i = 0; i < graph_count; i++)
    if (fits_graph(&graphs[i], shape)) return &graphs[i];
  for (int i = 0; i < GRAPHS; i++)
    if (seen[i] == shape) return seen[i] = 0, graph_new(shape);
  seen[runs % GRAPHS] = shape;
  return NULL;
}

/* Gives a graph the waiting arguments, and launches it; 0: nothing was launched. */
static int launch_graph(queue_graph *g) {
  int code = 0;
  for (int i = 0; i < count && !code; i++) {
    queue_command *to = &g->list[i];
    if (!memcmp(to->args, waiting[i].args, ARGS)) continue;
    *to = waiting[i];
    void *parameters[] = {to->args};
    cuda_node_params params = {
        functions[to->kernel], (unsigned)to->count, 1, 1, items_of(to->kernel), 1, 1, 0, parameters, NULL};
    code = NAMED(cuGraphExecKernelNodeSetParams, g->exec, g->node[i], &params);
  }
  g->used = runs;
  if (!code) code = NAMED(cuGraphLaunch, g->exec, stream);
  if (code) go_without_graphs(code);
  return !code;
}

/* ---- all that waits ---- */

static void run_all(void) {
  queue_graph *g = count && !ch_cuda_driver.failed ? find_graph() : NULL;
  runs++;
  if (!g || !launch_graph(g))
    for (int i = 0; i < count && !ch_cuda_driver.failed; i++) {
      int code = issue(&waiting[i]);
      ch_cuda_kernel_is_well(called, waiting[i].kind == LAUNCH ? ch_kernel_infos[waiting[i].kernel].name : NULL, code);
    }
  count = 0;
}

/* Also after a failure: the stream still uses memory of the host and of the device until all that was launched before
 * it has run. A wait that fails is tried once more for the same reason; if the device is lost, nothing runs on it. */
static void wait_for_all(void) {
  run_all();
  if (!CALL(cuStreamSynchronize, stream)) ch_cuda.cuStreamSynchronize(stream);
  staged = 0;
}

/* One more to fill in, all 0. */
static queue_command *command_new(int kind) {
  if (count == MAX_COMMANDS) wait_for_all();
  queue_command *c = &waiting[count++];
  memset(c, 0, sizeof *c);
  c->kind = kind;
  return c;
}

/* The same for one thread at a time, up to `end_command`. */
static queue_command *begin_command(int kind) {
  pthread_mutex_lock(&lock);
  return command_new(kind);
}

static void end_command(void) {
  if (unbuffered) wait_for_all();
  pthread_mutex_unlock(&lock);
}

void ch_cuda_queue_launch(ch_kernel kernel, int64_t groups, const void *args) {
  queue_command *c = begin_command(LAUNCH);
  c->kernel = kernel;
  c->count = groups;
  memcpy(c->args, args, ch_kernel_infos[kernel].bytes);
  end_command();
}

void ch_cuda_queue_multiply(const product_args *p, int64_t batch) {
  queue_command *c = begin_command(MULTIPLY);
  c->count = batch;
  c->product = *p;
  end_command();
}

static void queue_move(int kind, device_address to, device_address from, size_t bytes) {
  queue_command *c = begin_command(kind);
  c->to = to;
  c->from = from;
  c->bytes = bytes;
  end_command();
}

void ch_cuda_queue_zero(device_address to, size_t bytes) { queue_move(ZERO, to, 0, bytes); }
void ch_cuda_queue_copy(device_address to, device_address from, size_t bytes) { queue_move(COPY, to, from, bytes); }

/* Many bytes are not staged: the device waits for them. */
static void upload_now(device_address to, const void *from, size_t bytes) {
  pthread_mutex_lock(&lock);
  run_all();
  if (!ch_cuda_driver.failed) CALL(cuMemcpyHtoDAsync_v2, to, from, bytes, stream);
  wait_for_all();
  pthread_mutex_unlock(&lock);
}

void ch_cuda_queue_upload(device_address to, const void *from, size_t bytes) {
  if (bytes > STAGING / 4) {
    upload_now(to, from, bytes);
    return;
  }
  pthread_mutex_lock(&lock);
  if (staged + bytes > STAGING) wait_for_all();
  queue_command *c = command_new(PUT);
  c->to = to;
  c->from = staged;
  c->bytes = bytes;
  memcpy(staging + staged, from, bytes);
  staged += (bytes + 63) / 64 * 64;
  end_command();
}

void ch_cuda_queue_run(void) {
  pthread_mutex_lock(&lock);
  run_all();
  pthread_mutex_unlock(&lock);
}

void ch_cuda_queue_wait(void) {
  pthread_mutex_lock(&lock);
  wait_for_all();
  pthread_mutex_unlock(&lock);
}

void ch_cuda_queue_download(void *to, device_address from, size_t bytes) {
  pthread_mutex_lock(&lock);
  run_all();
  if (!ch_cuda_driver.failed) CALL(cuMemcpyDtoHAsync_v2, to, from, bytes, stream);
  wait_for_all();
  pthread_mutex_unlock(&lock);
}

void ch_cuda_queue_clear(void) {
  pthread_mutex_lock(&lock);
  wait_for_all();
  while (graph_count) free_graph(&graphs[--graph_count]);
  pthread_mutex_unlock(&lock);
}
