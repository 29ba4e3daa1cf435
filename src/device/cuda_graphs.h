/* Commands of the queue (cuda_queue.h), and repeated sequences of them as CUDA graphs. A sequence of the same commands
 * runs as a graph from its second time on: one launch, after one update per kernel whose arguments have changed
 * (learning rates, seeds). All commands are compared with the graph's, so that the graph does exactly what single
 * launches would do. Off unless CHOIR_CUDA_GRAPHS is 1 and the driver has graphs; the queue then issues each command at
 * once, with the same bits. The queue's lock protects this state. */
#ifndef CH_DEVICE_CUDA_GRAPHS_H
#define CH_DEVICE_CUDA_GRAPHS_H

#include "device/cuda_calls.h"

enum { CH_CUDA_ARGS = 160 }; /* max bytes of a kernel's arguments */

/* A queued command. Unused bytes are 0. */
typedef struct cuda_command {
  enum { LAUNCH, MULTIPLY, ZERO, COPY, PUT } kind;
  ch_kernel kernel; /* LAUNCH */
  int64_t count;    /* groups of a LAUNCH, products of a MULTIPLY */
  union {
    char args[CH_CUDA_ARGS]; /* LAUNCH */
    product_args product;
    struct {
      device_address to, from; /* PUT: offset in the queue's staging memory */
      size_t bytes;
    };
    uint64_t words[CH_CUDA_ARGS / sizeof(uint64_t)];
  };
} cuda_command;

/* Threads per block of a kernel. */
static inline unsigned ch_cuda_items(ch_kernel kernel) { return kernel == CH_KERNEL_product ? TILE * TILE : GROUP; }

/* Issues a command to the stream; returns CUDA's error, and the function's name in *call. */
typedef int cuda_issue(cuda_command *c, const char **call);

/* Initializes without graphs. function: the CUDA function of each kernel. */
void ch_cuda_graphs_open(cuda_handle stream, const cuda_handle *function, cuda_issue *issue);

/* Whether sequences of commands may become graphs, so that it is worth collecting them. */
int ch_cuda_graphs_on(void);

/* Runs commands as a graph, which is captured now if the same sequence ran before. 0: nothing was launched; the queue
 * must issue the commands. If a graph function fails, adds a notice and disables graphs. */
int ch_cuda_graphs_launch(const cuda_command *list, int count);

/* Frees all graphs; call before freeing memory that their commands use. */
void ch_cuda_graphs_clear(void);

#endif
