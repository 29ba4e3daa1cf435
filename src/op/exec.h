/* The executor, given to every forward and backward call: the backend's table and the memory that it may use. */
#ifndef CH_OP_EXEC_H
#define CH_OP_EXEC_H

#include "base/memory.h"
#include "base/real.h"
#include "comm/grid.h"

struct ch_ops;
struct ch_broadcasts;

typedef struct ch_exec {
  const struct ch_ops *ops;  /* one backend's table, complete */
  const ch_memory *memory;   /* the backend's: of tape and scratch, and of whatever else ops are given */
  ch_arena tape;             /* what forward saves for backward: a stack over the whole step */
  ch_arena scratch;          /* what one call needs while it runs: empty again when it returns */
  struct ch_exec *host;      /* where `memory` is not the host's: one of the host's own, else NULL */
  int threads;               /* of every parallel region; results do not depend on it */
  ch_compute compute;        /* what inputs of matrix products are rounded to */
  ch_compute dispatch_dtype; /* what rows are rounded to between tokens and experts (dispatch/dispatch.h) */
  const ch_comm *comm;       /* who shares the work of every pass (comm/comm.h); one process unless somebody sets it */
  ch_grid grid;              /* this rank's groups of replicas, experts and hidden shards */
  struct ch_broadcasts *prefetch; /* prefetch of matrices in flight during products (op/prefetch.h), or NULL */
  int refused;                    /* an error code of somebody's router on the host (ch_exec_refuse), else 0 ... */
  char refusal[400];              /* ... and its message */
  int batch_invariant;            /* a row of a product A B does not depend on A's other rows, bit for bit: inference */
} ch_exec;

/* The number of threads for some work, where waking a thread pays from `least` work on: all threads, or one. GNU's
 * OpenMP ends the threads that a smaller team leaves out, and starts them anew for the next larger team. Waking more
 * than eight threads takes longer, and pays for more work only. */
static inline int ch_threads_for(const ch_exec *x, int64_t work, int64_t min) {
  int64_t enough = x->threads > 8 ? x->threads / 4 : 2;
  return work / min >= enough ? x->threads : 1;
}

/* "fp32", "bf16", "q8_0", NULL: by number of ch_compute; and those that models are trained in. */
extern const char *const ch_compute_names[], *const ch_training_names[];

/* The compute type of that name; CHOIR_ERROR_ARGUMENT names the known ones. */
int ch_compute_find(const char *name, ch_compute *compute);

/* Makes ready to run ops of a backend: table filled, arenas counting. threads 0: all CPUs of this process. */
int ch_exec_init(ch_exec *x, const char *backend, ch_compute compute, int emulate_bf16, int threads);
int ch_exec_commit(ch_exec *x); /* after the counting run */
void ch_exec_clear(ch_exec *x); /* gives the memory back: counts again, from nothing */
void ch_exec_free(ch_exec *x);

/* In the counting run every op allocates its scratch and returns before touching data. */
static inline int ch_counting(const ch_exec *x) { return ch_arena_counting(&x->scratch); }

/* The executor for what belongs on the host, an assignment's solver for example: its memory is the host's, and tape and
 * scratch hold what the host needs for itself. It is x where x's memory is the host's already. */
static inline ch_exec *ch_host(ch_exec *x) { return x->host ? x->host : x; }

/* The host's own arena of the same kind as x's tape or scratch: that one where x's memory is the host's. */
static inline ch_arena *ch_host_arena(ch_exec *x, const ch_arena *a) {
  return a == &x->tape ? &ch_host(x)->tape : &ch_host(x)->scratch;
}

/* A device array for the host to read, once all ops before have run: itself where the memory is the host's, else a copy
 * in the host's scratch. Waits for the device: docs/ops.md lists the places that do. */
const void *ch_download(ch_exec *x, const void CH_DEV *from, size_t bytes);

/* Zeros, or bytes of the host or of x's memory, into x's memory, in order with ops; nothing while x counts. */
static inline void ch_zero(const ch_exec *x, void CH_DEV *to, size_t bytes) {
  if (!ch_counting(x)) x->memory->zero(to, bytes);
}
static inline void ch_write(const ch_exec *x, void CH_DEV *to, const void *from, size_t bytes) {
  if (!ch_counting(x)) x->memory->upload(to, from, bytes);
}
static inline void ch_copy(const ch_exec *x, void CH_DEV *to, const void CH_DEV *from, size_t bytes) {
  if (!ch_counting(x)) x->memory->copy(to, from, bytes);
}

/* ch_comm_gather_shares of an array of x's memory or its host's; nothing while x counts. */
void ch_gather_shares(const ch_exec *x, const ch_comm *comm, const char *what, void CH_DEV *all, int64_t count,
                      int64_t bytes);

/* Whether the device did all that it was asked for: its error, else CHOIR_OK. */
static inline int ch_device_check(const ch_exec *x) { return x->memory->check ? x->memory->check() : 0; }

/* The same, and no router refused: the error, which is told once, else CHOIR_OK.
 * Who has waited for results asks. */
int ch_exec_check(ch_exec *x);

/* What a router of somebody's did wrong, from the thread's message: the pass goes on without its choice, and its loss
 * is not a number. The first one stays. */
void ch_exec_refuse(ch_exec *x, int code);
int ch_exec_refused(const ch_exec *x);

/* Scratch of a scope: what is allocated after CH_SCRATCH, from x's or its host's, which may be the same, goes back
 * where the scope ends, however it ends. */
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
