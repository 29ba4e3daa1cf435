/* data.json beside two small sources: any text describes them, or is refused; what is opened can be sampled and read
 * from end to end. CHOIR_FUZZ_SEED=FILE keeps the right one as a seed. */
#include <string.h>

#include "data/data.h"
#include "file/dir.h"
#include "file/json.h"
#include "input.h"

enum { VOCAB = 16, SOURCES = 2, LENGTH = 3, SAMPLES = 64 };

static char directory[] = "/tmp/choir-fuzz-XXXXXX";
static const char tokenizer[] = "any bytes: reading data needs no tokenizer";

static void must(int code) {
  if (code) fprintf(stderr, "%s\n", choir_error_message()), abort();
}

static json_t *make_shard(const char *source, const char *share, int tokens) {
  char path[128];
  ch_shard_writer writer;
  snprintf(path, sizeof path, "%s/%s.%s.shard", directory, source, share);
  must(ch_shard_begin(&writer, path, VOCAB, XXH64(tokenizer, sizeof tokenizer, 0)));
  for (int32_t t = 0; t < tokens; t++) must(ch_shard_write(&writer, &(int32_t){t * 7 % VOCAB}, 1));
  must(ch_shard_commit(&writer));
  return ch_shard_describe(&writer.info);
}

static void remove_directory(void) { ch_dir_remove(directory); }

static void make_directory(void) {
  char path[128], hash[17];
  json_t *sources = json_array();
  if (!mkdtemp(directory) || atexit(remove_directory)) abort();
  snprintf(path, sizeof path, "%s/tokenizer.model", directory);
  must(ch_file_save(path, tokenizer, sizeof tokenizer));
  for (int i = 0; i < SOURCES; i++) {
    const char *name = i ? "b" : "a";
    ch_json_add(sources,
                json_pack("{s:s, s:f, s:o, s:o}", "name", name, "weight", 1. + i, "train",
                          make_shard(name, "train", i ? 9 : 40), "heldout", make_shard(name, "heldout", 5 - i)));
  }
  json_t *root = json_pack("{s:s, s:i, s:i, s:s, s:o}", "format", "choir-data", "version", 1, "vocab_size", VOCAB,
                           "tokenizer_hash", ch_hex(XXH64(tokenizer, sizeof tokenizer, 0), hash), "sources", sources);
  if (getenv("CHOIR_FUZZ_SEED")) must(ch_json_save(json_incref(root), getenv("CHOIR_FUZZ_SEED")));
  json_decref(root);
}

static void check_tokens(const int32_t *tokens) {
  for (int i = 0; i <= LENGTH; i++)
    if (tokens[i] < -1 || tokens[i] >= VOCAB) abort();
}

static void read_all(const choir_data *data) {
  int32_t tokens[LENGTH + 1];
  uint64_t counts[VOCAB], sum = 0;
  choir_data_info info;
  ch_data_position position = {.samples = UINT32_MAX - SAMPLES / 2};
  choir_data_get_info(data, &info);
  if (!ch_data_check(data, LENGTH))
    for (int i = 0; i < SAMPLES; i++) ch_data_next(data, 1, LENGTH, &position, 1, tokens), check_tokens(tokens);
  for (int64_t i = 0; i < ch_data_heldout_windows(data, LENGTH); i++)
    ch_data_heldout(data, LENGTH, i, tokens), check_tokens(tokens);
  ch_data_unigram(data, counts);
  for (int i = 0; i < VOCAB; i++) sum += counts[i];
  if (sum != (uint64_t)info.train_tokens) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static int made;
  choir_data *data;
  char path[128];
  if (!made++) make_directory();
  snprintf(path, sizeof path, "%s/data.json", directory);
  FILE *file = fopen(path, "w");
  if (!file || (size && fwrite(bytes, 1, size, file) != size) || fclose(file)) abort();
  if (choir_data_load(directory, &data)) return 0;
  read_all(data);
  choir_data_free(data);
  return 0;
}
