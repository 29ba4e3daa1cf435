/* Documents out of files: plain text split at separator lines, or JSON lines. Streams in blocks, so that memory does
 * not grow with the input or with a document. */
#ifndef CH_DATA_TEXT_H
#define CH_DATA_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* ---- one input file ----
 * As a stream of bytes, decompressed on the way: plain, gz (dictzip too), xz, zst, bz2, told apart by content. */

typedef struct ch_input {
  const char *path;     /* the caller's */
  struct ch_gzip *gzip; /* one of the two is in use */
  struct archive *archive;
  uint64_t size; /* on disk */
  int ended;
} ch_input;

/* The file's size on disk. CHOIR_ERROR_IO: it cannot be read or is no regular file (inputs may be read twice, so a pipe
 * will not do). */
int ch_input_check(const char *path, uint64_t *bytes);

int ch_input_open(ch_input *input, const char *path);
/* The next piece, valid until the next call; size 0: the end. CHOIR_ERROR_FORMAT: damaged or truncated compressed data.
 */
int ch_input_read(ch_input *input, const void **data, size_t *size);
uint64_t ch_input_consumed(const ch_input *input); /* bytes of the file on disk read so far */
void ch_input_close(ch_input *input);

/* CHOIR_ERROR_FORMAT where a text that begins with these bytes is none: an archive, a compressed file (but for one bit,
 * too), UTF-16. Looks at CH_DETECT_BYTES bytes at most; a shorter beginning is taken for all of the text. */
enum { CH_DETECT_BYTES = 512 };
int ch_detect_non_text(const char *path, const void *bytes, size_t size);

/* ---- documents ---- */

typedef struct ch_text_options {
  const char *const *inputs; /* NULL-terminated */
  const char *field;         /* JSON lines: the field with the text; NULL: plain text */
  const char *separator;     /* plain text: the line between documents; NULL: a file is one document, and one that is
                                JSON lines is CHOIR_ERROR_FORMAT */
  int replace_invalid;       /* bytes that are not UTF-8 become U+FFFD, one each; 0: an error */
  size_t block_bytes;        /* documents come in blocks of at most about this size; 8 at least */
} ch_text_options;

/* A block of a document. Blocks end at line ends where they can (before the newline), else before a space, else between
 * two characters: nowhere does that change the tokens but in runs without any space that are longer than a block. */
typedef struct ch_block {
  const char *text; /* well-formed UTF-8, valid until the next call */
  size_t size;      /* may be 0 in the last block of a document */
  int last;         /* the document ends here */
} ch_block;

typedef struct ch_text ch_text;

/* Checks that all inputs exist, without opening them. */
int ch_text_open(const ch_text_options *options, ch_text **text);
/* more = 0: the end, no block. Documents without a byte are left out. */
int ch_text_next(ch_text *text, ch_block *block, int *more);
void ch_text_close(ch_text *text);

uint64_t ch_text_bytes_done(const ch_text *text); /* of the files on disk */
uint64_t ch_text_bytes_total(const ch_text *text);
uint64_t ch_text_replaced(const ch_text *text); /* bytes replaced so far */

/* ---- which parts of a source are kept for evaluation ---- */

enum { CH_HOLDOUT_DOCUMENTS = 200, CH_HOLDOUT_BLOCK = 1 << 16 };

/* How a source is divided: by documents, or, where it has too few of them, by blocks of text. */
typedef struct ch_holdout {
  uint64_t seed;
  uint32_t source;
  double share; /* of the units; with very little text more than was asked for, so that both sides get some */
  int by_blocks;
  size_t block_bytes; /* of a unit when by_blocks, else just of the reader's blocks */
} ch_holdout;

/* Looks at the source's text, only as far as needed to see that it has documents enough. `goes_on` is asked after every
 * block and may end it with an error. CHOIR_ERROR_FORMAT: no text at all. */
int ch_holdout_plan(const ch_text_options *text, uint64_t seed, int source, double share, int (*goes_on)(void *context),
                    void *context, ch_holdout *holdout);

/* Whether unit number `unit` is held out: exactly one, drawn by the counter-based generator, of each run of 1/share
 * units. */
int ch_held_out(const ch_holdout *holdout, uint64_t unit);

#endif
