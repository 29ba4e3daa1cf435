/* Rows as tokens: each a prompt made by the task's template, which a label's word is to follow; and batches of them. */
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
  int64_t *row;   /* [count] row of the file that each prompt was made from */
  int64_t cut;    /* prompts that were too long, and lost part of their text */
  int64_t unlabelled;
  int longest;  /* tokens of a prompt */
  ch_ids words; /* of all labels */
  int word_begin[CH_TASK_LABELS + 1];
  int longest_word;
  int step;     /* batches are of multiples of so many tokens, CH_LENGTH_STEP at least */
  int32_t mask; /* what batches have in the place of every token of a word, or -1: the word itself but its last token */
} ch_examples;

/* A prompt and the longest word have `most` tokens together at most: what is more is cut off the end of the task's
 * "cut" column and, where that is not enough, off the beginning of the prompt; never off a word. labelled: rows without
 * a label are left out. CHOIR_ERROR_ARGUMENT: `most` has no room for a word and a token before it; CHOIR_ERROR_FORMAT:
 * a word that is no text; CHOIR_ERROR_MEMORY. */
int ch_examples_make(const ch_rows *rows, const choir_tokenizer *tokenizer, int max, int labelled, ch_examples *made);
void ch_examples_free(ch_examples *examples);

/* At most so many, spread evenly over the set, stay. */
void ch_examples_thin(ch_examples *examples, int64_t max);

static inline int ch_examples_length(const ch_examples *e, int64_t i) { return (int)(e->begin[i + 1] - e->begin[i]); }
static inline const int32_t *ch_examples_prompt(const ch_examples *e, int64_t i) { return e->tokens.ids + e->begin[i]; }
static inline int ch_examples_word_length(const ch_examples *e, int label) {
  return e->word_begin[label + 1] - e->word_begin[label];
}
static inline const int32_t *ch_examples_word(const ch_examples *e, int label) {
  return e->words.ids + e->word_begin[label];
}

/* Examples in a batch [B,T]: those numbered example[first] .. (NULL: first ..), `count` of them, each with the tokens
 * of a word but the last behind its prompt; label -1: that of its own label. What is left is padding. row gets the
 * positions in front of every token of the word, target (unless NULL) these tokens. Returns how many rows. With
 * examples->mask the tokens of the word are masks, and rows are theirs. */
int ch_examples_lay_out(const ch_examples *e, const int64_t *example, int64_t first, int count, int label, int B, int T,
                        int32_t *token, int32_t *row, int32_t *target);

/* Tokens of the longest sequence of a batch, rounded up so that batches of many lengths are of few sizes. */
enum { CH_LENGTH_STEP = 16 };
int ch_padded_length(const ch_examples *examples, int tokens);

/* ---- batches of a training set: every epoch goes through all examples, in an order of its own ---- */

typedef struct ch_sampler {
  const ch_examples *examples;
  uint64_t seed;
  int B;
  int64_t batches;               /* of an epoch */
  int64_t epoch;                 /* that `order` is of; -1: none yet */
  int64_t *order;                /* [count] examples, B after B */
  ch_batch *batch;               /* [micros] what ch_sampler_get fills */
  int32_t *token, *row, *target; /* of all micro-batches */
  int64_t tokens, rows;          /* capacity of one micro-batch */
} ch_sampler;

/* Makes micro-batches of B examples each, `micros` of them at a time. CHOIR_ERROR_MEMORY. To be freed in any case. */
int ch_sampler_make(const ch_examples *examples, uint64_t seed, int B, int micros, ch_sampler *s);
void ch_sampler_free(ch_sampler *s);

/* Batch number `number` of all epochs, a function of (examples, seed, B, number) alone, as s->batch[micro]. An
 * epoch is shuffled and cut into pieces of many batches; within a piece batches are made of examples of like length, so
 * that there is little padding, and come in any order. The last batch of an epoch may have fewer examples. Returns how
 * many; *used counts the tokens. */
int ch_sampler_get(ch_sampler *s, int64_t number, int micro, int64_t *used);

#endif
