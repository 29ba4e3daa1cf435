/* Examples: rows as tokens. A prompt is made by the task's template, and a label's word follows it. And batches of
 * examples. */
#ifndef CH_TASK_EXAMPLES_H
#define CH_TASK_EXAMPLES_H

#include "choir/tokenizer.h"
#include "data/encoder.h"
#include "task/rows.h"
#include "train/step.h"

typedef struct ch_examples {
  int64_t count;
  ch_ids tokens;  /* concatenation of all prompts */
  int64_t *begin; /* [count+1] */
  int *label;     /* [count]; -1: none */
  int64_t *row;   /* [count] row of the file of each prompt */
  int64_t cut;    /* number of prompts that were shortened */
  int64_t unlabelled;
  int longest;  /* tokens of the longest prompt */
  ch_ids words; /* tokens of the words of all labels */
  int word_begin[CH_TASK_LABELS + 1];
  int longest_word;
  int step;     /* batches have a multiple of so many tokens, at least CH_LENGTH_STEP */
  int32_t mask; /* the token that replaces every token of a word in batches, or -1: batches have the word's tokens
                   except the last */
} ch_examples;

/* Makes examples in which a prompt and the longest word together have at most `max` tokens: longer prompts are cut
 * at the end of the task's "cut" column and, if that is not enough, at their beginning; words are never cut. labelled:
 * rows without a label are left out. CHOIR_ERROR_ARGUMENT: `max` is too small for a word and one token before it;
 * CHOIR_ERROR_FORMAT: a word without tokens; CHOIR_ERROR_MEMORY. */
int ch_examples_make(const ch_rows *rows, const choir_tokenizer *tokenizer, int max, int labelled, ch_examples *made);
void ch_examples_free(ch_examples *examples);

/* Keeps at most `max` examples, spread evenly over the set. */
void ch_examples_thin(ch_examples *examples, int64_t max);

static inline int ch_examples_length(const ch_examples *e, int64_t i) { return (int)(e->begin[i + 1] - e->begin[i]); }
static inline const int32_t *ch_examples_prompt(const ch_examples *e, int64_t i) { return e->tokens.ids + e->begin[i]; }
static inline int ch_examples_word_length(const ch_examples *e, int label) {
  return e->word_begin[label + 1] - e->word_begin[label];
}
static inline const int32_t *ch_examples_word(const ch_examples *e, int label) {
  return e->words.ids + e->word_begin[label];
}

/* Lays out a batch [B,T]: the examples example[first] .. (NULL: first ..), `count` of them, each with the tokens of
 * a word except the last after its prompt; label -1: the word of the example's own label. The rest is padding. row gets
 * the positions whose logits predict the word's tokens, target (unless NULL) these tokens. Returns the number of rows.
 * With examples->mask the tokens of the word are masked, and row has their positions. */
int ch_examples_lay_out(const ch_examples *e, const int64_t *example, int64_t first, int count, int label, int B, int T,
                        int32_t *token, int32_t *row, int32_t *target);

/* Tokens of the longest sequence of a batch, rounded up so that batches of many lengths have few sizes. */
enum { CH_LENGTH_STEP = 16 };
int ch_padded_length(const ch_examples *examples, int tokens);

/* ---- batches of a training set: every epoch has all examples, in a new order ---- */

typedef struct ch_sampler {
  const ch_examples *examples;
  uint64_t seed;
  int B;
  int64_t batches;               /* batches of an epoch */
  int64_t epoch;                 /* epoch of `order`; -1: none yet */
  int64_t *order;                /* [count] examples, one batch after another */
  ch_batch *batch;               /* [micros] micro-batches filled by ch_sampler_get */
  int32_t *token, *row, *target; /* arrays of all micro-batches */
  int64_t tokens, rows;          /* capacity of one micro-batch */
} ch_sampler;

/* Prepares micro-batches of B examples each, `micros` at a time. CHOIR_ERROR_MEMORY. Free the sampler in any case. */
int ch_sampler_make(const ch_examples *examples, uint64_t seed, int B, int micros, ch_sampler *s);
void ch_sampler_free(ch_sampler *s);

/* Writes batch `number` (counted over all epochs), a function of (examples, seed, B, number) alone, to
 * s->batch[micro]. An epoch is shuffled and cut into groups of many batches; within a group, batches consist of
 * examples of similar length, so that there is little padding, and are in random order. The last batch of an epoch may
 * have fewer examples. Returns the number of examples; *used counts the tokens. */
int ch_sampler_get(ch_sampler *s, int64_t number, int micro, int64_t *used);

#endif
