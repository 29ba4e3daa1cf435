/* Commands of the queue (cuda_queue.h), and repeated sequences of them as CUDA graphs. A sequence of the same commands
 * runs as a graph from its second time on: one call for all, after one for each kernel whose arguments have changed
 * (learning rates, seeds). All commands are compared with the graph's, so that the graph runs exactly what would have
 * been launched. Off unless CHOIR_CUDA_GRAPHS is 1 and the driver has graphs: the queue then issues one by one, which
 * gives the same bits. The queue's lock guards all of it. */
#ifndef CH_DEVICE_CUDA_GRAPHS_H
#define CH_DEVICE_CUDA_GRAPHS_H

#include "device/cuda_calls.h"

enum { CH_CUDA_ARGS = 160 }; /* bytes of a kernel's arguments at most */

/* A call that waits. All bytes that nothing sets are 0. */
typedef struct cuda_command {
  enum { LAUNCH, MULTIPLY, ZERO, COPY, PUT } kind;
  ch_kernel kernel; /* LAUNCH */
  int64_t count;    /* groups of a LAUNCH, products of a MULTIPLY */
  union {
    char args[CH_CUDA_ARGS]; /* LAUNCH */
    product_args product;
    struct {
      device_address to, from; /* of a PUT: where it begins in the queue's staging memory */
      size_t bytes;
    };
    uint64_t words[CH_CUDA_ARGS / sizeof(uint64_t)];
  };
} cuda_command;

/* Items in a group of a kernel. */
static inline unsigned ch_cuda_items(ch_kernel kernel) { return kernel == CH_KERNEL_product ? TILE * TILE : GROUP; }

/* Issues a command to the stream; gives CUDA's error, and the name of the call in *call. */
typedef int cuda_issue(cuda_command *c, const char **call);

/* Begins without a graph. function: of each kernel. */
void ch_cuda_graphs_open(cuda_handle stream, const cuda_handle *function, cuda_issue *issue);

/* Runs commands as a graph, which is captured now if a sequence like this ran before. 0: nothing was launched, and the
 * queue issues them. If a call of graphs fails, a notice says so, and there are no graphs from then on. */
int ch_cuda_graphs_launch(const cuda_command *list, int count);

/* Frees all graphs: their commands name memory that is about to be freed. */
void ch_cuda_graphs_clear(void);

#endif
