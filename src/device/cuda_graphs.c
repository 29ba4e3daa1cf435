#include "device/cuda_graphs.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
  MIN_GRAPH = 4, /* min commands per graph; fewer are not slower without */
  GRAPHS = 64    /* that are kept */
};

/* A captured sequence of commands. node: graph node of each LAUNCH; list: commands with their last arguments. */
typedef struct cuda_graph {
  cuda_handle graph, exec, *node;
  cuda_command *list;
  int count;
  uint64_t shape, used; /* used: when */
} cuda_graph;

static cuda_handle stream;
static const cuda_handle *functions;
static cuda_issue *issue;
static cuda_graph graphs[GRAPHS];
static int graph_count, without_graphs;
static uint64_t seen[GRAPHS], runs; /* shapes of sequences that ran without a graph */
static const char *called = "";     /* the last CUDA function, for messages */

void ch_cuda_graphs_open(cuda_handle on, const cuda_handle *function, cuda_issue *one) {
  const char *wanted = getenv("CHOIR_CUDA_GRAPHS"); /* "1": off by default, because graphs have not been timed */
  stream = on;
  functions = function;
  issue = one;
  without_graphs = !wanted || strcmp(wanted, "1") || !ch_cuda_has_graphs();
}

int ch_cuda_graphs_on(void) { return !without_graphs; }

/* Two commands have the same shape if they differ at most in kernel arguments. */
static int same_shape(const cuda_command *a, const cuda_command *b) {
  return a->kind == b->kind && a->kernel == b->kernel && a->count == b->count &&
         (a->kind == LAUNCH || !memcmp(a->args, b->args, CH_CUDA_ARGS));
}

/* Hash of a sequence's shape. */
static uint64_t sequence_shape(const cuda_command *list, int count) {
  uint64_t h = (uint64_t)count;
#define MIX(word) h = (h ^ (uint64_t)(word)) * 0x9E3779B97F4A7C15u, h ^= h >> 29
  for (int i = 0; i < count; i++) {
    MIX(list[i].kind << 16 | (int)list[i].kernel);
    MIX(list[i].count);
    for (int w = 0; w < CH_CUDA_ARGS / 8 && list[i].kind != LAUNCH; w++) MIX(list[i].words[w]);
  }
  return h;
}

static int fits_graph(const cuda_graph *g, uint64_t shape, const cuda_command *list, int count) {
  if (g->shape != shape || g->count != count) return 0;
  for (int i = 0; i < count; i++)
    if (!same_shape(&g->list[i], &list[i])) return 0;
  return 1;
}

static void free_graph(cuda_graph *g) {
  if (g->exec) ch_cuda.cuGraphExecDestroy(g->exec);
  if (g->graph) ch_cuda.cuGraphDestroy(g->graph);
  free(g->node);
  free(g->list);
  *g = (cuda_graph){0};
}

/* Disables graphs; results are the same without them. */
static void go_without_graphs(int code) {
  without_graphs = 1;
  ch_notice("backend 'cuda': %s failed: %s; kernels are launched one by one, not as graphs", called,
            ch_cuda_reason(called, code).text);
}

/* The node captured last, i.e. the dependency of the next node. */
static int find_node(cuda_handle *node) {
  enum { CUDA_ERROR_INVALID_VALUE = 1 };
  int status;
  uint64_t id;
  cuda_handle graph;
  const cuda_handle *last;
  size_t number = 0;
  int code = NAMED(&called, cuStreamGetCaptureInfo_v2, stream, &status, &id, &graph, &last, &number);
  if (!code && number != 1) code = CUDA_ERROR_INVALID_VALUE;
  if (!code) *node = *last;
  return code;
}

/* Captures g's list as a graph; returns CUDA's error. */
static int capture(cuda_graph *g) {
  int code = NAMED(&called, cuStreamBeginCapture_v2, stream, CAPTURE_RELAXED);
  if (code) return code;
  for (int i = 0; i < g->count && !code; i++) {
    code = issue(&g->list[i], &called);
    if (!code && g->list[i].kind == LAUNCH) code = find_node(&g->node[i]);
  }
  int ended = ch_cuda.cuStreamEndCapture(stream, &g->graph); /* also after a failed capture */
  if (!code && ended) code = ended, called = "cuStreamEndCapture";
  return code ? code : NAMED(&called, cuGraphInstantiateWithFlags, &g->exec, g->graph, 0);
}

/* A place for another graph; if all are in use, evicts the least recently used graph. */
static cuda_graph *graph_place(void) {
  cuda_graph *oldest = graphs;
  if (graph_count < GRAPHS) return &graphs[graph_count++];
  for (int i = 1; i < GRAPHS; i++)
    if (graphs[i].used < oldest->used) oldest = &graphs[i];
  free_graph(oldest);
  return oldest;
}

/* Captures commands; NULL: CUDA reported an error. */
static cuda_graph *graph_new(uint64_t shape, const cuda_command *list, int count) {
  cuda_graph *g = graph_place();
  *g = (cuda_graph){.count = count, .shape = shape};
  g->list = calloc((size_t)count, sizeof *g->list);
  g->node = calloc((size_t)count, sizeof *g->node);
  if (g->list && g->node) memcpy(g->list, list, (size_t)count * sizeof *g->list);
  int code = g->list && g->node ? capture(g) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!code) return g;
  free_graph(g);
  go_without_graphs(code);
  return NULL;
}

/* The graph for these commands, captured now if their shape ran before; NULL: issue them one by one. */
static cuda_graph *find_graph(const cuda_command *list, int count) {
  if (without_graphs || count < MIN_GRAPH) return NULL;
  uint64_t shape = sequence_shape(list, count);
  for (int i = 0; i < graph_count; i++)
    if (fits_graph(&graphs[i], shape, list, count)) return &graphs[i];
  for (int i = 0; i < GRAPHS; i++)
    if (seen[i] == shape) return seen[i] = 0, graph_new(shape, list, count);
  seen[runs % GRAPHS] = shape;
  return NULL;
}

/* Updates a graph's kernel arguments and launches it; 0: nothing was launched. */
static int launch_graph(cuda_graph *g, const cuda_command *list) {
  int code = 0;
  for (int i = 0; i < g->count && !code; i++) {
    cuda_command *to = &g->list[i];
    if (!memcmp(to->args, list[i].args, CH_CUDA_ARGS)) continue;
    *to = list[i];
    void *parameters[] = {to->args};
    cuda_node_params params = {
        functions[to->kernel], (unsigned)to->count, 1, 1, ch_cuda_items(to->kernel), 1, 1, 0, parameters, NULL};
    code = NAMED(&called, cuGraphExecKernelNodeSetParams, g->exec, g->node[i], &params);
  }
  g->used = runs;
  if (!code) code = NAMED(&called, cuGraphLaunch, g->exec, stream);
  if (code) go_without_graphs(code);
  return !code;
}

int ch_cuda_graphs_launch(const cuda_command *list, int count) {
  cuda_graph *g = find_graph(list, count);
  runs++;
  return g && launch_graph(g, list);
}

void ch_cuda_graphs_clear(void) {
  while (graph_count) free_graph(&graphs[--graph_count]);
}
