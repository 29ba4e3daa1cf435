#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/enter.h"
#include "base/machine.h"
#include "base/options.h"
#include "base/threads.h"
#include "data/data.h"
#include "data/encoder.h"
#include "data/pipeline.h"
#include "data/text.h"
#include "file/dir.h"
#include "file/json.h"

/* A block of text to be encoded. */
typedef struct build_job {
  ch_buffer text;
  ch_ids ids;
  int heldout, last;
  uint64_t bytes_done, replaced; /* position in the source when the block was read */
} build_job;

typedef struct build {
  const choir_data_build_options *o;
  choir_tokenizer *tokenizer;
  ch_dir dir;
  int workers, jobs;
  ch_encoder **encoders; /* [workers] */
  build_job *job;        /* [jobs] */
  json_t *sources;       /* "sources" of data.json */
  choir_progress progress;
  double reported;

  /* The source being built. */
  ch_text *text;
  ch_holdout holdout;
  uint64_t unit;            /* producer: number of the next document or block */
  int heldout;              /* producer: split of the last block */
  ch_buffer held;           /* producer: the end of a block, whose last word may continue in the next block */
  ch_shard_writer shard[2]; /* one writer each for training and held-out data */
  int open;                 /* consumer: the split whose document is not finished yet, or -1 */
  uint64_t documents;
  int64_t bytes_before;
} build;

static const char *const SHARES[] = {"train", "heldout"};

static ch_text_options text_options(const build *b, int source, size_t block_bytes) {
  return (ch_text_options){.inputs = b->o->sources[source].inputs,
                           .field = b->o->field,
                           .separator = b->o->separator,
                           .replace_invalid = b->o->replace_invalid,
                           .block_bytes = block_bytes};
}

/* Nonzero: words may span line ends, where blocks end: with byte-level BPE, and with SentencePiece models that have
 * control characters in pieces (Gemma's "\n\n"). */
static int joins_lines(const choir_tokenizer *t) { return t->bpe || memchr(t->joins, 1, sizeof t->joins); }

/* For such tokenizers: ends an unfinished block where no word can span, so that its tokens are those of the whole
 * document; the rest begins the next block. */
static int hold_back(build *b, ch_buffer *text) {
  size_t end = text->size ? text->size - 1 : 0;
  while (end && !ch_ends_word(text->data, end)) end--;
  if (!end) return CHOIR_OK; /* the text has no such position */
  CH_TRY(ch_buffer_append(&b->held, text->data + end, text->size - end));
  text->size = end;
  return CHOIR_OK;
}

/* Reads a block and decides its split. An empty last block of a document gets the split of the block before it. */
static int produce(void *context, void *place, int *more) {
  build *b = context;
  build_job *j = place;
  ch_block block;
  CH_TRY(ch_text_next(b->text, &block, more));
  if (!*more) return CHOIR_OK;
  j->text.size = 0;
  CH_TRY(ch_buffer_append(&j->text, b->held.data, b->held.size));
  CH_TRY(ch_buffer_append(&j->text, block.text, block.size));
  b->held.size = 0;
  if (joins_lines(b->tokenizer) && !block.last && !b->holdout.by_blocks) CH_TRY(hold_back(b, &j->text));
  if (!b->holdout.by_blocks || block.size) b->heldout = ch_held_out(&b->holdout, b->unit);
  b->unit += b->holdout.by_blocks ? block.size > 0 : (uint64_t)block.last;
  j->heldout = b->heldout;
  j->last = block.last;
  j->bytes_done = ch_text_bytes_done(b->text);
  j->replaced = ch_text_replaced(b->text);
  return CHOIR_OK;
}

static int work(void *context, int worker, void *place) {
  build *b = context;
  build_job *j = place;
  j->ids.count = 0;
  return ch_encode(b->tokenizer, b->encoders[worker], j->text.data, j->text.size, &j->ids);
}

static int report(build *b, int always) {
  double now = ch_machine_seconds();
  if (!b->o->progress || (!always && now - b->reported < 0.1)) return CHOIR_OK;
  b->reported = now;
  b->progress.unit = "bytes";
  if (ch_progress(b->o->progress, b->o->context, b->progress))
    return ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; nothing was written");
  return CHOIR_OK;
}

/* Ends the open part of a document. */
static int end_piece(build *b) {
  int32_t eos = choir_tokenizer_eos(b->tokenizer);
  ch_shard_writer *w = &b->shard[b->open];
  b->open = -1;
  w->info.documents++;
  return ch_shard_write(w, &eos, 1);
}

/* Writes a block's tokens. If a document changes its split, the part so far is ended like a document, because its
 * continuation in that split is another text. */
static int consume(void *context, void *place) {
  build *b = context;
  build_job *j = place;
  ch_shard_writer *w = &b->shard[j->heldout];
  if (b->open >= 0 && b->open != j->heldout) CH_TRY(end_piece(b));
  b->open = j->heldout;
  CH_TRY(ch_shard_write(w, j->ids.ids, j->ids.count));
  w->info.text_bytes += j->text.size;
  if (j->last) CH_TRY(end_piece(b));
  if (w->file.error) return ch_write_error(w->file.error, w->file.path, 0);
  b->documents += (uint64_t)j->last;
  b->progress.documents += j->last;
  b->progress.text_bytes += (int64_t)j->text.size;
  b->progress.tokens += (int64_t)j->ids.count + j->last;
  b->progress.done = b->bytes_before + (int64_t)j->bytes_done;
  return report(b, 0);
}

/* Adds a source's statistics to data.json. */
static int describe_source(build *b, int source, uint64_t replaced) {
  const choir_data_source *s = &b->o->sources[source];
  json_t *inputs = json_array();
  for (const char *const *path = s->inputs; *path; path++) ch_json_add(inputs, ch_json_name(*path));
  double weight = s->weight > 0 ? s->weight : (double)b->shard[0].info.tokens;
  json_t *object =
      json_pack("{s:s, s:f, s:I, s:I, s:s, s:o?, s:o?, s:o?}", "name", s->name, "weight", weight, "documents",
                (json_int_t)b->documents, "replaced_bytes", (json_int_t)replaced, "held_out_by",
                b->holdout.by_blocks ? "blocks" : "documents", "train", ch_shard_describe(&b->shard[0].info), "heldout",
                ch_shard_describe(&b->shard[1].info), "inputs", inputs);
  if (object && b->holdout.by_blocks)
    ch_json_put(object, "block_bytes", json_integer((json_int_t)b->holdout.block_bytes));
  if (!object || json_array_append_new(b->sources, object))
    return ch_error(CHOIR_ERROR_MEMORY, "not enough memory for data.json");
  return CHOIR_OK;
}

static int check_shares(const build *b) {
  for (int share = 0; share < 2; share++)
    if (!b->shard[share].info.tokens && (share == 0 || b->holdout.share > 0))
      return ch_error(CHOIR_ERROR_FORMAT,
                      "too little text to divide in training and held-out: give more, or holdout 0");
  return CHOIR_OK;
}

static int run_pipeline(build *b) {
  ch_pipeline p = {.context = b,
                   .workers = b->workers,
                   .jobs = b->jobs,
                   .job = b->job,
                   .job_bytes = sizeof *b->job,
                   .produce = produce,
                   .work = work,
                   .consume = consume};
  b->unit = 0, b->heldout = 0, b->open = -1, b->documents = 0;
  b->bytes_before = b->progress.done;
  CH_TRY(ch_pipeline_run(&p));
  CH_TRY(check_shares(b));
  for (int share = 0; share < 2; share++) CH_TRY(ch_shard_commit(&b->shard[share]));
  return CHOIR_OK;
}

static int begin_shards(build *b, const char *name) {
  for (int share = 0; share < 2; share++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s.shard", b->dir.temporary, name, SHARES[share]);
    CH_TRY(ch_shard_begin(&b->shard[share], path, choir_tokenizer_vocab_size(b->tokenizer),
                          choir_tokenizer_hash(b->tokenizer)));
  }
  return CHOIR_OK;
}

static int goes_on(void *context) { return report(context, 0); }

static int build_source(build *b, int source) {
  const choir_data_source *s = &b->o->sources[source];
  ch_text_options options = text_options(b, source, 0);
  int code = ch_holdout_plan(&options, b->o->seed, source, b->o->holdout, goes_on, b, &b->holdout);
  options.block_bytes = b->holdout.block_bytes;
  if (!code) code = ch_text_open(&options, &b->text);
  b->shard[0].file.fd = b->shard[1].file.fd = -1;
  if (!code) code = begin_shards(b, s->name);
  if (!code) code = run_pipeline(b);
  if (!code) code = describe_source(b, source, ch_text_replaced(b->text));
  for (int share = 0; share < 2; share++) ch_file_abandon(&b->shard[share].file);
  if (b->text)
    b->progress.done = b->bytes_before + (int64_t)ch_text_bytes_total(b->text),
    b->progress.replaced += (int64_t)ch_text_replaced(b->text);
  ch_text_close(b->text);
  b->text = NULL;
  return code ? ch_error_in(code, "source \"%s\"", s->name) : CHOIR_OK;
}

static int save_description(build *b) {
  char seed[32], hash[17];
  snprintf(seed, sizeof seed, "%llu", (unsigned long long)b->o->seed);
  return ch_json_save(json_pack("{s:s, s:i, s:i, s:s, s:f, s:s, s:s?, s:s?, s:b, s:O}", "format", "choir-data",
                                "version", 1, "vocab_size", choir_tokenizer_vocab_size(b->tokenizer), "tokenizer_hash",
                                ch_hex(choir_tokenizer_hash(b->tokenizer), hash), "holdout", b->o->holdout, "seed",
                                seed, "field", b->o->field, "separator", b->o->separator, "replace_invalid",
                                b->o->replace_invalid, "sources", b->sources),
                      CH_IN(b->dir.temporary, "data.json"));
}

static int build_all(build *b) {
  size_t size;
  const void *model = choir_tokenizer_bytes(b->tokenizer, &size);
  CH_TRY(ch_file_save(CH_IN(b->dir.temporary, "tokenizer.model"), model, size));
  for (int i = 0; i < b->o->source_count; i++) CH_TRY(build_source(b, i));
  CH_TRY(save_description(b));
  return report(b, 1);
}

/* Checks that every input exists before reading the first one. */
static int check_inputs(build *b) {
  for (int i = 0; i < b->o->source_count; i++) {
    ch_text_options options = text_options(b, i, CH_HOLDOUT_BLOCK);
    ch_text *text;
    int code = ch_text_open(&options, &text);
    if (code) return ch_error_in(code, "source \"%s\"", b->o->sources[i].name);
    b->progress.total += (int64_t)ch_text_bytes_total(text);
    ch_text_close(text);
  }
  return CHOIR_OK;
}

static int allocate(build *b) {
  CH_TRY(ch_threads_resolve(b->o->threads, &b->workers));
  b->jobs = 4 * b->workers + 4;
  CH_TRY(CH_ALLOC(&b->encoders, b->workers, "threads"));
  CH_TRY(CH_ALLOC(&b->job, b->jobs, "texts to encode"));
  for (int i = 0; i < b->workers; i++) CH_TRY(ch_encoder_create(&b->encoders[i]));
  b->sources = json_array();
  return b->sources ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for data.json");
}

static void release_build(build *b) {
  for (int i = 0; b->encoders && i < b->workers; i++) ch_encoder_free(b->encoders[i]);
  for (int i = 0; b->job && i < b->jobs; i++) free(b->job[i].text.data), free(b->job[i].ids.ids);
  free(b->encoders);
  free(b->job);
  json_decref(b->sources);
  free(b->held.data);
  choir_tokenizer_free(b->tokenizer);
}

static CH_BEHIND_DOOR int build_data(const choir_data_build_options *options) {
  CH_OPTIONS(choir_data_build_options, o, options, CHOIR_DATA_BUILD_OPTIONS_INIT);
  CH_TRY(ch_build_check(&o));
  build b = {.o = &o};
  int code = check_inputs(&b);
  if (!code) code = ch_build_note_duplicates(&o);
  if (!code) code = choir_tokenizer_load(o.tokenizer, &b.tokenizer);
  if (!code) code = allocate(&b);
  if (!code && !(code = ch_dir_begin(&b.dir, o.output))) code = ch_dir_end(&b.dir, build_all(&b));
  release_build(&b);
  return code;
}

int choir_data_build(const choir_data_build_options *options) {
  CH_ENTER(options);
  return build_data(options);
}
