/* What a CUDA device is asked for. It waits on the host until the host waits for the device, and then runs in order on
 * one stream, kernel by kernel or, where that was chosen, as CUDA graphs (cuda_graphs.h). */
#ifndef CH_DEVICE_CUDA_QUEUE_H
#define CH_DEVICE_CUDA_QUEUE_H

#include "device/cuda_calls.h"

/* Opens it in the context that the thread has entered, as must all who call what follows. `function`: of each kernel;
 * blas: a handle of cuBLAS, which gets the stream. at_once: for memory at which the host looks at any time. 0: what
 * failed has been noted. */
int ch_cuda_queue_open(const cuda_handle *function, cuda_handle blas, int at_once);

void ch_cuda_queue_launch(ch_kernel kernel, int64_t groups, const void *args);
void ch_cuda_queue_multiply(const product_args *p, int64_t batch);
void ch_cuda_queue_zero(device_address to, size_t bytes);
void ch_cuda_queue_copy(device_address to, device_address from, size_t bytes);
void ch_cuda_queue_upload(device_address to, const void *from, size_t bytes);

/* Runs all of it, without waiting for the end; with it; and brings a result. */
void ch_cuda_queue_run(void);
void ch_cuda_queue_wait(void);
void ch_cuda_queue_download(void *to, device_address from, size_t bytes);

/* Before memory is given back: runs all of it and waits until the stream is idle, after a failure too; forgets the
 * graphs. */
void ch_cuda_queue_clear(void);

#endif
