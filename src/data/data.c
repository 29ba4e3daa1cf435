#include "data/data.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/threads.h"
#include "data/encoder.h"
#include "file/json.h"
#include "file/path_status.h"

int ch_source_name_check(const char *name) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  size_t length = name ? strlen(name) : 0;
  if (!length || length >= CH_SOURCE_NAME_BYTES || strspn(name, allowed) != length)
    return ch_error(CHOIR_ERROR_ARGUMENT, "name must be 1 to %d letters, digits, '-' or '_'", CH_SOURCE_NAME_BYTES - 1);
  return CHOIR_OK;
}

static int check_source(const choir_data_build_options *o, int i) {
  const choir_data_source *s = &o->sources[i];
  CH_CHECK_RESERVED(s, "choir_data_source");
  CH_TRY(ch_source_name_check(s->name));
  for (int k = 0; k < i; k++)
    if (!strcmp(o->sources[k].name, s->name)) return ch_error(CHOIR_ERROR_ARGUMENT, "two sources have this name");
  if (!s->inputs || !s->inputs[0]) return ch_error(CHOIR_ERROR_ARGUMENT, "no input files");
  if (!(s->weight >= 0) || isinf(s->weight))
    return ch_error(CHOIR_ERROR_ARGUMENT, "weight is %g; must be 0 or more", s->weight);
  if ((s->weight > 0) != (o->sources[0].weight > 0))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "weight is %g, but that of source \"%s\" is %g; give weights to all sources or to none", s->weight,
                    o->sources[0].name, o->sources[0].weight);
  return CHOIR_OK;
}

int ch_build_check(const choir_data_build_options *o) {
  if (!o->tokenizer) return ch_error(CHOIR_ERROR_ARGUMENT, "tokenizer: name a .model file");
  if (!o->output) return ch_error(CHOIR_ERROR_ARGUMENT, "output: name a directory");
  if (o->source_count < 1 || o->source_count > CH_SOURCE_LIMIT)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d sources; must be 1 to %d", o->source_count, CH_SOURCE_LIMIT);
  if (!o->sources) return ch_error(CHOIR_ERROR_ARGUMENT, "sources: name texts");
  if (!(o->holdout >= 0 && o->holdout <= 0.5))
    return ch_error(CHOIR_ERROR_ARGUMENT, "holdout is %g; must be 0 to 0.5", o->holdout);
  int threads;
  CH_TRY(ch_threads_resolve(o->threads, &threads));
  for (int i = 0; i < o->source_count; i++) {
    int code = check_source(o, i);
    if (code) return ch_error_in(code, "source %d (\"%.64s\")", i + 1, o->sources[i].name ? o->sources[i].name : "");
  }
  return CHOIR_OK;
}

json_t *ch_shard_describe(const ch_shard_info *info) {
  char checksum[17];
  return json_pack("{s:I, s:I, s:I, s:s}", "tokens", (json_int_t)info->tokens, "documents", (json_int_t)info->documents,
                   "text_bytes", (json_int_t)info->text_bytes, "checksum", ch_hex(info->checksum, checksum));
}

/* Compares data.json's description of a shard with the shard's header. */
static int compare_shard(const json_t *source, const char *file, const char *share, const ch_shard *shard) {
  json_t *said, *is = ch_shard_describe(&shard->info);
  int code = ch_json_get_object(source, file, share, &said);
  if (!code && !is) code = ch_error(CHOIR_ERROR_MEMORY, "not enough memory to check %s", file);
  if (!code && !json_equal(said, is))
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: describes another %s shard than the one beside it; build the data again",
                    file, share);
  json_decref(is);
  return code;
}

static int open_shard(const choir_data *d, const char *directory, const char *file, const json_t *source,
                      const ch_source *s, const char *share, ch_shard *shard) {
  char path[4096];
  int there;
  snprintf(path, sizeof path, "%s/%s.%s.shard", directory, s->name, share);
  CH_TRY(ch_regular_exists(path, &there));
  CH_TRY(ch_shard_open(path, shard));
  if (shard->info.tokenizer_hash != d->tokenizer_hash || shard->info.vocab_size != d->vocab_size)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: made with another tokenizer than %s; build the data again", path,
                    d->tokenizer_path);
  return compare_shard(source, file, share, shard);
}

static int open_source(choir_data *d, const char *directory, const char *file, const json_t *source) {
  ch_source *s = &d->sources[d->count];
  const char *name;
  CH_TRY(ch_json_get_string(source, file, "name", &name));
  int code = ch_source_name_check(name);
  if (code) return ch_error_in(CHOIR_ERROR_FORMAT, "%s: source %d", file, d->count + 1);
  snprintf(s->name, sizeof s->name, "%s", name);
  CH_TRY(ch_json_get_number(source, file, "weight", 0, 1e300, &s->weight));
  if (!(s->weight > 0))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: source \"%s\": \"weight\" is 0: must be above 0", file, s->name);
  d->count++; /* from here on closed with the other sources */
  CH_TRY(open_shard(d, directory, file, source, s, "train", &s->train));
  CH_TRY(open_shard(d, directory, file, source, s, "heldout", &s->heldout));
  uint64_t pieces = s->train.info.documents + s->heldout.info.documents;
  int64_t documents;
  CH_TRY(ch_json_get_integer(source, file, "documents", 0, (int64_t)pieces, &documents));
  s->documents = (uint64_t)documents;
  return CHOIR_OK;
}

/* Hashes the bytes of the tokenizer stored with the shards: reading data does not need SentencePiece. */
static int hash_tokenizer(choir_data *d) {
  char *bytes;
  size_t size;
  CH_TRY(ch_file_read(d->tokenizer_path, (size_t)256 << 20, &bytes, &size));
  d->tokenizer_hash = XXH64(bytes, size, 0);
  free(bytes);
  return CHOIR_OK;
}

/* Assigns each source an interval of [0, 2^32), of length at least 1. */
static int divide(choir_data *d, const char *file) {
  double total = 0, sum = 0;
  for (int i = 0; i < d->count; i++) total += d->sources[i].weight;
  if (!(total > 0) || total > 1e300) return ch_error(CHOIR_ERROR_FORMAT, "%s: the weights add up to %g", file, total);
  for (int i = 0; i < d->count; i++) {
    double rest = 4294967296.0 - d->count;
    d->sources[i].begin = (uint64_t)(sum / total * rest) + (uint64_t)i;
    sum += d->sources[i].weight;
  }
  d->sources[d->count].begin = UINT64_C(1) << 32;
  return CHOIR_OK;
}

/* The hash that a resumed run compares: tokens, names, weights. The names of inputs do not count: the same data may
 * be built elsewhere. */
static uint64_t content_hash(const choir_data *d) {
  XXH64_state_t h;
  XXH64_reset(&h, d->tokenizer_hash);
  for (int i = 0; i < d->count; i++) {
    const ch_source *s = &d->sources[i];
    XXH64_update(&h, s->name, strlen(s->name) + 1);
    XXH64_update(&h, &s->weight, sizeof s->weight);
    XXH64_update(&h, &s->train.info.tokens, sizeof s->train.info.tokens);
    XXH64_update(&h, &s->train.info.checksum, sizeof s->train.info.checksum);
    XXH64_update(&h, &s->heldout.info.checksum, sizeof s->heldout.info.checksum);
  }
  return XXH64_digest(&h);
}

static int open_all(choir_data *d, const char *directory, const char *file, const json_t *root) {
  int64_t version, vocab;
  const char *format, *hash;
  char is[17];
  json_t *sources, *source;
  size_t i;
  CH_TRY(ch_json_get_string(root, file, "format", &format));
  if (strcmp(format, "choir-data"))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"format\" is \"%.40s\", not \"choir-data\"", file, format);
  CH_TRY(ch_json_get_integer(root, file, "version", 1, 1, &version));
  CH_TRY(ch_json_get_integer(root, file, "vocab_size", 1, CH_VOCAB_LIMIT, &vocab));
  CH_TRY(ch_json_get_string(root, file, "tokenizer_hash", &hash));
  CH_TRY(ch_json_get_array(root, file, "sources", &sources));
  CH_TRY(hash_tokenizer(d));
  if (strcmp(hash, ch_hex(d->tokenizer_hash, is)))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s is not the tokenizer that the data was made with (%s, not %.20s); build the data again",
                    d->tokenizer_path, is, hash);
  if (!json_array_size(sources) || json_array_size(sources) > CH_SOURCE_LIMIT)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu sources; must be 1 to %d", file, json_array_size(sources),
                    CH_SOURCE_LIMIT);
  d->vocab_size = (int)vocab;
  CH_TRY(
      CH_ALLOC(&d->sources, json_array_size(sources) + 1, "the sources of %s", file)); /* and the end of the mixture */
  json_array_foreach(sources, i, source) CH_TRY(open_source(d, directory, file, source));
  CH_TRY(divide(d, file));
  d->hash = content_hash(d);
  return CHOIR_OK;
}

/* A directory of text files is a likely mistake. */
static int no_data(const char *directory, const char *file) {
  struct stat status;
  int text = !stat(directory, &status);
  errno = ENOENT;
  return ch_error_errno("%s: no data is there (choir data build --out DIR --tokenizer FILE %s makes it of text)", file,
                        text ? directory : "TEXT...");
}

int choir_data_load(const char *directory, choir_data **data) {
  CH_ENTER(directory, data);
  char file[4096], tokenizer[4096];
  json_t *root;
  int there;
  struct stat status;
  *data = NULL;
  if (!stat(directory, &status) && !S_ISDIR(status.st_mode))
    return ch_error(CHOIR_ERROR_IO,
                    "%s: is a file, and data is a directory of tokens: make one by choir data build --out DIR "
                    "--tokenizer FILE %s",
                    directory, directory);
  if (snprintf(file, sizeof file, "%s/data.json", directory) >= (int)sizeof file - 128)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", directory);
  snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.model", directory);
  CH_TRY(ch_regular_exists(file, &there));
  if (!there) return no_data(directory, file);
  CH_TRY(ch_regular_exists(tokenizer, &there));
  CH_TRY(ch_json_load(file, &root));
  choir_data *d = calloc(1, sizeof *d);
  int code = d && (d->tokenizer_path = strdup(tokenizer))
                 ? open_all(d, directory, file, root)
                 : ch_error(CHOIR_ERROR_MEMORY, "not enough memory for %s", file);
  json_decref(root);
  if (code) {
    choir_data_free(d);
    return code;
  }
  *data = d;
  return CHOIR_OK;
}

void choir_data_free(choir_data *d) {
  if (!d) return;
  for (int i = 0; i < d->count; i++) {
    ch_shard_close(&d->sources[i].train);
    ch_shard_close(&d->sources[i].heldout);
  }
  free(d->sources);
  free(d->tokenizer_path);
  free(d);
}

int choir_data_get_info(const choir_data *d, choir_data_info *info) {
  CH_ENTER(d, info);
  *info = (choir_data_info){.vocab_size = d->vocab_size, .sources = d->count, .hash = d->hash};
  for (int i = 0; i < d->count; i++) {
    const ch_shard_info *train = &d->sources[i].train.info, *heldout = &d->sources[i].heldout.info;
    info->train_tokens += train->tokens;
    info->heldout_tokens += heldout->tokens;
    info->train_bytes += train->text_bytes;
    info->heldout_bytes += heldout->text_bytes;
    info->documents += d->sources[i].documents;
  }
  return CHOIR_OK;
}
