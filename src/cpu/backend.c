/* The CPU backends: "reference" is plain C; "cpu" overrides the reference's ops with faster ones. */
#include "base/error.h"
#include "base/machine.h"
#include "cpu/ref/ref.h"

static void fill_reference(ch_ops *ops, ch_compute compute) {
  (void)compute;
#define REFERENCE(op, args) .op = ch_ref_##op,
  *ops = (ch_ops){CH_OPS(REFERENCE)};
}

static int reference_supports(ch_compute compute, int emulate) {
  (void)emulate;
  if (compute == CH_COMPUTE_BF16)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "backend 'reference' computes in fp32 and q8_0 only; compute 'bf16' needs backend 'cpu'");
  return CHOIR_OK;
}

const ch_backend ch_backend_reference = {
    .name = "reference", .memory = &ch_memory_host, .supports = reference_supports, .fill = fill_reference};

#ifndef CHOIR_DOUBLE
#include "cpu/peak.h"
#include "cpu/simd/fill.h"
#include "cpu/threaded/threaded.h"

/* Ops that are not overridden stay the reference's: copy (memcpy), dropout (bound by random numbers), and small ops of
 * routing (a few numbers per token). */
static void fill_cpu(ch_ops *ops, ch_compute compute) {
  fill_reference(ops, compute);
  ch_threaded_fill_gemm(ops, compute);
  ch_threaded_fill_attention(ops);
  ch_threaded_fill_attention_cached(ops);
  ch_threaded_fill_head(ops);
#define VECTORISED(op) ops->op = CH_SIMD_PICK(ch_simd_##op);
  CH_SIMD_OPS(VECTORISED)
}

static int cpu_supports(ch_compute compute, int emulate) {
  CH_TRY(ch_machine_check_isa());
  if (compute == CH_COMPUTE_BF16 && !emulate && !ch_machine_has_bf16())
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "compute 'bf16': this CPU has no bf16 instructions (avx512_bf16, AMX or bfdot); use fp32, which is "
                    "as fast here, or ask for emulation, which saves memory and generates text faster");
  return CHOIR_OK;
}

const ch_backend ch_backend_cpu = {
    .name = "cpu", .memory = &ch_memory_host, .supports = cpu_supports, .fill = fill_cpu, .peak = ch_cpu_peak};
#endif
