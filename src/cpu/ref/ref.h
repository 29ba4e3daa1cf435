/* The reference: every op in plain C, as ch_ref_NAME. */
#ifndef CH_CPU_REF_REF_H
#define CH_CPU_REF_REF_H

#include "cpu/define.h"
#include "op/backend.h"

#define CH_REF_DECLARE(op, args) void ch_ref_##op(ch_exec *x, const args *a);
CH_OPS(CH_REF_DECLARE)

/* See cpu/define.h. */
#define CH_REF_SCRATCH_OP(op) CH_SCRATCH_OP(ch_ref_##op, op)
#define CH_REF_OP(op) CH_PLAIN_OP(ch_ref_##op, op)

/* Rows begin .. end-1 of a gemm's C, on one thread. */
void ch_ref_gemm_rows(const ch_gemm_args *a, int64_t begin, int64_t end);

/* ch_ref_gemm_rows for 8-bit B (q8.c). */
void ch_ref_q8_rows(const ch_gemm_args *a, int64_t begin, int64_t end);

#endif
