/* The table of kernels. */
#include "device/device.h"

#define INFO(kernel) {.name = #kernel, .bytes = sizeof(kernel##_args)},
const ch_kernel_info ch_kernel_infos[CH_KERNELS] = {KERNELS(INFO)};

void ch_device_fill(ch_ops *ops, ch_compute compute) {
  (void)compute; /* products read the executor's compute type */
#define DEVICE(op, args) .op = ch_device_##op,
  *ops = (ch_ops){.writes_bf16 = 1, CH_DEVICE_OPS(DEVICE)};
}
