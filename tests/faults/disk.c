#include "disk.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "file/file.h"
#include "shim.h"

static void *grow(void *list, int count, int *room, size_t size) {
  if (count < *room) return list;
  *room = 2 * count + 64;
  list = realloc(list, (size_t)*room * size);
  if (!list) abort();
  return list;
}

static int new_node(disk *d, int directory, uint64_t inode) {
  d->node = grow(d->node, d->nodes, &d->nodes_room, sizeof *d->node);
  d->node[d->nodes] = (struct disk_node){.directory = directory, .inode = inode};
  return d->nodes++;
}

static int find(const struct disk_node *directory, const char *name) {
  for (int i = 0; i < directory->entries; i++)
    if (!strcmp(directory->entry[i].name, name)) return i;
  return -1;
}

static void enter(struct disk_node *directory, const char *name, int node) {
  int i = find(directory, name);
  if (i < 0) {
    i = directory->entries++;
    directory->entry = realloc(directory->entry, (size_t)directory->entries * sizeof *directory->entry);
    if (!directory->entry) abort();
    snprintf(directory->entry[i].name, sizeof directory->entry[i].name, "%s", name);
  }
  directory->entry[i].node = node;
}

/* Only where the name still means this node. */
static void leave(struct disk_node *directory, const char *name, int node) {
  int i = find(directory, name);
  if (i >= 0 && directory->entry[i].node == node) directory->entry[i] = directory->entry[--directory->entries];
}

static void read_into(disk *d, int parent, const char *path) {
  char inner[4096];
  DIR *stream = opendir(path);
  if (!stream) abort();
  for (struct dirent *entry; (entry = readdir(stream));) {
    struct stat status;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
    if (lstat(inner, &status)) abort();
    int node = new_node(d, S_ISDIR(status.st_mode), status.st_ino);
    enter(&d->node[parent], entry->d_name, node);
    if (S_ISDIR(status.st_mode)) {
      read_into(d, node, inner);
    } else {
      size_t size;
      char *data;
      if (ch_file_read(inner, (size_t)1 << 28, &data, &size)) abort();
      d->node[node].data = (unsigned char *)data;
      d->node[node].size = size;
    }
  }
  closedir(stream);
}

void disk_read(disk *d, const char *directory) {
  *d = (disk){0};
  new_node(d, 1, 0);
  read_into(d, 0, directory);
}

/* ---- the trace: names to nodes, on a disk that loses nothing */

/* The directory that a path stands in, and its last name; -1: not below the root. */
static int parent_of(const struct disk_node *now, const char *path, const char **last) {
  int at = 0;
  for (const char *slash; (slash = strchr(path, '/')); path = slash + 1) {
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)(slash - path), path);
    int i = find(&now[at], name);
    if (i < 0) return -1;
    at = now[at].entry[i].node;
  }
  *last = path;
  return at;
}

static int node_at(const struct disk_node *now, const char *path) {
  const char *name;
  if (!*path) return 0;
  int parent = parent_of(now, path, &name), i = parent < 0 ? -1 : find(&now[parent], name);
  return i < 0 ? -1 : now[parent].entry[i].node;
}

static disk_op *add(disk *d, disk_kind kind, int node, size_t record) {
  d->op = grow(d->op, d->ops, &d->room, sizeof *d->op);
  d->op[d->ops] =
      (disk_op){.kind = kind, .node = node, .parent = -1, .parent2 = -1, .safe = SIZE_MAX, .record = record};
  return &d->op[d->ops++];
}

/* Marks as safe what is so once a file (its bytes) or a directory (its names) has been synced. A move is one with its
 * new place. */
static void synced(disk *d, int node, int directory, size_t record) {
  for (int i = 0; i < d->ops; i++) {
    disk_op *o = &d->op[i];
    int bytes = o->kind == DISK_WRITE || o->kind == DISK_TRUNCATE;
    int where = o->kind == DISK_MOVE ? o->parent2 : o->parent;
    if (o->safe == SIZE_MAX && (directory ? !bytes && where == node : bytes && o->node == node)) o->safe = record;
  }
}

static _Noreturn void lost(const char *what, const char *path) {
  fprintf(stderr, "the trace %s '%s', which is not there\n", what, path);
  abort();
}

/* A file or directory comes to be under a name. */
static void made(disk *d, int directory, uint64_t inode, const char *path, size_t record) {
  const char *name;
  int parent = parent_of(d->node, path, &name), node = new_node(d, directory, inode);
  if (parent < 0) lost("makes", path);
  disk_op *o = add(d, DISK_ENTER, node, record);
  o->parent = parent;
  snprintf(o->name, sizeof o->name, "%s", name);
  enter(&d->node[parent], name, node);
}

static void moved(disk *d, const char *path, const char *path2, size_t record) {
  const char *name, *name2;
  int parent = parent_of(d->node, path, &name), parent2 = parent_of(d->node, path2, &name2);
  int node = node_at(d->node, path);
  if (parent < 0 || parent2 < 0 || node < 0) lost("moves", path);
  disk_op *o = add(d, DISK_MOVE, node, record);
  o->parent = parent, o->parent2 = parent2;
  snprintf(o->name, sizeof o->name, "%s", name);
  snprintf(o->name2, sizeof o->name2, "%s", name2);
  leave(&d->node[parent], name, node);
  enter(&d->node[parent2], name2, node);
}

static void removed(disk *d, const char *path, size_t record) {
  const char *name;
  int parent = parent_of(d->node, path, &name), node = node_at(d->node, path);
  if (node < 0) lost("removes", path);
  disk_op *o = add(d, DISK_LEAVE, node, record);
  o->parent = parent;
  snprintf(o->name, sizeof o->name, "%.*s", (int)sizeof o->name - 1, name);
  leave(&d->node[parent], name, node);
}

static int file_of(const disk *d, const shim_record *r, const char *path) {
  for (int i = d->nodes - 1; i > 0; i--) /* numbers of inodes are used again: the newest */
    if (!d->node[i].directory && d->node[i].inode == r->file) return i;
  lost("writes", path);
}

static void read_record(disk *d, const shim_record *r, const char *path, const char *path2, const unsigned char *data) {
  static const char *const verbs[] = {"write",  "truncate", "create", "fsync", "fsync of directory",
                                      "rename", "mkdir",    "unlink", "rmdir"};
  size_t record = d->records++;
  d->said = realloc(d->said, d->records * sizeof *d->said);
  if (!d->said) abort();
  snprintf(d->said[record], sizeof *d->said, "%s %.90s %.90s", verbs[r->change], path, path2);
  if (r->change == SHIM_T_WRITE || r->change == SHIM_T_TRUNCATE) {
    disk_op *o = add(d, r->change == SHIM_T_WRITE ? DISK_WRITE : DISK_TRUNCATE, file_of(d, r, path), record);
    o->offset = r->offset, o->bytes = r->bytes, o->data = data;
  } else if (r->change == SHIM_T_SYNC) {
    synced(d, file_of(d, r, path), 0, record);
  } else if (r->change == SHIM_T_SYNC_DIRECTORY) {
    synced(d, node_at(d->node, path), 1, record);
  } else if (r->change == SHIM_T_RENAME) {
    moved(d, path, path2, record);
  } else if (r->change == SHIM_T_UNLINK || r->change == SHIM_T_RMDIR) {
    removed(d, path, record);
  } else {
    made(d, r->change == SHIM_T_MKDIR, r->file, path, record);
  }
}

/* Copies of the names only: bytes of old files stay with the disk. */
static struct disk_node *copy_nodes(const struct disk_node *from, int count) {
  struct disk_node *to = malloc((size_t)count * sizeof *to);
  if (!to) abort();
  memcpy(to, from, (size_t)count * sizeof *to);
  for (int i = 0; i < count; i++)
    if (from[i].entries) {
      to[i].entry = malloc((size_t)from[i].entries * sizeof *to[i].entry);
      if (!to[i].entry) abort();
      memcpy(to[i].entry, from[i].entry, (size_t)from[i].entries * sizeof *to[i].entry);
    } else {
      to[i].entry = NULL;
    }
  return to;
}

static void free_entries(struct disk_node *node, int count) {
  for (int i = 0; i < count; i++) free(node[i].entry);
}

void disk_trace(disk *d, const char *trace) {
  size_t size;
  char *bytes;
  int before = d->nodes;
  struct disk_node *old = copy_nodes(d->node, before);
  if (ch_file_read(trace, (size_t)1 << 30, &bytes, &size)) abort();
  d->bytes = (unsigned char *)bytes;
  for (size_t at = 0; at < size;) {
    shim_record r;
    char path[4096], path2[4096];
    memcpy(&r, bytes + at, sizeof r);
    at += sizeof r;
    snprintf(path, sizeof path, "%.*s", (int)r.path_bytes, bytes + at);
    snprintf(path2, sizeof path2, "%.*s", (int)r.path2_bytes, bytes + at + r.path_bytes);
    at += r.path_bytes + r.path2_bytes;
    read_record(d, &r, path, path2, d->bytes + at);
    if (r.change == SHIM_T_WRITE) at += r.bytes;
  }
  /* Back to the names before the program: what it did stands in the operations. */
  free_entries(d->node, d->nodes);
  for (int i = 0; i < d->nodes; i++)
    if (i < before)
      d->node[i] = old[i];
    else
      d->node[i].entry = NULL, d->node[i].entries = 0;
  free(old);
}

void disk_free(disk *d) {
  free_entries(d->node, d->nodes);
  for (int i = 0; i < d->nodes; i++) free(d->node[i].data);
  free(d->node), free(d->op), free(d->said), free(d->bytes);
  *d = (disk){0};
}

/* ---- what is left */

static void write_bytes(struct disk_node *file, const disk_op *o, uint64_t bytes, int zeros) {
  uint64_t end = o->kind == DISK_WRITE ? o->offset + bytes : o->offset;
  if (end > file->size || o->kind == DISK_TRUNCATE) {
    unsigned char *data = realloc(file->data, end + 1);
    if (!data) abort();
    if (end > file->size) memset(data + file->size, 0, end - file->size); /* a hole reads as zeros */
    file->data = data, file->size = end;
  }
  if (o->kind == DISK_WRITE && zeros) memset(file->data + o->offset, 0, bytes);
  if (o->kind == DISK_WRITE && !zeros) memcpy(file->data + o->offset, o->data, bytes);
}

static void apply(struct disk_node *node, const disk_op *o, disk_fate fate) {
  switch (o->kind) {
    case DISK_WRITE:
      write_bytes(&node[o->node], o, fate == DISK_TORN ? o->bytes / 2 : o->bytes, fate == DISK_ZEROS);
      break;
    case DISK_TRUNCATE:
      write_bytes(&node[o->node], o, 0, 0);
      break;
    case DISK_ENTER:
      enter(&node[o->parent], o->name, o->node);
      break;
    case DISK_LEAVE:
      leave(&node[o->parent], o->name, o->node);
      break;
    case DISK_MOVE:
      leave(&node[o->parent], o->name, o->node);
      enter(&node[o->parent2], o->name2, o->node);
      break;
  }
}

static void make(const struct disk_node *node, int at, const char *path) {
  char inner[4096];
  if (mkdir(path, 0777)) abort();
  for (int i = 0; i < node[at].entries; i++) {
    const struct disk_node *n = &node[node[at].entry[i].node];
    snprintf(inner, sizeof inner, "%s/%s", path, node[at].entry[i].name);
    if (n->directory) {
      make(node, node[at].entry[i].node, inner);
      continue;
    }
    FILE *file = fopen(inner, "w");
    if (!file || (n->size && fwrite(n->data, 1, n->size, file) != n->size) || fclose(file)) abort();
  }
}

void disk_leave(const disk *d, size_t end, disk_keep *keep, void *context, const char *directory) {
  struct disk_node *node = copy_nodes(d->node, d->nodes);
  for (int i = 0; i < d->nodes; i++)
    if (node[i].data) {
      unsigned char *own = malloc(node[i].size + 1);
      if (!own) abort();
      memcpy(own, node[i].data, node[i].size);
      node[i].data = own;
    }
  for (int i = 0; i < d->ops && d->op[i].record <= end; i++) {
    disk_fate fate = d->op[i].safe <= end ? DISK_KEPT : keep(context, &d->op[i]);
    if (fate != DISK_LOST) apply(node, &d->op[i], fate);
  }
  make(node, 0, directory);
  free_entries(node, d->nodes);
  for (int i = 0; i < d->nodes; i++) free(node[i].data);
  free(node);
}
