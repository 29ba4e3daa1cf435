#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/enter.h"
#include "base/hash.h"
#include "choir/model.h"
#include "data/bpe_read.h"
#include "data/encoder.h"
#include "file/checkpoints.h"
#include "file/file.h"
#include "file/path_status.h"

static const size_t FILE_LIMIT = (size_t)256 << 20;

void choir_tokenizer_free(choir_tokenizer *t) {
  if (!t) return;
  ch_spm_free(t->spm);
  ch_bpe_free(t->bpe);
  free(t->bytes);
  free(t->surface);
  free(t->piece);
  free(t->names);
  free(t);
}

/* Copies a piece with U+2581 replaced by a space. Returns the length, which is never longer than the piece's. */
static size_t plain(const char *piece, size_t size, char *text) {
  size_t n = 0;
  for (size_t i = 0; i < size;) {
    int space = size - i >= 3 && !memcmp(piece + i, "\xE2\x96\x81", 3);
    text[n++] = (char)(space ? ' ' : piece[i]);
    i += space ? 3 : 1;
  }
  text[n] = 0;
  return n;
}

/* Checks the assumption of encoding word by word: no piece spans the end of a word. */
static int within_word(const char *text, size_t size) {
  for (size_t i = 1; i < size; i++)
    if (text[i] == ' ' && text[i - 1] != ' ') return 0;
  return 1;
}

/* Stores the piece's name at *at and advances *at; the name may contain a NUL. */
static int add_piece(choir_tokenizer *t, int id, char **at) {
  size_t size;
  char *name = *at;
  const char *piece = ch_spm_piece(t->spm, id, &size);
  ch_piece_kind kind = ch_spm_kind(t->spm, id);
  size_t length = plain(piece, size, name);
  unsigned byte;
  *at += length + 1;
  t->piece[id] = name;
  t->surface[id] = (ch_surface){name, 0};
  if (kind == CH_PIECE_NORMAL) {
    t->surface[id].size = length;
    if (!within_word(name, length))
      return ch_error(
          CHOIR_ERROR_FORMAT,
          "piece %d (\"%s\") reaches over the end of a word, and choir encodes word by word; train the model "
          "with --split_by_whitespace=true",
          id, name);
    for (size_t i = 0; i < length; i++)
      if (ch_is_control(name[i])) t->joins[(unsigned char)name[i]] = 1;
  } else if (kind == CH_PIECE_BYTE && sscanf(name, "<0x%2X>", &byte) == 1) {
    t->byte[byte] = (char)byte;
    t->surface[id] = (ch_surface){&t->byte[byte], 1};
    t->byte_id[byte] = id;
  }
  return CHOIR_OK;
}

/* Fills the tables of pieces. */
static int add_pieces(choir_tokenizer *t) {
  size_t total = 0, size;
  for (int i = 0; i < t->vocab; i++) ch_spm_piece(t->spm, i, &size), total += size + 1;
  CH_TRY(ch_tokenizer_alloc(t, total));
  for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
  char *at = t->names;
  for (int i = 0; i < t->vocab; i++) CH_TRY(add_piece(t, i, &at));
  for (int b = 0; b < 256; b++)
    if (t->byte_id[b] < 0)
      return ch_error(CHOIR_ERROR_FORMAT, "no piece for byte 0x%02X, although trainer_spec.byte_fallback is true", b);
  return CHOIR_OK;
}

/* Checks that decoding restores a text that contains all kinds of characters, independently of the model's settings. */
static int keeps_text(choir_tokenizer *t) {
  static const char probe[] = "  Ab  c\xC3\xA9 \xEF\xAC\x81\xEF\xBC\xA1 e\xCC\x81 \xF4\x8F\xBF\xBD x ";
  int32_t *ids = NULL;
  char *text = NULL;
  size_t count, length;
  int code = choir_tokenizer_encode(t, probe, sizeof probe - 1, &ids, &count);
  if (!code) code = choir_tokenizer_decode(t, ids, count, &text, &length);
  if (!code && (length != sizeof probe - 1 || memcmp(text, probe, length)))
    code = ch_error(CHOIR_ERROR_FORMAT,
                    "the model changes text: a probe does not come back; make one by choir tokenizer train");
  free(ids);
  free(text);
  return code;
}

static int load_tokenizer(choir_tokenizer *t) {
  size_t size;
  CH_TRY(ch_spm_spec_check(t->bytes, t->size)); /* first, because SentencePiece does not validate its maps */
  void *copy = ch_spm_spec_keep_spaces(t->bytes, t->size, &size);
  if (!copy) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory for the tokenizer");
  int code = ch_spm_load(copy, size, &t->spm);
  free(copy);
  return code;
}

static int build_tokenizer(choir_tokenizer *t) {
  CH_TRY(load_tokenizer(t));
  t->vocab = ch_spm_vocab(t->spm);
  t->eos = ch_spm_eos(t->spm);
  if (t->vocab < 1 || t->vocab > CH_VOCAB_LIMIT)
    return ch_error(CHOIR_ERROR_FORMAT, "%d pieces; choir takes at most %d", t->vocab, CH_VOCAB_LIMIT);
  if (t->eos < 0 || t->eos >= t->vocab)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "trainer_spec.eos_id is -1: the model has no piece that ends a text; train it with one");
  CH_TRY(add_pieces(t));
  return keeps_text(t);
}

/* Replaces a directory by the path of its tokenizer file, stored in `file` (PATH_MAX bytes). */
static int find_file(const char **path, char *file) {
  static const char name[] = "/tokenizer.model";
  struct stat status;
  int there;
  if (stat(*path, &status) || !S_ISDIR(status.st_mode)) return CHOIR_OK;
  if (strlen(*path) + sizeof name > PATH_MAX)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", *path);
  strcat(strcpy(file, *path), name);
  CH_TRY(ch_path_exists(file, &there));
  if (!there) {
    char found[PATH_MAX];
    CH_TRY(ch_checkpoint_resolve(*path, found));
    if (strlen(found) + sizeof name > PATH_MAX)
      return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", found);
    strcat(strcpy(file, found), name);
  }
  *path = file;
  return CHOIR_OK;
}

/* Reads a tokenizer.json. It has tokens for all bytes, so decoding restores every text and needs no check. */
static int read_json(choir_tokenizer *t, const json_t *root, const char *name) {
  json_t *parsed = NULL;
  if (!root) CH_TRY(ch_json_parse(t->bytes, t->size, name, &parsed));
  int code = ch_bpe_read(t, root ? root : parsed, name);
  json_decref(parsed);
  return code;
}

int ch_tokenizer_of(char *bytes, size_t size, const json_t *root, const char *name, choir_tokenizer **tokenizer) {
  choir_tokenizer *t;
  *tokenizer = NULL;
  int code = CH_ALLOC(&t, 1, "a tokenizer");
  if (code) return free(bytes), code;
  t->bytes = bytes, t->size = size, t->hash = XXH64(bytes, size, 0);
  if (size && *bytes == '{')
    code = read_json(t, root, name);
  else if ((code = build_tokenizer(t)))
    code = ch_error_in(code, "%s", name);
  if (code) return choir_tokenizer_free(t), code;
  *tokenizer = t;
  return CHOIR_OK;
}

int choir_tokenizer_load(const char *path, choir_tokenizer **tokenizer) {
  CH_ENTER(path, tokenizer);
  char file[PATH_MAX], *bytes;
  size_t size;
  *tokenizer = NULL;
  CH_TRY(find_file(&path, file));
  CH_TRY(ch_file_read(path, FILE_LIMIT, &bytes, &size));
  return ch_tokenizer_of(bytes, size, NULL, path, tokenizer);
}

int choir_tokenizer_vocab_size(const choir_tokenizer *t) { return t ? t->vocab : 0; }
int choir_tokenizer_eos(const choir_tokenizer *t) { return t ? t->eos : -1; }
uint64_t choir_tokenizer_hash(const choir_tokenizer *t) { return t ? t->hash : 0; }

const char *choir_tokenizer_piece(const choir_tokenizer *t, int32_t id) {
  return t && id >= 0 && id < t->vocab ? t->piece[id] : NULL;
}

const void *choir_tokenizer_bytes(const choir_tokenizer *t, size_t *size) {
  if (!t || !size) return NULL;
  *size = t->size;
  return t->bytes;
}

int choir_tokenizer_encode(const choir_tokenizer *tokenizer, const char *text, size_t length, int32_t **ids,
                           size_t *count) {
  CH_ENTER(tokenizer, text, ids, count);
  return ch_encode_text(tokenizer, text, length, NULL, NULL, ids, count);
}

int choir_tokenizer_decode(const choir_tokenizer *tokenizer, const int32_t *ids, size_t count, char **text,
                           size_t *length) {
  CH_ENTER(tokenizer, ids, text, length);
  *text = NULL, *length = 0;
  ch_buffer out = {0};
  int code = CHOIR_OK;
  for (size_t i = 0; i < count && !code; i++) {
    if (ids[i] < 0 || ids[i] >= tokenizer->vocab)
      code =
          ch_error(CHOIR_ERROR_ARGUMENT, "token %zu is %d; the tokenizer has 0 to %d", i, ids[i], tokenizer->vocab - 1);
    else
      code = ch_buffer_append(&out, tokenizer->surface[ids[i]].text, tokenizer->surface[ids[i]].size);
  }
  if (!code) code = ch_buffer_append(&out, "", 1);
  if (code) {
    free(out.data);
    return code;
  }
  *text = out.data, *length = out.size - 1;
  return CHOIR_OK;
}
