/* Bench case `tokenize`: texts to tokens, on one thread. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/cases.h"
#include "choir/tokenizer.h"
#include "data/text.h"
#include "file/dir.h"
#include "file/file.h"

typedef struct {
  choir_tokenizer *tokenizer;
  ch_buffer text;
  int32_t *ids;
  size_t count;
  int code; /* error of the last encoding */
} encoding;

/* Generates artificial prose: words of a lexicon by Zipf's law, some numbers, punctuation, line ends. */
static int make_prose(ch_buffer *text, size_t size) {
  static const char *const syllable[] = {"ka", "to", "mi", "re", "sol", "an", "el",  "is",
                                         "or", "un", "th", "st", "br",  "é",  "ing", "ed"};
  enum { LEXICON = 40000 };
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 1);
  for (uint64_t i = 0; text->size < size; i++) {
    char word[128];
    int used = 0;
    uint64_t rank = (uint64_t)pow(LEXICON, ch_rng_uniform(rng, 2 * i)), rest = ch_rng_below(rng, 2 * i + 1, 64);
    /* The letters of a word are a function of its rank; frequent words are short. */
    for (uint64_t left = rank, mix = rank * 0x9e3779b97f4a7c15; left; left /= 12, mix >>= 4)
      used += snprintf(word + used, sizeof word - (size_t)used, "%s", syllable[mix & 15]);
    if (rest == 1) used = snprintf(word, sizeof word, "%d", (int)rank);
    snprintf(word + used, sizeof word - (size_t)used, "%s", rest < 4 ? "\n" : rest < 8 ? ". " : rest < 12 ? ", " : " ");
    CH_TRY(ch_buffer_append(text, word, strlen(word)));
  }
  return CHOIR_OK;
}

/* Reads the beginning of a file in the same way as `choir data build`. */
static int read_text(const char *path, ch_buffer *buffer, size_t size) {
  const char *const inputs[] = {path, NULL};
  ch_text *text;
  ch_block block;
  int more = 1, code = CHOIR_OK;
  CH_TRY(ch_text_open(&(ch_text_options){.inputs = inputs, .block_bytes = 1 << 16}, &text));
  while (buffer->size < size && !(code = ch_text_next(text, &block, &more)) && more && !code)
    code = ch_buffer_append(buffer, block.text, block.size);
  ch_text_close(text);
  if (buffer->size > size) buffer->size = ch_utf8_cut(buffer->data, size);
  if (!code && !buffer->size) return ch_error(CHOIR_ERROR_ARGUMENT, "%s: there is no text in it", path);
  return code;
}

/* Trains a tokenizer on this text, through temporary files. */
static int train_tokenizer(encoding *e, int vocab, int threads) {
  char directory[64], text[80], model[80];
  const char *inputs[] = {text, NULL};
  snprintf(directory, sizeof directory, "%s/choir-bench-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
  if (!mkdtemp(directory)) return ch_error(CHOIR_ERROR_IO, "%s: cannot be made", directory);
  snprintf(text, sizeof text, "%s/text", directory);
  snprintf(model, sizeof model, "%s/model", directory);
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  o.inputs = inputs, o.vocab_size = vocab, o.output = model, o.sample_bytes = (size_t)1 << 20, o.threads = threads;
  int code = ch_file_save(text, e->text.data, e->text.size);
  if (!code) code = choir_tokenizer_train(&o);
  if (code) ch_error_in(code, "bench case 'tokenize', V=%d", vocab);
  if (!code) code = choir_tokenizer_load(model, &e->tokenizer);
  if (code)
    ch_dir_remove(directory);
  else
    code = ch_dir_remove(directory);
  return code;
}

static void encode_once(void *context) {
  encoding *e = context;
  free(e->ids);
  e->ids = NULL;
  e->code = choir_tokenizer_encode(e->tokenizer, e->text.data, e->text.size, &e->ids, &e->count);
}

/* Whether decoding restores the text: 0 or 1. */
static int round_trip(ch_bench *b, const encoding *e) {
  char *back;
  size_t size;
  CH_TRY(choir_tokenizer_decode(e->tokenizer, e->ids, e->count, &back, &size));
  b->result->error = size != e->text.size || memcmp(back, e->text.data, size);
  free(back);
  return CHOIR_OK;
}

static int measure_tokenizer(ch_bench *b, encoding *e) {
  ch_bench_result *r = b->result;
  size_t size = (size_t)(b->value[0] * 1e6);
  if (!(size >= 1 && b->value[0] <= 1e4))
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench case 'tokenize': MB is %g; it must be above 0 and at most 10000",
                    b->value[0]);
  CH_TRY(*b->word[0] ? read_text(b->word[0], &e->text, size) : make_prose(&e->text, size));
  if (*b->word[1])
    CH_TRY(choir_tokenizer_load(b->word[1], &e->tokenizer));
  else
    CH_TRY(train_tokenizer(e, (int)fmin(b->value[1], INT32_MAX), b->options->threads));
  ch_bench_time(b, encode_once, e);
  if (e->code) return e->code;
  CH_TRY(round_trip(b, e));
  r->tokens = (int64_t)e->count;
  r->rate = (double)e->text.size / r->seconds * 1e-6;
  r->unit = "MB/s";
  ch_bench_figure(b, "bytes a token", (double)e->text.size / (double)e->count);
  ch_bench_figure(b, "tokens/s", (double)e->count / r->seconds);
  snprintf(r->note, sizeof r->note, "one thread; %s; error: whether decoding gives another text",
           *b->word[0] ? "the beginning of the file" : "made-up text: file=PATH takes yours");
  return CHOIR_OK;
}

int ch_bench_tokenize(ch_bench *b) {
  encoding e = {0};
  int code = measure_tokenizer(b, &e);
  choir_tokenizer_free(e.tokenizer);
  free(e.ids);
  free(e.text.data);
  return code;
}
