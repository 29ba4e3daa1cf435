/* A disk on paper: what a recorded program did to its files, and what may be left of it when the power goes. */
#ifndef CH_TESTS_FAULTS_DISK_H
#define CH_TESTS_FAULTS_DISK_H

#include <stddef.h>
#include <stdint.h>

/* An operation on a file or directory, known by number and not by name: what is done to a directory whose new name was
 * lost is done to it all the same. */
typedef enum { DISK_WRITE, DISK_TRUNCATE, DISK_ENTER, DISK_MOVE, DISK_LEAVE } disk_kind;
typedef struct disk_op {
  disk_kind kind;
  int node;            /* written, cut, entered, moved or left */
  int parent, parent2; /* directories: where it is entered or left; where it is moved to */
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
    unsigned char *data; /* of a file that was there before */
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

/* The fate of an operation that was not safe when the power went. A write that is torn has its first half there; of one
 * with zeros, the file is as long as it was to be and its bytes are not. */
typedef enum { DISK_LOST, DISK_KEPT, DISK_TORN, DISK_ZEROS } disk_fate;
typedef disk_fate disk_keep(void *context, const disk_op *op);

/* Makes `directory` (which must not be there) as the disk is when the power goes behind record `end`. */
void disk_leave(const disk *d, size_t end, disk_keep *keep, void *context, const char *directory);

#endif
