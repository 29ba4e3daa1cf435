/* A disk on paper: what a recorded program did to its files, and what may be left of it when the power goes. */
#ifndef CH_TESTS_FAULTS_DISK_H
#define CH_TESTS_FAULTS_DISK_H

#include <stddef.h>
#include <stdint.h>

/* An operation on a file or directory, known by number and not by name: a directory whose new name was lost still has
 * the files that were made in it later. */
typedef enum { DISK_WRITE, DISK_TRUNCATE, DISK_ENTER, DISK_MOVE, DISK_LEAVE } disk_kind;
typedef struct disk_op {
  disk_kind kind;
  int node;            /* written, cut, entered, moved or left */
  int parent, parent2; /* directories: of the entry that is made or removed; a rename's new one */
  char name[128], name2[128];
  uint64_t offset, bytes;
  const unsigned char *data;
  size_t safe; /* number of the record with which it is on the disk for certain; SIZE_MAX: never */
  size_t record;
} disk_op;

typedef struct disk {
  disk_op *op;
  int ops, room;
  size_t records;
  char (*said)[256]; /* [records] for people */
  struct disk_node {
    int directory;
    uint64_t inode;
    unsigned char *data; /* a file's bytes */
    uint64_t size;
    int entries;
    struct disk_entry {
      char name[128];
      int node;
    } * entry;
  } * node; /* [0]: the root */
  int nodes, nodes_room;
  unsigned char *bytes; /* of the trace */
} disk;

/* Reads what is in `directory` as the disk before the program, and the trace (shim.h) of what it did; aborts on what it
 * does not understand. */
void disk_read(disk *d, const char *directory);
void disk_trace(disk *d, const char *trace);
void disk_free(disk *d);

/* The fate of an operation that was not synced when the power went. A torn write has its first half on the disk; a
 * write of zeros gives the file its new length, but zeros in place of the bytes. */
typedef enum { DISK_LOST, DISK_KEPT, DISK_TORN, DISK_ZEROS } disk_fate;
typedef disk_fate disk_keep(void *context, const disk_op *op);

/* Makes `directory` (which must not be there) as the disk is when the power goes behind record `end`. */
void disk_leave(const disk *d, size_t end, disk_keep *keep, void *context, const char *directory);

#endif
