/* What fills the CPU's op table, one function a file; each sets the ops it implements and leaves the others. */
#ifndef CH_CPU_CPU_H
#define CH_CPU_CPU_H

#include "op/op.h"

/* Reference, plain C, every op: src/cpu/ref_*.c, one fill function a file. */
void ch_fill_reference(ch_ops *ops, ch_compute compute);

/* The fast ones: oneDNN products, blocked attention and head, vectorised loops. Float only. */
void ch_fill_cpu(ch_ops *ops, ch_compute compute);

#endif
