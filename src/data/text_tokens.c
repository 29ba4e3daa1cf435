#include "data/text_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "base/error.h"
#include "data/encoder.h"
#include "data/utf8.h"
#include "file/file.h"

static const size_t FILE_LIMIT = (size_t)1 << 36;

/* Bytes that surely hold `most` tokens: so many of the longest piece, and a word for the one that the cut breaks. */
static size_t enough(const choir_tokenizer *t, size_t most) {
  enum { WORD = 4096 };
  size_t longest = 1;
  for (int i = 0; i < t->vocab; i++)
    if (t->surface[i].size > longest) longest = t->surface[i].size;
  return most < (FILE_LIMIT - WORD) / longest ? most * longest + WORD : FILE_LIMIT;
}

/* The first `limit` bytes, less what is left of a character there. */
static int read_start(const char *path, size_t limit, char **text, size_t *bytes, int *cut) {
  FILE *file = fopen(path, "rb");
  if (!file) return ch_error_errno("%s: cannot open", path);
  char *data = malloc(limit + 1);
  size_t size = data ? fread(data, 1, limit + 1, file) : 0;
  int failed = ferror(file);
  int code = !data    ? ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for %zu bytes", path, limit)
             : failed ? ch_error_errno("%s: cannot read", path)
                      : CHOIR_OK;
  fclose(file);
  if (code) {
    free(data);
    return code;
  }
  *cut = size > limit;
  *bytes = *cut ? ch_utf8_cut(data, limit) : size;
  *text = data;
  return CHOIR_OK;
}

/* Bytes that gzip makes of a text; 0: no memory. */
static size_t gzip_bytes(const char *text, size_t bytes) {
  enum { GZIP_FRAME = 18, ZLIB_FRAME = 6 };
  uLongf size = compressBound(bytes);
  Bytef *packed = malloc(size);
  if (packed && compress2(packed, &size, (const Bytef *)text, bytes, Z_DEFAULT_COMPRESSION)) size = 0;
  free(packed);
  return packed && size ? size - ZLIB_FRAME + GZIP_FRAME : 0;
}

int ch_text_tokens_read(const choir_tokenizer *t, const char *path, size_t most, int (*stop)(void *context),
                        void *context, ch_text_tokens *out) {
  char *text;
  size_t bytes;
  *out = (ch_text_tokens){0};
  if (!t) return ch_error(CHOIR_ERROR_ARGUMENT, "%s: a text needs the checkpoint's tokenizer.model", path);
  if (most)
    CH_TRY(read_start(path, enough(t, most), &text, &bytes, &out->cut));
  else
    CH_TRY(ch_file_read(path, FILE_LIMIT, &text, &bytes));
  int code = ch_encode_text(t, text, bytes, stop, context, &out->ids, &out->count);
  if (!code && !most) out->gzip = gzip_bytes(text, bytes);
  free(text);
  if (code) return ch_error_in(code, "%s", path);
  if (most && out->count > most) {
    out->count = most;
    out->cut = 1;
  }
  for (size_t i = 0; i < out->count; i++) out->bytes += t->surface[out->ids[i]].size;
  return CHOIR_OK;
}
