/* The stream, what is captured from it, and graphs. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

enum { RUNNING = 1, NOT_PINNED = 900, MAX_NODES = 1 << 20 };

typedef struct {
  fake_task *task;
  int count, capacity;
} task_list;
/* What was captured; an executable graph is a copy of its tasks that knows where it comes from. Numbers of nodes are
 * unique. */
typedef struct fake_graph {
  task_list list;
  const struct fake_graph *of;
  uintptr_t first; /* number of the first node */
} fake_graph;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char stream[1];
static int streams;
static task_list waiting;
static fake_graph *capturing;
static long calls, captured, replayed, launched[256], products;
static char *pinned;
static size_t pinned_bytes;

int fake_is_busy(void) { return waiting.count > 0; }
int fake_is_stream(const void *s) { return streams && s == stream; }

void *fake_pinned(size_t bytes) {
  if (pinned) fake_wrong("cuMemHostAlloc, a second time");
  pinned_bytes = bytes;
  return pinned = calloc(1, bytes);
}

void fake_report_stream(FILE *file) {
  fprintf(file, "%ld calls launched a kernel, %ld a graph, of %ld\ncublas %ld\n", calls, replayed, captured, products);
  for (int i = 0; fake_kernels[i].name; i++) fprintf(file, "%s %ld\n", fake_kernels[i].name, launched[i]);
}

/* For a test in this process (test_graphs.c). */
__attribute__((visibility("default"))) void fake_count_calls(long *launches, long *graphs) {
  *launches = calls;
  *graphs = replayed;
}

static void list_add(task_list *list, const fake_task *t) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity ? 2 * list->capacity : 64;
    list->task = realloc(list->task, (size_t)list->capacity * sizeof *list->task);
    if (!list->task) fake_wrong("no memory for tasks");
  }
  list->task[list->count++] = *t;
}

void fake_enqueue(const fake_task *t) {
  pthread_mutex_lock(&lock);
  list_add(capturing ? &capturing->list : &waiting, t);
  pthread_mutex_unlock(&lock);
}

/* Whole pages become 0 for nothing. */
static void set_to_zero(char *at, size_t bytes) {
  if (bytes > 1 << 20 && !fake_takes_host_pointers() && (uintptr_t)at % 4096 == 0) {
    size_t whole = bytes / 4096 * 4096;
    madvise(at, whole, MADV_DONTNEED);
    at += whole;
    bytes -= whole;
  }
  memset(at, 0, bytes);
}

static void task_run(fake_task *t) {
  switch (t->kind) {
    case FAKE_KERNEL:
      fake_run(t->kernel, t->groups, (int)t->items, t->args);
      launched[t->kernel - fake_kernels]++;
      break;
    case FAKE_SET:
      set_to_zero(t->to, t->bytes);
      break;
    case FAKE_MOVE:
      memmove(t->to, t->from, t->bytes);
      break;
    case FAKE_PRODUCT:
      fake_multiply(&t->product), products++;
      break;
  }
  free(t->own);
}

#define BEGIN_ON_STREAM(name, s) \
  BEGIN_IN_CONTEXT(name);        \
  if (!fake_is_stream(s)) fake_wrong(#name ": another stream")

CALL cuStreamCreate(void **to, unsigned flags) {
  BEGIN_IN_CONTEXT(cuStreamCreate);
  if (flags != 1 || streams++) fake_wrong("cuStreamCreate");
  *to = stream;
  return 0;
}
CALL cuStreamSynchronize(void *s) {
  BEGIN_ON_STREAM(cuStreamSynchronize, s);
  if (capturing) fake_wrong("cuStreamSynchronize of a stream that is captured");
  pthread_mutex_lock(&lock);
  for (int i = 0; i < waiting.count; i++) task_run(&waiting.task[i]);
  waiting.count = 0;
  pthread_mutex_unlock(&lock);
  return 0;
}

/* ---- tasks ---- */

CALL cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *s) {
  BEGIN_ON_STREAM(cuMemsetD8Async, s);
  if (value) fake_wrong("cuMemsetD8Async");
  fake_enqueue(
      &(fake_task){.kind = FAKE_SET, .to = fake_bytes((void *)(uintptr_t)to, bytes, "cuMemsetD8"), .bytes = bytes});
  return 0;
}
static void move(void *to, const void *from, size_t bytes, char *own) {
  fake_enqueue(&(fake_task){.kind = FAKE_MOVE, .to = to, .from = from, .bytes = bytes, .own = own});
}
/* What is not pinned has been read when the call returns, and cannot be captured. */
CALL cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *s) {
  BEGIN_ON_STREAM(cuMemcpyHtoDAsync_v2, s);
  char *own = NULL, *at = fake_bytes((void *)(uintptr_t)to, bytes, "cuMemcpyHtoD");
  const char *source = fake_on_host(from, "cuMemcpyHtoD");
  if (source < pinned || source + bytes > pinned + pinned_bytes) {
    if (capturing) return NOT_PINNED;
    if (!(own = malloc(bytes))) fake_wrong("no memory for a copy");
    source = memcpy(own, source, bytes);
  }
  move(at, source, bytes, own);
  return 0;
}
CALL cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *s) {
  BEGIN_ON_STREAM(cuMemcpyDtoHAsync_v2, s);
  if (capturing) return NOT_PINNED;
  move(fake_on_host(to, "cuMemcpyDtoH"), fake_bytes((void *)(uintptr_t)from, bytes, "cuMemcpyDtoH"), bytes, NULL);
  return 0;
}
CALL cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *s) {
  BEGIN_ON_STREAM(cuMemcpyDtoDAsync_v2, s);
  move(fake_bytes((void *)(uintptr_t)to, bytes, "cuMemcpyDtoD"),
       fake_bytes((void *)(uintptr_t)from, bytes, "cuMemcpyDtoD"), bytes, NULL);
  return 0;
}
CALL cuLaunchKernel(void *f, unsigned groups, unsigned y, unsigned z, unsigned items, unsigned item_y, unsigned item_z,
                    unsigned shared, void *s, void **parameters, void **extra) {
  BEGIN_ON_STREAM(cuLaunchKernel, s);
  const fake_kernel *kernel = f;
  fake_task t = {.kind = FAKE_KERNEL, .kernel = kernel, .groups = groups, .items = items};
  if (!groups || groups > INT32_MAX || y != 1 || z != 1 || !items || items > 1024 || item_y != 1 || item_z != 1 ||
      shared || extra || kernel->bytes > sizeof t.args)
    fake_wrong("%s: %u groups of %u items", kernel->name, groups, items);
  memcpy(t.args, parameters[0], kernel->bytes);
  fake_enqueue(&t);
  calls++;
  return 0;
}

/* ---- graphs ---- */

CALL cuStreamBeginCapture_v2(void *s, int mode) {
  static uintptr_t graphs;
  BEGIN_ON_STREAM(cuStreamBeginCapture_v2, s);
  if (capturing || mode != 2) fake_wrong("cuStreamBeginCapture");
  capturing = calloc(1, sizeof *capturing);
  if (!capturing) fake_wrong("no memory for a graph");
  capturing->first = ++graphs * MAX_NODES;
  return 0;
}
CALL cuStreamGetCaptureInfo_v2(void *s, int *status, uint64_t *id, void **graph, void *const **last, size_t *count) {
  static void *node;
  BEGIN_ON_STREAM(cuStreamGetCaptureInfo_v2, s);
  if (!capturing || !capturing->list.count) fake_wrong("cuStreamGetCaptureInfo");
  node = (void *)(capturing->first + (uintptr_t)capturing->list.count - 1); /* NOLINT: a number */
  *status = RUNNING;
  *id = 1;
  *graph = capturing;
  *last = &node;
  *count = 1;
  return 0;
}
CALL cuStreamEndCapture(void *s, void **graph) {
  if (!fake_is_stream(s) || !capturing) fake_wrong("cuStreamEndCapture");
  *graph = capturing;
  capturing = NULL;
  return fake_fails("cuStreamEndCapture") ? LOST : 0;
}
CALL cuGraphInstantiateWithFlags(void **to, void *graph, unsigned long long flags) {
  BEGIN_IN_CONTEXT(cuGraphInstantiateWithFlags);
  const fake_graph *of = graph;
  fake_graph *exec = calloc(1, sizeof *exec);
  if (flags || !exec) fake_wrong("cuGraphInstantiateWithFlags");
  for (int i = 0; i < of->list.count; i++) list_add(&exec->list, &of->list.task[i]);
  exec->of = of;
  captured++;
  *to = exec;
  return 0;
}
/* What the CUDA of the headers calls CUDA_KERNEL_NODE_PARAMS_v1. */
typedef struct {
  const fake_kernel *kernel;
  unsigned groups[3], items[3], shared;
  void **parameters, **extra;
} node_params;
CALL cuGraphExecKernelNodeSetParams(void *exec, void *node, const node_params *p) {
  BEGIN_IN_CONTEXT(cuGraphExecKernelNodeSetParams);
  const fake_graph *e = exec;
  uintptr_t i = (uintptr_t)node - e->of->first;
  if (!e->of->list.count) fake_wrong("cuGraphExecKernelNodeSetParams of a graph that is destroyed");
  if (i >= (uintptr_t)e->list.count || e->list.task[i].kind != FAKE_KERNEL) fake_wrong("this is no node of a kernel");
  fake_task *t = &e->list.task[i];
  if (p->kernel != t->kernel || p->groups[0] != t->groups || p->items[0] != t->items || p->groups[1] != 1 ||
      p->groups[2] != 1 || p->items[1] != 1 || p->items[2] != 1 || p->shared || p->extra)
    fake_wrong("%s: another kernel for its node", t->kernel->name);
  memcpy(t->args, p->parameters[0], t->kernel->bytes);
  return 0;
}
CALL cuGraphLaunch(void *exec, void *s) {
  BEGIN_ON_STREAM(cuGraphLaunch, s);
  const fake_graph *e = exec;
  if (capturing) fake_wrong("cuGraphLaunch while the stream is captured");
  for (int i = 0; i < e->list.count; i++) fake_enqueue(&e->list.task[i]);
  replayed++;
  return 0;
}
CALL cuGraphExecDestroy(void *exec) {
  fake_graph *e = exec;
  free(e->list.task);
  free(e);
  return 0;
}
CALL cuGraphDestroy(void *graph) { /* what is left of it says so */
  fake_graph *g = graph;
  free(g->list.task);
  g->list = (task_list){0};
  return 0;
}
