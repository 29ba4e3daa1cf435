#include "model/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "file/checkpoints.h"
#include "file/tensors.h"

ch_part ch_stored_part(const ch_stored *s, const ch_grid *grid, int rank) {
  int64_t count = (int64_t)(s->tensor.bytes / sizeof(real)), width = s->hidden;
  if (!s->experts) return (ch_part){.rows = s->owner < 0 || s->owner == rank, .columns = count, .width = count};
  if (!width) width = count / s->experts;
  return ch_part_of_experts(grid, rank, s->experts, count / s->experts / width, width, s->hidden != 0);
}

ch_stored ch_stored_real(const char *name, int dims, const int64_t *shape, const real CH_DEV *data) {
  ch_stored s = {.tensor = {.dtype = CH_REAL_DTYPE, .dims = dims, .bytes = sizeof(real)}, .owner = -1};
  snprintf(s.tensor.name, sizeof s.tensor.name, "%s", name);
  s.tensor.data = CH_AS_HOST(const void, data);
  for (int i = 0; i < dims; i++) {
    s.tensor.shape[i] = shape[i];
    s.tensor.bytes *= (size_t)shape[i];
  }
  return s;
}

ch_stored ch_stored_param(const ch_param *p) {
  ch_stored s = ch_stored_real(p->name, p->dims, p->shape, p->w);
  if (p->expert) s.experts = (int)p->shape[0], s.hidden = p->shape[2];
  s.owner = p->owner;
  return s;
}

/* Assembles a tensor from the ranks' shards, which have equal sizes (ch_params_share). */
static int collect_shards(const ch_param *p, const ch_exec *x, const real CH_DEV *local, real *whole) {
  const ch_comm *replica = &x->grid.replica;
  real *all;
  int code = ch_comm_agree(x->comm, CH_ALLOC(&all, p->whole, "the whole tensor '%s'", p->name));
  if (!code)
    ch_comm_gather(replica, "values of experts", CH_HOST_OR_DEVICE(local), all, p->count * (int64_t)sizeof *all);
  for (int r = 0; r < replica->size && !code; r++) {
    const ch_part part = ch_part_of_experts(&x->grid, r, p->shape[0], p->shape[1], p->shape[2], 1);
    ch_part_place(&part, all + r * p->count, whole, sizeof *all);
  }
  free(all);
  return code;
}

int ch_param_collect(const ch_param *p, const ch_exec *x, int gradient, real *whole) {
  const real CH_DEV *local = gradient ? p->g : p->w;
  if (p->w8 && !local) {
    ch_param_unpack(p, x->threads, whole);
    return CHOIR_OK;
  }
  if (p->expert && x->grid.tp_group.size > 1) return collect_shards(p, x, local, whole);
  if (!p->remote) x->memory->download(whole + p->part.row * p->part.width, local, (size_t)p->count * sizeof *whole);
  if (p->expert)
    ch_comm_gather_shares(&x->grid.replica, "values of experts", whole, p->shape[0],
                          p->whole / p->shape[0] * (int64_t)sizeof *whole);
  if (p->owner >= 0) {
    ch_bytes spans[CH_SPANS * CH_RANKS];
    const ch_broadcast matrix = {p->owner, whole, p->whole * (int64_t)sizeof *whole};
    ch_comm_broadcast_end(&x->grid.replica,
                          &(ch_broadcasts){.what = "values of a matrix", .left = &matrix, .count = 1, .spans = spans});
  }
  return CHOIR_OK;
}

static void shape_text(int dims, const int64_t *shape, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int i = 0; i < dims && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? "," : "", shape[i]);
  if (used < size) snprintf(text + used, size - used, "]");
}

static int first_not_finite(const real *x, int64_t count, int64_t *at) {
  int bad = 0;
  for (int64_t i = 0; i < count; i++) bad |= !(x[i] - x[i] == 0); /* branch-free, so compilers vectorize it */
  for (*at = 0; bad && isfinite(x[*at]); ++*at) continue;
  return bad;
}

/* Copies a range and checks that its values are finite while they are in the cache. */
static int copy_part(const char *path, const choir_tensor *t, const ch_part *part, const ch_memory *memory,
                     int unchecked, real CH_DEV *out) {
  enum { PIECE = 1 << 14 };
  const real *data = t->data;
  for (int64_t done = 0, count = ch_part_count(part), size, from, at; done < count; done += size) {
    size = ch_part_run(part, done, count - done < PIECE ? count - done : PIECE, &from);
    memory->upload(out + done, data + from, (size_t)size * sizeof *out);
    if (!unchecked && first_not_finite(data + from, size, &at))
      return ch_error(CHOIR_ERROR_NUMERIC, "%s: tensor '%s': element %" PRId64 " is %g; the checkpoint is of no use",
                      path, t->name, from + at, (double)data[from + at]);
  }
  return CHOIR_OK;
}

/* Finds the tensor of the same name, type and shape; an error if the file has none. */
static int find_tensor(const choir_tensors *file, const char *path, const ch_stored *s, const choir_tensor **tensor) {
  const char *name = s->tensor.name;
  const choir_tensor *t = *tensor = choir_tensors_find(file, name);
  if (!t) return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is missing", path, name);
  char want[96], have[96];
  shape_text(s->tensor.dims, s->tensor.shape, want, sizeof want);
  shape_text(t->dims, t->shape, have, sizeof have);
  if (strcmp(want, have))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' has shape %s, the config wants %s", path, name, have, want);
  if (t->dtype != CH_REAL_DTYPE)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is not of type %s", path, name,
                    CH_REAL_DTYPE == CHOIR_F64 ? "F64" : "F32");
  return CHOIR_OK;
}

static int read_part(const choir_tensors *file, const char *path, const ch_stored *s, const ch_part *part,
                     const ch_exec *x, int unchecked) {
  const choir_tensor *t;
  CH_TRY(find_tensor(file, path, s, &t));
  int code = copy_part(path, t, part, x->memory, unchecked, CH_AS_DEV(real, s->tensor.data));
  ch_tensors_forget(file, t);
  return code;
}

int ch_tensor_read(const choir_tensors *file, const char *path, const ch_stored *s, const ch_exec *x, int unchecked) {
  const ch_part local = ch_stored_part(s, &x->grid, x->grid.replica.rank);
  return read_part(file, path, s, &local, x, unchecked);
}

/* Quantizes a tensor to 8 bits. Values must be finite even if `unchecked`, because 8 bits cannot represent NaN or
 * infinity. */
static int read_packed(const choir_tensors *file, const char *path, const ch_param *p, const ch_exec *x) {
  const ch_stored s = ch_stored_param(p);
  const choir_tensor *t;
  int64_t at;
  CH_TRY(find_tensor(file, path, &s, &t));
  int bad = ch_param_pack(p, t->data, x->threads, &at);
  double value = bad ? (double)((const real *)t->data)[at] : 0;
  ch_tensors_forget(file, t);
  if (!bad) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_NUMERIC, "%s: tensor '%s': element %" PRId64 " is %g: q8_0 holds numbers up to %g; %s",
                  path, t->name, at, value, (double)CH_Q8_MAX,
                  isfinite(value) ? "compute in fp32" : "the checkpoint is of no use");
}

static int load_open(ch_params *params, const ch_exec *x, const char *path, int unchecked, const choir_tensors *file) {
  for (int i = 0; i < params->count + params->buffers; i++) {
    const ch_stored s = ch_stored_param(&params->p[i]);
    if (params->p[i].w8) CH_TRY(read_packed(file, path, &params->p[i], x));
    if (params->p[i].w) CH_TRY(ch_tensor_read(file, path, &s, x, unchecked));
  }
  for (int i = 0; i < choir_tensors_count(file); i++) {
    const char *name = choir_tensors_at(file, i)->name;
    if (!ch_params_find(params, name))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is not part of this config's model", path, name);
  }
  return CHOIR_OK;
}

int ch_weights_load(ch_params *params, const ch_exec *x, const char *path, int unchecked) {
  choir_tensors *file;
  CH_TRY(choir_tensors_load(path, 1, &file));
  int code = unchecked ? CHOIR_OK : ch_binding_check(file, path);
  if (!code) code = load_open(params, x, path, unchecked, file);
  choir_tensors_free(file);
  return code;
}

/* Whether the file has one expert and the model several of the same shape. */
static int is_dense_of(const choir_tensor *t, const ch_param *p) {
  return t && p->expert && p->shape[0] > 1 && t->dims == p->dims && t->shape[0] == 1 && t->shape[1] == p->shape[1] &&
         t->shape[2] == p->shape[2];
}

/* Copies this rank's first expert, of `count` elements, to its other experts. */
static void repeat_expert(const ch_exec *x, const ch_param *p, int64_t count) {
  for (int64_t at = count; at < p->count; at += count) x->memory->copy(p->w + at, p->w, (size_t)count * sizeof(real));
}

/* Reads a tensor of one expert, or [d,h] of a dense layer, into all of this rank's experts. */
static int read_expert(const choir_tensors *file, const char *path, const ch_exec *x, const ch_param *p,
                       const choir_tensor *t) {
  const int64_t one[3] = {1, p->shape[1], p->shape[2]};
  const ch_stored s = ch_stored_real(t->name, t->dims, one + (t->dims == 2), p->w);
  ch_part first = p->part;
  first.row = 0;
  first.rows = p->shape[1];
  if (!p->count) return CHOIR_OK;
  CH_TRY(read_part(file, path, &s, &first, x, 0));
  repeat_expert(x, p, ch_part_count(&first));
  return CHOIR_OK;
}

/* As read_expert, from a tensor [h,d], which is transposed. */
static int read_transposed(const choir_tensors *file, const char *path, const ch_exec *x, const ch_param *p,
                           const choir_tensor *t) {
  int64_t d = p->shape[1], h = p->shape[2], columns = p->part.columns;
  if (!p->count) return CHOIR_OK;
  real *whole;
  CH_TRY(CH_ALLOC(&whole, d * (h + columns), "tensor '%s' of %s and its transpose", t->name, path));
  real *turned = whole + d * h;
  const ch_exec host = {.memory = &ch_memory_host};
  const ch_stored s = ch_stored_real(t->name, 2, (const int64_t[]){h, d}, CH_AS_DEV(real, whole));
  int code = read_part(file, path, &s, &(ch_part){.rows = h, .columns = d, .width = d}, &host, 0);
  for (int64_t i = 0; i < d && !code; i++)
    for (int64_t j = 0; j < columns; j++) turned[i * columns + j] = whole[(p->part.column + j) * d + i];
  if (!code) {
    x->memory->upload(p->w, turned, (size_t)(d * columns) * sizeof *turned);
    repeat_expert(x, p, d * columns);
  }
  free(whole);
  return code;
}

/* The dense matrix of the file that an expert's matrix starts from: for W1 the gate, or the up projection if there is
 * no gate; for W3 the up projection; for W2 the down projection. NULL: the file has no such layer. */
static const choir_tensor *dense_of(const ch_params *params, const choir_tensors *file, const ch_param *p) {
  char name[80];
  snprintf(name, sizeof name, "layers.%d.moe.experts.w3", p->layer);
  int gated = ch_params_find(params, name) != NULL, which = p->name[strlen(p->name) - 1] - '0';
  snprintf(name, sizeof name, "layers.%d.ffn.%s.weight", p->layer,
           which == 2            ? "down"
           : which == 1 && gated ? "gate"
                                 : "up");
  return choir_tensors_find(file, name);
}

/* The file's tensor for a parameter: itself, one expert, or a dense layer; *kind says which. */
typedef enum { ITSELF, ONE_EXPERT, DENSE } source;
static const choir_tensor *source_of(const ch_params *params, const choir_tensors *file, const ch_param *p,
                                     source *kind) {
  const choir_tensor *t = choir_tensors_find(file, p->name);
  *kind = is_dense_of(t, p) ? ONE_EXPERT : ITSELF;
  if (t || !p->expert || !(t = dense_of(params, file, p))) return t;
  *kind = DENSE;
  return t;
}

static int start_tensor(const ch_params *params, const ch_exec *x, const char *path, const choir_tensors *file,
                        ch_param *p, source *kind) {
  const choir_tensor *t = source_of(params, file, p, kind);
  const ch_stored s = ch_stored_param(p);
  if (*kind == ITSELF) return ch_tensor_read(file, path, &s, x, 0);
  if (*kind == ONE_EXPERT || strstr(t->name, ".down.")) return read_expert(file, path, x, p, t);
  return read_transposed(file, path, x, p, t);
}

/* Counts layers whose experts are copies of one expert or dense layer of the file. */
static int count_upcycled(const ch_params *params, const char *path, const choir_tensors *file, int *upcycled) {
  char gate[80], up[80];
  *upcycled = 0;
  for (int i = 0; i < params->count; i++) {
    const ch_param *p = &params->p[i];
    source kind;
    if (!p->expert || !strstr(p->name, ".w1") || !source_of(params, file, p, &kind) || kind == ITSELF) continue;
    ++*upcycled;
    snprintf(gate, sizeof gate, "layers.%d.ffn.gate.weight", p->layer);
    snprintf(up, sizeof up, "layers.%d.moe.experts.w3", p->layer);
    if (kind == DENSE && choir_tensors_find(file, gate) && !ch_params_find(params, up))
      return ch_error(CHOIR_ERROR_FORMAT,
                      "%s: '%s' is to come of a feed-forward that is gated ('%s'), and experts here are not: set "
                      "model.expert_activation to that model's activation",
                      path, p->name, gate);
  }
  return CHOIR_OK;
}

/* Whether a tensor belongs to a router: weight or centroids, and thresholds. */
static int is_of_router(const char *name) { return strstr(name, ".moe.router.") || strstr(name, ".moe.thresholds"); }

static int start_open(ch_params *params, const ch_exec *x, const char *path, const choir_tensors *file,
                      ch_router_start router, int *upcycled) {
  int used = 0, there = 0;
  CH_TRY(count_upcycled(params, path, file, upcycled));
  if (!*upcycled && router == CH_ROUTER_ALL) return load_open(params, x, path, 0, file);
  for (int i = 0; i < params->count + params->buffers; i++) {
    ch_param *p = &params->p[i];
    source kind;
    const choir_tensor *t = source_of(params, file, p, &kind);
    int of_router = is_of_router(p->name), buffer = i >= params->count;
    if (of_router && (!t || router == CH_ROUTER_NOTHING || (router == CH_ROUTER_WEIGHT && buffer))) continue;
    CH_TRY(start_tensor(params, x, path, file, p, &kind));
    used += !of_router;
  }
  for (int i = 0; i < choir_tensors_count(file); i++) there += !is_of_router(choir_tensors_at(file, i)->name);
  if (used == there) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %d of its %d tensors are not part of this config's model", path,
                  there - used, choir_tensors_count(file));
}

int ch_weights_start(ch_params *params, const ch_exec *x, const char *path, ch_router_start router, int *upcycled) {
  choir_tensors *file;
  CH_TRY(choir_tensors_load(path, 1, &file));
  int code = ch_binding_check(file, path);
  if (!code) code = start_open(params, x, path, file, router, upcycled);
  choir_tensors_free(file);
  return code;
}
