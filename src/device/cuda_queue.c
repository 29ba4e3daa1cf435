#include "device/cuda_queue.h"

#include <pthread.h>
#include <string.h>

#include "device/cuda_graphs.h"

enum { MAX_COMMANDS = 8192 }; /* collected for a graph */
static const size_t STAGING = (size_t)4 << 20,
                    WORKSPACE = (size_t)32 << 20; /* bytes of staged host arrays; workspace as cuBLAS recommends */
#define ARGS_FIT(name) _Static_assert(sizeof(name##_args) <= CH_CUDA_ARGS, "CH_CUDA_ARGS is too small for " #name);
KERNELS(ARGS_FIT)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_handle stream, cublas;
static const cuda_handle *functions;
static int unbuffered;
static cuda_command waiting[MAX_COMMANDS];
static int count;
static char *staging; /* pinned host memory that the device reads */
static size_t staged; /* bytes in use until the next synchronization */

/* ---- one command ---- */

/* cuBLAS is column-major, choir row-major: C^T = op(B)^T op(A)^T. */
static int issue_product(const product_args *p, int64_t batch, const char **call) {
  int type = p->a_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F, c_type = p->c_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
  float beta = p->accumulate ? 1 : 0;
  return NAMED(call, cublasGemmStridedBatchedEx, cublas, p->trans_b, p->trans_a, (int)p->n, (int)p->m, (int)p->k,
               &p->alpha, (const void *)p->b, type, (int)p->ldb, p->b_stride, (const void *)p->a, type, (int)p->lda,
               p->a_stride, &beta, (void *)p->c, c_type, (int)p->ldc, p->c_stride, (int)batch, CUBLAS_COMPUTE_32F,
               CUBLAS_GEMM_DEFAULT);
}

/* A cuda_issue. */
static int issue(cuda_command *c, const char **call) {
  void *parameters[] = {c->args};
  switch (c->kind) {
    case LAUNCH:
      return NAMED(call, cuLaunchKernel, functions[c->kernel], (unsigned)c->count, 1, 1, ch_cuda_items(c->kernel), 1, 1,
                   0, stream, parameters, NULL);
    case MULTIPLY:
      return issue_product(&c->product, c->count, call);
    case ZERO:
      return NAMED(call, cuMemsetD8Async, c->to, 0, c->bytes, stream);
    case COPY:
      return NAMED(call, cuMemcpyDtoDAsync_v2, c->to, c->from, c->bytes, stream);
    case PUT:
      return NAMED(call, cuMemcpyHtoDAsync_v2, c->to, staging + c->from, c->bytes, stream);
  }
  return 0;
}

int ch_cuda_queue_open(const cuda_handle *function, cuda_handle blas, int at_once) {
  device_address workspace = 0;
  functions = function;
  cublas = blas;
  unbuffered = at_once;
  if (!CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING)) return 0;
  ch_cuda_graphs_open(stream, functions, issue);
  return CALL(cublasSetStream_v2, cublas, stream) && CALL(cuMemAlloc_v2, &workspace, WORKSPACE) &&
         CALL(cublasSetWorkspace_v2, cublas, (void *)(uintptr_t)workspace,
              WORKSPACE) && /* otherwise cuBLAS would allocate within a graph */
         CALL(cuMemHostAlloc, (void **)&staging, STAGING, 0);
}

/* ---- the queue ---- */

static void run_all(void) {
  if (count && !ch_cuda_driver.failed && ch_cuda_graphs_launch(waiting, count)) count = 0;
  for (int i = 0; i < count && !ch_cuda_driver.failed; i++) {
    const char *call = "";
    int code = issue(&waiting[i], &call);
    ch_cuda_kernel_is_well(call, waiting[i].kind == LAUNCH ? ch_kernel_infos[waiting[i].kernel].name : NULL, code);
  }
  count = 0;
}

/* Also waits after a failure, because earlier launches still use host and device memory. A failed wait is retried once
 * for the same reason; if the device is lost, nothing runs on it. */
static void wait_for_all(void) {
  run_all();
  if (!CALL(cuStreamSynchronize, stream)) ch_cuda.cuStreamSynchronize(stream);
  staged = 0;
}

/* Appends a command, all 0. */
static cuda_command *command_new(int kind) {
  if (count == MAX_COMMANDS) wait_for_all();
  cuda_command *c = &waiting[count++];
  memset(c, 0, sizeof *c);
  c->kind = kind;
  return c;
}

/* command_new under the queue's lock, which `end_command` releases. */
static cuda_command *begin_command(int kind) {
  pthread_mutex_lock(&lock);
  return command_new(kind);
}

static void end_command(void) {
  if (unbuffered)
    wait_for_all();
  else if (!ch_cuda_graphs_on())
    run_all();
  pthread_mutex_unlock(&lock);
}

void ch_cuda_queue_launch(ch_kernel kernel, int64_t groups, const void *args) {
  cuda_command *c = begin_command(LAUNCH);
  c->kernel = kernel;
  c->count = groups;
  memcpy(c->args, args, ch_kernel_infos[kernel].bytes);
  end_command();
}

void ch_cuda_queue_multiply(const product_args *p, int64_t batch) {
  cuda_command *c = begin_command(MULTIPLY);
  c->count = batch;
  c->product = *p;
  end_command();
}

static void queue_move(int kind, device_address to, device_address from, size_t bytes) {
  cuda_command *c = begin_command(kind);
  c->to = to;
  c->from = from;
  c->bytes = bytes;
  end_command();
}

void ch_cuda_queue_zero(device_address to, size_t bytes) { queue_move(ZERO, to, 0, bytes); }
void ch_cuda_queue_copy(device_address to, device_address from, size_t bytes) { queue_move(COPY, to, from, bytes); }

/* Large arrays are not staged: a synchronous copy. */
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
  cuda_command *c = command_new(PUT);
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
  ch_cuda_graphs_clear();
  pthread_mutex_unlock(&lock);
}
