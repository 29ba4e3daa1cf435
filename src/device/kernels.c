/* The table of kernels. */
#include "device/device.h"

#define COUNT(field) +1
#define INFO(kernel) {.name = #kernel, .pointers = 0 kernel##_ptrs(COUNT), .bytes = sizeof(kernel##_args)},
const ch_kernel_info ch_kernel_infos[CH_KERNELS] = {KERNELS(INFO)};

void ch_device_fill(ch_ops *ops, ch_compute compute) {
  (void)compute; /* products ask the executor */
  ch_device_fill_model(ops);
  ch_device_fill_products(ops);
  ch_device_fill_routing(ops);
}
