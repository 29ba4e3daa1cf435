/* The command queue of a CUDA device. Commands run in order on one stream, each issued at once, so that the device
 * works while the host prepares the next ones. If CUDA graphs are enabled (cuda_graphs.h), commands are collected until
 * the host reads from the device instead. */
#ifndef CH_DEVICE_CUDA_QUEUE_H
#define CH_DEVICE_CUDA_QUEUE_H

#include "device/cuda_calls.h"

/* Opens the queue in the thread's current context; callers of the functions below need the same current context.
 * function: the CUDA function of each kernel; blas: a cuBLAS handle, which gets the stream. at_once: run every command
 * immediately and wait for it, for memory that the host may read at any time. 0: the failure has been noted. */
int ch_cuda_queue_open(const cuda_handle *function, cuda_handle blas, int at_once);

void ch_cuda_queue_launch(ch_kernel kernel, int64_t groups, const void *args);
void ch_cuda_queue_multiply(const product_args *p, int64_t batch);
void ch_cuda_queue_zero(device_address to, size_t bytes);
void ch_cuda_queue_copy(device_address to, device_address from, size_t bytes);
void ch_cuda_queue_upload(device_address to, const void *from, size_t bytes);

/* Run all commands: without waiting; with waiting; with waiting and a download. */
void ch_cuda_queue_run(void);
void ch_cuda_queue_wait(void);
void ch_cuda_queue_download(void *to, device_address from, size_t bytes);

/* Call before freeing memory: runs all commands, waits until the stream is idle (also after a failure) and frees the
 * graphs. */
void ch_cuda_queue_clear(void);

#endif
