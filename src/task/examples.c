#include "task/examples.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

typedef struct {
  const ch_rows *rows;
  const choir_tokenizer *tokenizer;
  ch_encoder *encoder;
  ch_buffer text;          /* text of a column, with the spaces before it */
  ch_ids ids;              /* tokens of the prompt being built */
  size_t cut_at, cut_size; /* position and size, in tokens, of the column that may be shortened */
} maker;

static int encode_text(maker *m, const char *text, size_t size) {
  return size ? ch_encode(m->tokenizer, m->encoder, text, size, &m->ids) : CHOIR_OK;
}

/* Encodes a template's text, then the value of the column after it. Spaces between them are encoded with the value,
 * since tokenizers attach spaces to the beginning of words. */
static int encode_part(maker *m, const ch_task_part *part, int64_t row) {
  size_t size = part->size;
  while (part->column >= 0 && size && part->text[size - 1] == ' ') size--;
  CH_TRY(encode_text(m, part->text, size));
  if (part->column < 0) return CHOIR_OK;
  ch_value value = ch_rows_value(m->rows, row, part->column);
  m->text.size = 0;
  if (value.size) CH_TRY(ch_buffer_append(&m->text, part->text + size, part->size - size));
  CH_TRY(ch_buffer_append(&m->text, value.text, value.size));
  size_t begin = m->ids.count;
  CH_TRY(encode_text(m, m->text.data, m->text.size));
  if (part->column == m->rows->task->cut && !m->cut_size) {
    m->cut_at = begin;
    m->cut_size = m->ids.count - begin;
  }
  return CHOIR_OK;
}

static void take_out(ch_ids *ids, size_t at, size_t count) {
  memmove(ids->ids + at, ids->ids + at + count, (ids->count - at - count) * sizeof *ids->ids);
  ids->count -= count;
}

/* Shortens the prompt to `max` tokens. Nonzero if it had to be cut. */
static int cut_prompt(maker *m, size_t max) {
  if (m->ids.count <= max) return 0;
  size_t over = m->ids.count - max, here = over < m->cut_size ? over : m->cut_size;
  take_out(&m->ids, m->cut_at + m->cut_size - here, here);
  take_out(&m->ids, 0, over - here);
  return 1;
}

static int append_ids(ch_ids *to, const int32_t *ids, size_t count) {
  CH_TRY(ch_ids_reserve(to, count));
  memcpy(to->ids + to->count, ids, count * sizeof *ids);
  to->count += count;
  return CHOIR_OK;
}

static int add_example(maker *m, int64_t row, size_t max, ch_examples *e) {
  const choir_task *t = m->rows->task;
  m->ids.count = m->cut_size = 0;
  for (int p = 0; p < t->parts; p++) CH_TRY(encode_part(m, &t->part[p], row));
  e->cut += cut_prompt(m, max);
  if (m->ids.count)
    CH_TRY(append_ids(&e->tokens, m->ids.ids, m->ids.count));
  else /* nothing precedes the word: it begins a document */
    CH_TRY(append_ids(&e->tokens, &m->tokenizer->eos, 1));
  e->label[e->count] = ch_rows_label(m->rows, row);
  e->row[e->count] = row;
  e->begin[++e->count] = (int64_t)e->tokens.count;
  int length = ch_examples_length(e, e->count - 1);
  if (length > e->longest) e->longest = length;
  return CHOIR_OK;
}

static int add_words(maker *m, ch_examples *e) {
  const choir_task *t = m->rows->task;
  for (int label = 0; label < t->labels; label++) {
    int32_t *ids;
    size_t count;
    int code = choir_tokenizer_encode(m->tokenizer, t->word[label], strlen(t->word[label]), &ids, &count);
    if (!code) code = append_ids(&e->words, ids, count);
    free(ids);
    if (code) return ch_error_in(code, "task %s, word \"%s\"", t->name, t->word[label]);
    e->word_begin[label + 1] = (int)e->words.count;
    if ((int)count > e->longest_word) e->longest_word = (int)count;
  }
  return CHOIR_OK;
}

static int make_examples(maker *m, int max, int labelled, ch_examples *e) {
  size_t rows = (size_t)m->rows->count;
  CH_TRY(ch_encoder_create(&m->encoder));
  CH_TRY(CH_ALLOC(&e->begin, rows + 1, "examples"));
  CH_TRY(CH_ALLOC(&e->label, rows, "labels of examples"));
  CH_TRY(CH_ALLOC(&e->row, rows, "row numbers of examples"));
  CH_TRY(add_words(m, e));
  if (max <= e->longest_word)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "sequences of %d tokens have no room for a word of task %s, which has %d, and a text before it",
                    max - 1, m->rows->task->name, e->longest_word);
  for (int64_t row = 0; row < m->rows->count; row++) {
    if (labelled && ch_rows_label(m->rows, row) < 0)
      e->unlabelled++;
    else
      CH_TRY(add_example(m, row, (size_t)(max - e->longest_word), e));
  }
  return CHOIR_OK;
}

int ch_examples_make(const ch_rows *rows, const choir_tokenizer *tokenizer, int max, int labelled, ch_examples *e) {
  maker m = {.rows = rows, .tokenizer = tokenizer};
  *e = (ch_examples){.step = CH_LENGTH_STEP, .mask = -1};
  int code = make_examples(&m, max, labelled, e);
  ch_encoder_free(m.encoder);
  free(m.text.data);
  free(m.ids.ids);
  if (code) ch_examples_free(e);
  return code;
}

void ch_examples_thin(ch_examples *e, int64_t max) {
  int64_t count = e->count, used = 0;
  if (max <= 0 || max >= count) return;
  e->longest = 0;
  for (int64_t i = 0; i < max; i++) {
    int64_t from = i * count / max;
    int length = ch_examples_length(e, from);
    memmove(e->tokens.ids + used, ch_examples_prompt(e, from), (size_t)length * sizeof *e->tokens.ids);
    e->begin[i] = used; /* overwriting is safe, because i is at most `from` */
    used += length;
    e->label[i] = e->label[from];
    e->row[i] = e->row[from];
    if (length > e->longest) e->longest = length;
  }
  e->begin[max] = used;
  e->count = max;
  e->tokens.count = (size_t)used;
}

int ch_padded_length(const ch_examples *e, int tokens) { return (tokens + e->step - 1) / e->step * e->step; }

int ch_examples_lay_out(const ch_examples *e, const int64_t *example, int64_t first, int count, int label, int B, int T,
                        int32_t *token, int32_t *row, int32_t *target) {
  int rows = 0;
  for (int64_t i = 0; i < (int64_t)B * T; i++) token[i] = -1;
  for (int b = 0; b < count; b++) {
    int64_t number = example ? example[first + b] : first + b;
    int said = label < 0 ? e->label[number] : label;
    int prompt = ch_examples_length(e, number), length = ch_examples_word_length(e, said), at = b * T;
    const int32_t *word = ch_examples_word(e, said);
    memcpy(token + at, ch_examples_prompt(e, number), (size_t)prompt * sizeof *token);
    for (int t = 0; t < length - (e->mask < 0); t++) token[at + prompt + t] = e->mask < 0 ? word[t] : e->mask;
    for (int t = 0; t < length; t++, rows++) {
      row[rows] = at + prompt - (e->mask < 0) + t;
      if (target) target[rows] = word[t];
    }
  }
  return rows;
}

void ch_examples_free(ch_examples *e) {
  free(e->tokens.ids);
  free(e->begin);
  free(e->label);
  free(e->row);
  free(e->words.ids);
  *e = (ch_examples){0};
}

enum { BATCHES_A_PIECE = 64 };

int ch_sampler_make(const ch_examples *e, uint64_t seed, int B, int micros, ch_sampler *s) {
  *s = (ch_sampler){.examples = e, .seed = seed, .B = B, .epoch = -1};
  s->batches = (e->count + B - 1) / B;
  s->tokens = (int64_t)B * ch_padded_length(e, e->longest + e->longest_word - (e->mask < 0));
  s->rows = (int64_t)B * e->longest_word;
  CH_TRY(CH_ALLOC(&s->batch, micros, "micro-batches"));
  CH_TRY(CH_ALLOC(&s->order, e->count, "the order of examples"));
  CH_TRY(CH_ALLOC(&s->token, micros * s->tokens, "tokens of batches"));
  CH_TRY(CH_ALLOC(&s->row, 2 * micros * s->rows, "targets of batches"));
  s->target = s->row + micros * s->rows;
  return CHOIR_OK;
}

void ch_sampler_free(ch_sampler *s) {
  free(s->batch);
  free(s->order);
  free(s->token);
  free(s->row);
  *s = (ch_sampler){0};
}

/* By length, then by index, so that the order does not depend on the sort. */
static int by_length(const void *a, const void *b, void *examples) {
  int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
  int m = ch_examples_length(examples, i), n = ch_examples_length(examples, j);
  return m != n ? m - n : (i > j) - (i < j);
}

static void shuffle(ch_sampler *s, int64_t epoch) {
  const ch_examples *e = s->examples;
  int64_t piece = (int64_t)s->B * BATCHES_A_PIECE;
  ch_rng rng = ch_rng_make(s->seed, CH_STREAM_EXAMPLES, (uint32_t)(2 * epoch));
  for (int64_t i = 0; i < e->count; i++) s->order[i] = (int64_t)ch_rng_permute(rng, (uint64_t)i, (uint64_t)e->count);
  for (int64_t i = 0; i < e->count; i += piece)
    qsort_r(s->order + i, (size_t)(e->count - i < piece ? e->count - i : piece), sizeof *s->order, by_length,
            (void *)(uintptr_t)e);
  s->epoch = epoch;
}

int ch_sampler_get(ch_sampler *s, int64_t number, int micro, int64_t *used) {
  const ch_examples *e = s->examples;
  int64_t epoch = number / s->batches;
  if (epoch != s->epoch) shuffle(s, epoch);
  ch_rng rng = ch_rng_make(s->seed, CH_STREAM_EXAMPLES, (uint32_t)(2 * epoch + 1));
  int64_t first = s->B * (int64_t)ch_rng_permute(rng, (uint64_t)(number % s->batches), (uint64_t)s->batches);
  int count = e->count - first < s->B ? (int)(e->count - first) : s->B, longest = 0;
  for (int i = 0; i < count; i++) {
    int64_t example = s->order[first + i];
    int length = ch_examples_length(e, example) + ch_examples_word_length(e, e->label[example]) - (e->mask < 0);
    if (length > longest) longest = length;
    *used += length;
  }
  int32_t *token = s->token + micro * s->tokens, *row = s->row + micro * s->rows, *target = s->target + micro * s->rows;
  ch_batch *batch = &s->batch[micro];
  *batch = (ch_batch){.T = ch_padded_length(e, longest), .token = token, .row = row, .target = target};
  batch->rows = ch_examples_lay_out(e, s->order, first, count, -1, s->B, batch->T, token, row, target);
  return count;
}
