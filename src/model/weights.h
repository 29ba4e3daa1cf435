/* Weights in a checkpoint: model.safetensors, one tensor per parameter, with names and shapes of the parameter
 * table. */
#ifndef CH_MODEL_WEIGHTS_H
#define CH_MODEL_WEIGHTS_H

#include "choir/tensors.h"
#include "model/param.h"
#include "moe/router.h"
#include "op/exec.h"

/* The dtype of `real` in files. */
#define CH_REAL_DTYPE (sizeof(real) == sizeof(double) ? CHOIR_F64 : CHOIR_F32)

/* A tensor of a file and this process's part of it. tensor.data points to backend memory, or to host memory for scalars
 * (dims 0); for experts it holds only the experts that this rank owns. */
typedef struct ch_stored {
  choir_tensor tensor; /* shape of the whole tensor; data NULL if this rank has no part of it */
  int experts;         /* experts in the whole tensor; 0: every rank has the whole tensor */
  int64_t hidden;      /* hidden width of an expert if the last dimension is the hidden one, which shards cut; else 0 */
  int owner;           /* the only rank of the replica that has the tensor; -1: no single owner */
} ch_stored;
ch_stored ch_stored_real(const char *name, int dims, const int64_t *shape, const real CH_DEV *data);
ch_stored ch_stored_param(const ch_param *param);

/* The part of a tensor on rank `rank` of a replica. */
ch_part ch_stored_part(const ch_stored *stored, const ch_grid *grid, int rank);

/* Writes one file, or several files of at most `max` bytes and an index (file/tensors_set.h). The files' contents do
 * not depend on the number of ranks. Rank f of P writes the files f, f + P, ...; the other ranks of its replica send
 * the parts that it lacks, one tensor of each file at a time, copied from x's memory to the host. The first rank checks
 * all files and writes the index. metadata: as for choir_tensors_write, the same on all ranks. Collective; all ranks
 * get the code. */
int ch_tensors_save(const ch_exec *x, const char *path, const ch_stored *tensors, int count, int64_t max,
                    const char *const *metadata);

/* Saves all parameters, with metadata that binds them to the config.json and tokenizer.model in the same directory, and
 * has the version of a router that is a plug-in (choir/plugin.h), under this key. */
#define CH_TRAINED_BY_KEY "choir_router"
int ch_weights_save(const ch_params *params, const ch_exec *x, const ch_router *router, const char *path, int64_t max);

/* Compares the version of a plug-in router with the version stored with the weights. If they differ: a notice, or
 * CHOIR_ERROR_ARGUMENT if `must` is set; if the file has no version: a notice. */
int ch_weights_same_router(const ch_router *router, const char *path, int must);

/* whole [shape] = a parameter's weights (or gradients), assembled from all ranks. Collective. CHOIR_ERROR_MEMORY if the
 * buffer to assemble hidden shards cannot be allocated. */
int ch_param_collect(const ch_param *param, const ch_exec *x, int gradient, real *whole);

/* Fills every parameter; each rank reads for itself. Refuses a wrong checksum, and a tensor that is missing, surplus,
 * or of another type or shape. Unless `unchecked`, also refuses values that are not finite (CHOIR_ERROR_NUMERIC;
 * docs/formats.md has the cost), and a config.json or tokenizer.model that was not saved with the weights. */
int ch_weights_load(ch_params *params, const ch_exec *x, const char *path, int unchecked);

/* The parts of a router that a new training loads from a file: weight and state; only the weight, because the
 * thresholds of another router have no meaning; or nothing, because centroids are not weights. */
typedef enum { CH_ROUTER_ALL, CH_ROUTER_WEIGHT, CH_ROUTER_NOTHING } ch_router_start;

/* Loads weights for a new training. If a layer of the file is dense or has one expert, and the model's layer has
 * several, each expert gets these weights ("upcycling", Komatsuzaki et al. 2022). Parameters that are not loaded keep
 * their values. The caller must check that the activations are equal. *upcycled: number of upcycled layers.
 * CHOIR_ERROR_FORMAT names a tensor that does not fit. */
int ch_weights_start(ch_params *params, const ch_exec *x, const char *path, ch_router_start router, int *upcycled);

/* Copies this rank's part of a tensor out of an open file, which must have it with that name, type and shape; `path` is
 * for messages. */
int ch_tensor_read(const choir_tensors *file, const char *path, const ch_stored *tensor, const ch_exec *x,
                   int unchecked);

#endif
