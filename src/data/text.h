/* Reads documents from files: plain text split at separator lines, or JSON lines. Documents are streamed in blocks,
 * so that memory does not grow with the input or with a document. */
#ifndef CH_DATA_TEXT_H
#define CH_DATA_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* ---- one input file ----
 * A stream of decompressed bytes: plain, gz (also dictzip), xz, zst, bz2, distinguished by content. */

typedef struct ch_input {
  const char *path;     /* owned by the caller */
  struct ch_gzip *gzip; /* one of these two is in use */
  struct archive *archive;
  uint64_t size; /* size on disk */
  int ended;
} ch_input;

/* Returns the file's size on disk. CHOIR_ERROR_IO: it cannot be read or is not a regular file (inputs may be read
 * twice, so pipes are refused). */
int ch_input_check(const char *path, uint64_t *bytes);

int ch_input_open(ch_input *input, const char *path);
/* The next bytes, valid until the next call; size 0: the end. CHOIR_ERROR_FORMAT: damaged or truncated compressed
 * data. */
int ch_input_read(ch_input *input, const void **data, size_t *size);
uint64_t ch_input_consumed(const ch_input *input); /* bytes of the file on disk read so far */
void ch_input_close(ch_input *input);

/* CHOIR_ERROR_FORMAT if a file with these first bytes is not text: an archive, a compressed file (also with one
 * flipped bit), UTF-16. Checks at most CH_DETECT_BYTES bytes; if fewer are given, they are the whole text. */
enum { CH_DETECT_BYTES = 512 };
int ch_detect_non_text(const char *path, const void *bytes, size_t size);

/* ---- documents ---- */

typedef struct ch_text_options {
  const char *const *inputs; /* NULL-terminated */
  const char *field;         /* JSON lines: the field with the text; NULL: plain text */
  const char *separator;     /* plain text: the line between documents; NULL: a file is one document, and one that is
                                JSON lines is CHOIR_ERROR_FORMAT */
  int replace_invalid;       /* bytes that are not UTF-8 become U+FFFD, one each; 0: an error */
  size_t block_bytes;        /* maximum size of blocks, approximately; at least 8 */
} ch_text_options;

/* A block of a document. Blocks end at line ends if possible (before the newline), otherwise before a space,
 * otherwise between two characters. This changes tokens only in runs without any space that are longer than a block. */
typedef struct ch_block {
  const char *text; /* well-formed UTF-8, valid until the next call */
  size_t size;      /* may be 0 in the last block of a document */
  int last;         /* the document ends here */
} ch_block;

typedef struct ch_text ch_text;

/* Checks that all inputs exist, without opening them. */
int ch_text_open(const ch_text_options *options, ch_text **text);
/* more = 0: the end, without a block. Empty documents are skipped. */
int ch_text_next(ch_text *text, ch_block *block, int *more);
void ch_text_close(ch_text *text);

uint64_t ch_text_bytes_done(const ch_text *text); /* bytes of the files on disk */
uint64_t ch_text_bytes_total(const ch_text *text);
uint64_t ch_text_replaced(const ch_text *text); /* bytes replaced so far */

/* ---- the held-out parts of a source ---- */

enum { CH_HOLDOUT_DOCUMENTS = 200, CH_HOLDOUT_BLOCK = 1 << 16 };

/* The unit of the split: documents, or, in a source with too few documents, blocks of text. */
typedef struct ch_holdout {
  uint64_t seed;
  uint32_t source;
  double
      share; /* held-out share of the units; larger than requested for very little text, so that both splits get some */
  int by_blocks;
  size_t block_bytes; /* size of a unit if by_blocks, else of the reader's blocks */
} ch_holdout;

/* Reads the source's text only until it has enough documents. `goes_on` is called after every block and may stop
 * with an error. CHOIR_ERROR_FORMAT: no text at all. */
int ch_holdout_plan(const ch_text_options *text, uint64_t seed, int source, double share, int (*goes_on)(void *context),
                    void *context, ch_holdout *holdout);

/* Whether unit number `unit` is held out: of each run of 1/share units exactly one is, sampled by the counter-based
 * generator. */
int ch_held_out(const ch_holdout *holdout, uint64_t unit);

#endif
