/* Weights in a checkpoint: model.safetensors, one tensor a parameter, names and shapes as in the parameter table. */
#ifndef CH_MODEL_WEIGHTS_H
#define CH_MODEL_WEIGHTS_H

#include "choir/tensors.h"
#include "model/param.h"
#include "op/exec.h"

/* The dtype of `real` in files. */
#define CH_REAL_DTYPE (sizeof(real) == sizeof(double) ? CHOIR_F64 : CHOIR_F32)

/* A tensor of a file, and what this process has of it: `data` is an address in the backend's memory, of scalars (dims
 * 0) the host's. Of tensors of experts that is the part of the experts that this rank owns. */
typedef struct ch_stored {
  choir_tensor tensor; /* the whole one; no data of what this rank has not */
  int experts;         /* of them all; 0: every rank has the whole tensor */
  int64_t hidden;      /* their hidden width where the last dimension is of it, which shards cut; else 0 */
  int owner;           /* the rank of a replica that alone has it; -1: none */
} ch_stored;
ch_stored ch_stored_real(const char *name, int dims, const int64_t *shape, const real CH_DEV *data);
ch_stored ch_stored_param(const ch_param *param);

/* The elements of it that a rank of a replica has. */
ch_part ch_stored_part(const ch_stored *stored, const ch_grid *grid, int rank);

/* Writes a file, or where its tensors have more than `most` bytes several and an index (file/tensors_set.h). What the
 * files hold does not depend on the number of ranks. Of several ranks number f writes the files f, f + P, ...; the
 * others of its replica send it what it has not: one tensor a file at a time, copied from x's memory to the host. The
 * first rank looks into all files and writes the index. metadata: as choir_tensors_write takes it, the same on all
 * ranks. Collective; all ranks get the code. */
int ch_tensors_save(const ch_exec *x, const char *path, const ch_stored *tensors, int count, int64_t most,
                    const char *const *metadata);

/* The same of all parameters, bound to the config.json and the tokenizer.model that stand beside them. */
int ch_weights_save(const ch_params *params, const ch_exec *x, const char *path, int64_t most);

/* whole [shape] = a parameter's weights, or their gradients, from the ranks that have parts of it. Collective;
 * CHOIR_ERROR_MEMORY where hidden shards must be put together and there is no room. */
int ch_param_collect(const ch_param *param, const ch_exec *x, int gradient, real *whole);

/* Fills every parameter; each rank reads for itself. Checksum, names, types and shapes are checked, and unless
 * `unchecked` that every value is finite (CHOIR_ERROR_NUMERIC; docs/formats.md has the cost) and that the files beside
 * them are those they were saved with; a missing or surplus tensor is an error. */
int ch_weights_load(ch_params *params, const ch_exec *x, const char *path, int unchecked);

/* What a training that begins with a file takes of its router: all; the weight alone, for thresholds of one router say
 * nothing to another; or nothing, for centroids are no weights. */
typedef enum { CH_ROUTER_ALL, CH_ROUTER_WEIGHT, CH_ROUTER_NOTHING } ch_router_start;

/* The same to begin another training with. Where a layer of the file is dense, or has one expert, and the model's has
 * more, each gets these weights ("upcycling", Komatsuzaki et al. 2022). What is not taken of a router, or the file
 * lacks, stays as it is. That both have the same activation the caller knows. *upcycled counts layers that were
 * upcycled. CHOIR_ERROR_FORMAT says which tensor does not fit. */
int ch_weights_start(ch_params *params, const ch_exec *x, const char *path, ch_router_start router, int *upcycled);

/* Copies this rank's part of a tensor out of an open file, which must have it with that name, type and shape; `path` is
 * for messages. */
int ch_tensor_read(const choir_tensors *file, const char *path, const ch_stored *tensor, const ch_exec *x,
                   int unchecked);

#endif
