/* The executor, an argument of every forward and backward call: the backend's table of ops, and memory. */
#ifndef CH_OP_EXEC_H
#define CH_OP_EXEC_H

#include "base/memory.h"
#include "base/real.h"
#include "comm/grid.h"

struct ch_ops;
struct ch_broadcasts;

typedef struct ch_exec {
  const struct ch_ops *ops;       /* one backend's table, complete */
  const ch_memory *memory;        /* the backend's memory: of tape, scratch, and all arrays marked CH_DEV */
  ch_arena tape;                  /* activations saved for backward: a stack for the whole step */
  ch_arena scratch;               /* temporary memory of one call; empty again when the call returns */
  struct ch_exec *host;           /* for device memory: an executor with host memory; else NULL */
  int threads;                    /* threads of every parallel region; results do not depend on it */
  ch_compute compute;             /* type that inputs of matrix products are rounded to */
  ch_compute dispatch_dtype;      /* type that rows are rounded to between tokens and experts (dispatch/dispatch.h) */
  const ch_comm *comm;            /* the ranks that share every pass (comm/comm.h); a single process by default */
  ch_grid grid;                   /* this rank's groups of replicas, experts and hidden shards */
  struct ch_broadcasts *prefetch; /* prefetch of matrices in flight during products (op/prefetch.h), or NULL */
  int refused;                    /* error code of a plug-in router (ch_exec_refuse), or 0 ... */
  char refusal[400];              /* ... and its message */
  int batch_invariant;            /* a row of a product A B does not depend on A's other rows, bit for bit: inference */
} ch_exec;

/* The number of threads for an amount of work. Returns one thread for less than 2 `min`, because waking threads would
 * take longer than the work; above eight threads waking takes longer, so the limit is higher. Else returns all threads,
 * never a part of them: GNU's OpenMP ends the threads that a smaller team does not use, and has to start new ones for
 * the next larger team. */
static inline int ch_threads_for(const ch_exec *x, int64_t work, int64_t min) {
  int64_t enough = x->threads > 8 ? x->threads / 4 : 2;
  return work / min >= enough ? x->threads : 1;
}

/* "fp32", "bf16", "q8_0", NULL: indexed by ch_compute; and the compute types for training. */
extern const char *const ch_compute_names[], *const ch_training_names[];

/* Finds a compute type by name; CHOIR_ERROR_ARGUMENT lists the known types. */
int ch_compute_find(const char *name, ch_compute *compute);

/* Initializes an executor for a backend: fills the table, and starts the arenas in counting mode. threads 0: all CPUs
 * of this process. */
int ch_exec_init(ch_exec *x, const char *backend, ch_compute compute, int emulate_bf16, int threads);
int ch_exec_commit(ch_exec *x); /* after the counting run */
void ch_exec_clear(ch_exec *x); /* frees the memory: the arenas count again, from 0 */
void ch_exec_free(ch_exec *x);

/* In the counting run every op allocates its scratch and returns before touching data. */
static inline int ch_counting(const ch_exec *x) { return ch_arena_counting(&x->scratch); }

/* The executor for work on the host, for example an assignment solver: memory, tape and scratch are in host memory. It
 * is x itself if x uses host memory. */
static inline ch_exec *ch_host(ch_exec *x) { return x->host ? x->host : x; }

/* The host's arena of the same kind as `a`, x's tape or scratch; it is `a` itself if x uses host memory. */
static inline ch_arena *ch_host_arena(ch_exec *x, const ch_arena *a) {
  return a == &x->tape ? &ch_host(x)->tape : &ch_host(x)->scratch;
}

/* Downloads an array after all earlier ops have finished: returns a copy in the host's scratch, or `from` itself if it
 * is in host memory. Waits for the device; docs/ops.md lists all such places. */
const void *ch_download(ch_exec *x, const void CH_DEV *from, size_t bytes);

/* Set x's memory to zero, or copy from the host or from x's memory to it, in order with ops. In the counting run they
 * do nothing. */
static inline void ch_zero(const ch_exec *x, void CH_DEV *to, size_t bytes) {
  if (!ch_counting(x)) x->memory->zero(to, bytes);
}
static inline void ch_write(const ch_exec *x, void CH_DEV *to, const void *from, size_t bytes) {
  if (!ch_counting(x)) x->memory->upload(to, from, bytes);
}
static inline void ch_copy(const ch_exec *x, void CH_DEV *to, const void CH_DEV *from, size_t bytes) {
  if (!ch_counting(x)) x->memory->copy(to, from, bytes);
}

/* ch_comm_gather_shares for an array in x's memory or its host's memory; does nothing in the counting run. */
void ch_gather_shares(const ch_exec *x, const ch_comm *comm, const char *what, void CH_DEV *all, int64_t count,
                      int64_t bytes);

/* Returns the error of earlier ops on the device, or CHOIR_OK. */
static inline int ch_device_check(const ch_exec *x) { return x->memory->check ? x->memory->check() : 0; }

/* Returns and clears the error of the device or of a plug-in router, or CHOIR_OK. Call it after waiting for results. */
int ch_exec_check(ch_exec *x);

/* Records an error of a plug-in router, with the thread's error message. The pass continues without that routing, and
 * its loss is NaN. Only the first error is stored. */
void ch_exec_refuse(ch_exec *x, int code);
int ch_exec_refused(const ch_exec *x);

/* Scoped scratch: allocations after CH_SCRATCH, from the scratch of x or of its host (which may be the same), are
 * released at the end of the scope, also by `return` or `break`. */
typedef struct ch_scratch {
  ch_exec *x;
  size_t device, host;
} ch_scratch;
static inline ch_scratch ch_scratch_begin(ch_exec *x) {
  return (ch_scratch){x, ch_arena_mark(&x->scratch), ch_arena_mark(&ch_host(x)->scratch)};
}
static inline void ch_scratch_end(ch_scratch *s) {
  ch_arena_release(&ch_host(s->x)->scratch, s->host);
  ch_arena_release(&s->x->scratch, s->device);
}
#define CH_SCRATCH(x) __attribute__((cleanup(ch_scratch_end), unused)) ch_scratch ch_scratch_here = ch_scratch_begin(x)

#endif
