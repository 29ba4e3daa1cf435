/* The CPU backends: "reference" is plain C, "cpu" starts from it and overrides what it does faster. */
#include "base/error.h"
#include "base/machine.h"
#include "cpu/cpu.h"

static int reference_supports(ch_compute compute, int emulate) {
  (void)emulate;
  if (compute == CH_COMPUTE_BF16)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "backend 'reference' computes in fp32 only; compute 'bf16' needs backend 'cpu'");
  return CHOIR_OK;
}

static const ch_backend reference = {"reference", reference_supports, ch_fill_reference};

#ifndef CHOIR_DOUBLE
static int cpu_supports(ch_compute compute, int emulate) {
  if (compute == CH_COMPUTE_BF16 && !emulate && !ch_machine_has_bf16())
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "compute 'bf16': this CPU has no bf16 instructions (avx512_bf16 or AMX); use fp32, or ask for emulation");
  return CHOIR_OK;
}

static void cpu_fill(ch_ops *ops, ch_compute compute) {
  ch_fill_reference(ops, compute);
  ch_fill_cpu(ops, compute);
}

static const ch_backend cpu = {"cpu", cpu_supports, cpu_fill};
const ch_backend *const ch_backends[] = {&cpu, &reference, NULL};
#else
const ch_backend *const ch_backends[] = {&reference, NULL};
#endif
