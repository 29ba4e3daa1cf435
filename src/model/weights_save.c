/* Saving tensors, on one rank or many. Files are written in rows: in each row every rank writes one file. Within a row
 * all ranks run the same rounds: in round j every writer receives the j-th distributed tensor of its file from the
 * ranks of its replica, which together hold the whole tensor. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "file/checkpoints.h"
#include "file/temporary.h"
#include "file/tensors_set.h"
#include "model/weights.h"
#include "moe/plugin.h"

typedef struct stage {
  const ch_exec *x;
  const ch_comm *comm; /* of x: all */
  const char *path;
  const ch_stored *stored;
  const char *const *metadata;
  choir_tensor *tensor; /* `stored` as tensors of the file format */
  int count;
  int *first, files; /* from ch_tensors_cut */
  int row, file;     /* indices of the row's first file and of this rank's file */
  int round;         /* rounds done in this row */
  char *bytes;       /* buffer for a tensor that is not in host memory */
  char *arrived;     /* buffer for its shards in rank order, if columns must be interleaved */
} stage;

static int is_shared(const stage *s, int i) {
  return (s->stored[i].experts || s->stored[i].owner >= 0) && s->x->grid.replica.size > 1;
}

/* The distributed tensor that the writer of file f receives in this round; NULL: none. */
static const ch_stored *brought(const stage *s, int f) {
  int number = 0;
  for (int i = f < s->files ? s->first[f] : s->count; f < s->files && i < s->first[f + 1]; i++)
    if (is_shared(s, i) && number++ == s->round) return &s->stored[i];
  return NULL;
}

/* The range that a rank of the replica sends. Of experts' tensors without a hidden dimension only the first hidden
 * shard sends. */
static ch_part sent_part(const stage *s, const ch_stored *t, int rank) {
  if (t->experts && !t->hidden && rank % s->x->grid.tp_group.size) return (ch_part){0};
  return ch_stored_part(t, &s->x->grid, rank);
}

/* Interleaves the columns of the hidden shards. */
static void put_in_order(const stage *s, const ch_stored *t) {
  const char *from = s->arrived;
  for (int r = 0; r < s->x->grid.replica.size; r++) {
    const ch_part part = sent_part(s, t, r);
    ch_part_place(&part, from, s->bytes, sizeof(real));
    from += ch_part_count(&part) * (int64_t)sizeof(real);
  }
}

static void play_round(stage *s) {
  ch_bytes send[CH_RANKS] = {{0}}, receive[CH_RANKS] = {{0}};
  const ch_comm *replica = &s->x->grid.replica;
  const int64_t size = sizeof(real);
  for (int r = 0; r < replica->size; r++) {
    const ch_stored *t = brought(s, s->row + ch_comm_number(replica, r));
    const ch_part local = t ? sent_part(s, t, replica->rank) : (ch_part){0};
    if (t) send[r] = (ch_bytes){(void *)(uintptr_t)t->tensor.data, ch_part_count(&local) * size};
  }
  const ch_stored *mine = brought(s, s->file);
  char *at = s->arrived ? s->arrived : s->bytes;
  for (int r = 0; r < replica->size && mine; at += receive[r++].bytes) {
    const ch_part part = sent_part(s, mine, r);
    receive[r] = (ch_bytes){at, ch_part_count(&part) * size};
  }
  ch_comm_exchange(replica, "tensors for a file", send, receive);
  if (mine && s->arrived) put_in_order(s, mine);
  s->round++;
}

/* Callback of the file writer. */
static const void *fetch_tensor(void *context, const choir_tensor *t) {
  stage *s = context;
  if (is_shared(s, (int)(t - s->tensor))) {
    play_round(s);
    return s->bytes;
  }
  if (s->x->memory->host || !t->dims) return t->data;
  s->x->memory->download(s->bytes, CH_AS_DEV(const void, t->data), t->bytes);
  return s->bytes;
}

/* Number of rounds of the row: the max over its files. */
static int rounds(const stage *s) {
  int max = 0;
  for (int f = s->row; f < s->files && f < s->row + s->comm->size; f++) {
    int number = 0;
    for (int i = s->first[f]; i < s->first[f + 1]; i++) number += is_shared(s, i);
    if (number > max) max = number;
  }
  return max;
}

/* Writes this rank's file of the row, if any, and takes part in every round of the other ranks' files, even if its own
 * file could not be opened, because the other ranks do not know of the failure yet. */
static int write_row(stage *s) {
  const int f = s->file;
  char path[PATH_MAX];
  int code = CHOIR_OK;
  s->round = 0;
  if (f < s->files) {
    ch_tensors_file_path(s->path, f, s->files, path);
    code = ch_tensors_write(path, s->tensor + s->first[f], s->first[f + 1] - s->first[f], s->metadata, fetch_tensor, s);
    if (!code) code = ch_device_check(s->x); /* a failed device copy leaves wrong bytes in the file */
  }
  while (s->round < rounds(s)) play_round(s);
  return ch_comm_agree(s->comm, code);
}

static int prepare_stage(stage *s, int64_t max) {
  size_t largest = 1;
  int away = !s->x->memory->host;
  CH_TRY(CH_ALLOC(&s->tensor, s->count, "the tensors of %s", s->path));
  CH_TRY(CH_ALLOC(&s->first, s->count + 2, "the tensors of %s", s->path));
  for (int i = 0; i < s->count; i++) {
    s->tensor[i] = s->stored[i].tensor;
    away |= is_shared(s, i);
    if (s->tensor[i].bytes > largest) largest = s->tensor[i].bytes;
  }
  s->files = ch_tensors_cut(s->tensor, s->count, max, s->first);
  if (!away || s->file >= s->files) return CHOIR_OK;
  CH_TRY(CH_ALLOC(&s->bytes, largest, "a copy of the largest tensor of %s", s->path));
  if (s->x->grid.tp_group.size == 1) return CHOIR_OK;
  return CH_ALLOC(&s->arrived, largest, "a copy of the largest tensor of %s", s->path);
}

static int write_files(stage *s) {
  for (; s->row < s->files; s->row += s->comm->size, s->file += s->comm->size) CH_TRY(write_row(s));
  if (s->files == 1) return CHOIR_OK;
  return CH_ON_FIRST(s->comm, ch_tensors_index_write(s->path, s->tensor, s->first, s->files));
}

int ch_tensors_save(const ch_exec *x, const char *path, const ch_stored *tensors, int count, int64_t max,
                    const char *const *metadata) {
  stage s = {.x = x,
             .comm = x->comm,
             .path = path,
             .stored = tensors,
             .metadata = metadata,
             .count = count,
             .file = x->comm->rank};
  int code = ch_comm_agree(x->comm, prepare_stage(&s, max));
  if (!code) code = write_files(&s);
  free(s.first);
  free(s.tensor);
  free(s.bytes);
  free(s.arrived);
  return code;
}

/* On the first rank, which writes the directory. */
static int bind(const ch_exec *x, const char *path, ch_binding *binding) {
  char directory[PATH_MAX];
  ch_path_parent(path, directory, sizeof directory);
  CH_TRY(CH_ON_FIRST(x->comm, ch_binding_of(directory, binding)));
  ch_comm_broadcast(x->comm, 0, binding, sizeof *binding);
  return CHOIR_OK;
}

/* Adds the router's version to the metadata, after the binding. */
static void add_version(const ch_router *router, const char **metadata) {
  const ch_plugin *p = ch_plugin_of(router);
  if (!p || !*p->given.version) return;
  while (*metadata) metadata++;
  metadata[0] = CH_TRAINED_BY_KEY;
  metadata[1] = p->given.version;
  metadata[2] = NULL;
}

int ch_weights_save(const ch_params *params, const ch_exec *x, const ch_router *router, const char *path, int64_t max) {
  int count = params->count + params->buffers, code;
  const char *metadata[7];
  ch_binding binding = {0};
  CH_TRY(bind(x, path, &binding));
  ch_binding_metadata(&binding, metadata);
  add_version(router, metadata);
  ch_stored *stored;
  code = ch_comm_agree(x->comm, CH_ALLOC(&stored, count, "the tensors of %s", path));
  for (int i = 0; i < count && !code; i++) stored[i] = ch_stored_param(&params->p[i]);
  if (!code) code = ch_tensors_save(x, path, stored, count, max, metadata);
  free(stored);
  return code;
}
