/* The tokenizer of an imported checkpoint. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "export/gguf_read.h"
#include "export/import.h"
#include "export/spm_write.h"
#include "file/file.h"
#include "file/path_status.h"

enum { MAX_PADDING = 1024 }; /* max number of missing pieces; a tokenizer that lacks more is another model's */

/* Whether the file is JSON: a tokenizer.json begins with a brace. */
static int is_json(const char *path) {
  FILE *file = fopen(path, "rb");
  int first = file ? getc(file) : EOF;
  if (file) fclose(file);
  return first == '{';
}

/* Pads a tokenizer: embeddings are padded to round numbers, so a SentencePiece model gets additional pieces, which
 * never match text, for the unused rows. Byte-level BPE needs none. */
static int pad_tokenizer(const choir_tokenizer *t, int vocab, const char *path) {
  int has = choir_tokenizer_vocab_size(t);
  size_t size;
  char name[32];
  ch_buffer model = {0};
  const void *bytes = choir_tokenizer_bytes(t, &size);
  int code = ch_buffer_append(&model, bytes, size);
  if (has < vocab - MAX_PADDING || (!code && *model.data == '{')) return free(model.data), CHOIR_OK;
  for (int id = has; id < vocab && !code; id++) {
    snprintf(name, sizeof name, "<row_%d>", id);
    ch_spm_put_piece(&model, name, strlen(name), 0, CH_SPM_UNUSED);
  }
  if (!code) code = ch_file_save(path, model.data, model.size);
  free(model.data);
  return code;
}

/* Writes the checkpoint's tokenizer to `path`, from a file or, if `from` is NULL, from the GGUF file. It must match
 * the model's vocabulary; `pad`: or lack a few pieces. */
static int place_tokenizer(const ch_tokenizer_source *s, const char *from, int pad, const char *path) {
  choir_tokenizer *t = NULL;
  ch_buffer model = {0};
  int code, vocab = s->vocab, has = 0;
  if (from && is_json(from)) {
    code = choir_tokenizer_import(from, s->eos, vocab, path, &has);
  } else if (from) {
    size_t size;
    CH_TRY(choir_tokenizer_load(from, &t));
    const void *bytes = choir_tokenizer_bytes(t, &size);
    code = ch_file_save(path, bytes, size);
    choir_tokenizer_free(t);
  } else {
    code = ch_gguf_tokenizer(s->gguf, s->from, &model);
    if (!code) code = ch_file_save(path, model.data, model.size);
    free(model.data);
  }
  CH_TRY(code);
  for (; has != vocab; pad = 0) {
    CH_TRY(choir_tokenizer_load(path, &t));
    has = choir_tokenizer_vocab_size(t);
    code = pad && has < vocab ? pad_tokenizer(t, vocab, path) : CHOIR_OK;
    choir_tokenizer_free(t);
    CH_TRY(code);
    if (!pad || has >= vocab) break;
  }
  if (has == vocab) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has %d pieces, \"vocab_size\" is %d", from ? from : s->from,
                  has, vocab);
}

/* Writes the checkpoint's tokenizer from a file in the model's folder: the first with as many pieces as the model
 * has rows, otherwise the first that can be padded. *found: there is such a file, whether it matches or not. */
static int search_tokenizer(const ch_tokenizer_source *s, const char *path, int *found) {
  static const char *const names[] = {"tokenizer.model", "tokenizer.json"};
  int code = CHOIR_OK;
  *found = 0;
  for (int i = 0; i < 4; i++) {
    char file[PATH_MAX];
    int there;
    snprintf(file, sizeof file, "%s/%s", s->from, names[i % 2]);
    CH_TRY(ch_path_exists(file, &there));
    if (!there) continue;
    *found = 1;
    code = place_tokenizer(s, file, i / 2, path);
    if (!code || ch_is_unreadable(code)) return code;
  }
  return code;
}

int ch_import_add_tokenizer(const ch_tokenizer_source *s, const char *checkpoint, int *added) {
  char path[PATH_MAX];
  int found = 1;
  snprintf(path, sizeof path, "%s/tokenizer.model", checkpoint);
  int code = s->named || s->gguf ? place_tokenizer(s, s->named, 1, path) : search_tokenizer(s, path, &found);
  *added = found && !code;
  if (!code || s->named || ch_is_unreadable(code)) return code;
  unlink(path);
  return ch_notice("%s; the checkpoint has no tokenizer", choir_error_message()), CHOIR_OK;
}
