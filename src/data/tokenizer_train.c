#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/enter.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/options.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/encoder.h"
#include "data/sample.h"
#include "data/text.h"
#include "file/file.h"

enum {
  BLOCK_BYTES = 1 << 14,
  LONGEST_SENTENCE = 4096,
  PARTIAL_SUMS = 16, /* number of threads inside SentencePiece: the order of summation depends on it, so it is fixed */
  LOWEST_VOCAB = 260 /* bytes, unknown, end of text, and at least one piece */
};

/* Training runs on a separate thread: the caller's thread keeps reporting, and `threads` limits the CPUs it may use.
 * SentencePiece cannot be stopped: if the caller interrupts, the thread and its input are abandoned. */
typedef struct trainer {
  const choir_tokenizer_train_options *o;
  ch_sample sample;
  ch_spm_training training;
  ch_buffer sentences, sizes; /* arrays of const char * and of size_t */
  double started, cpu, reported;
  int stopped;

  pthread_mutex_t lock;
  pthread_cond_t changed;
  int owners, finished, code; /* owners: threads that still use the trainer */
  char message[1024];
  void *model;
  size_t size;
} trainer;

/* Calls the caller's progress function, at most every quarter of a second. */
static void report(trainer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void report(trainer *t, const char *format, ...) {
  double now = ch_machine_seconds();
  if (!t->o->progress || now - t->reported < 0.25) return;
  char line[128];
  t->reported = now;
  va_list args;
  va_start(args, format);
  ch_vformat(line, sizeof line, format, args);
  va_end(args);
  t->stopped |= ch_progress(t->o->progress, t->o->context, (choir_progress){.text = line});
}

static int stopped(const trainer *t) {
  return t->stopped ? ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; no tokenizer was written") : CHOIR_OK;
}

static int read_sample(trainer *t) {
  const choir_tokenizer_train_options *o = t->o;
  ch_text *text;
  ch_block block;
  double bytes = 0;
  int more, code;
  CH_TRY(ch_text_open(&(ch_text_options){.inputs = o->inputs,
                                         .field = o->field,
                                         .separator = o->separator,
                                         .replace_invalid = o->replace_invalid,
                                         .block_bytes = BLOCK_BYTES},
                      &text));
  while (!(code = ch_text_next(text, &block, &more)) && more && !(code = stopped(t))) {
    if ((code = ch_sample_add(&t->sample, block.text, block.size))) break;
    bytes += (double)block.size;
    report(t, "reading: %.1f MB of text", bytes * 1e-6);
  }
  ch_text_close(text);
  ch_sample_finish(&t->sample);
  return code;
}

static int add_sentence(trainer *t, const char *text, size_t size) {
  CH_TRY(ch_buffer_append(&t->sentences, &text, sizeof text));
  CH_TRY(ch_buffer_append(&t->sizes, &size, sizeof size));
  t->training.count++;
  return CHOIR_OK;
}

/* The length of the character at p if sentences must not contain it: a character that has its own token (encoder.h),
 * or U+2585, which SentencePiece uses for the unknown token, so that it would skip the whole sentence. 0 otherwise. */
static size_t between_sentences(const char *p, const char *end) {
  size_t alone = ch_stands_alone(NULL, p, end);
  return alone ? alone : end - p >= 3 && !memcmp(p, "\xE2\x96\x85", 3) ? 3 : 0;
}

/* Splits text into sentences at these characters, mostly into lines. Long sentences are cut between words. */
static int split_text(trainer *t, const char *text, size_t size) {
  for (const char *p = text, *end = text + size; p < end;) {
    const char *q = p;
    while (q < end && !between_sentences(q, end)) q++;
    while (q - p > LONGEST_SENTENCE) {
      size_t length = LONGEST_SENTENCE;
      while (length > 1 && p[length] != ' ') length--;
      if (length == 1) length = ch_utf8_cut(p, LONGEST_SENTENCE);
      CH_TRY(add_sentence(t, p, length));
      p += length;
    }
    if (q > p) CH_TRY(add_sentence(t, p, (size_t)(q - p)));
    p = q < end ? q + between_sentences(q, end) : q;
  }
  return CHOIR_OK;
}

/* SentencePiece omits the rarest characters, 1 in 2,000 of all occurrences, and in Chinese the space may be one of
 * them. Type char also omits the rarest characters beyond vocab_size; for this type the space is made the most frequent
 * character. */
static int look_for_spaces(trainer *t) {
  static const char blank[] = "                                                                ";
  const char *const *sentences = (void *)t->sentences.data;
  const size_t *sizes = (void *)t->sizes.data;
  size_t spaces = 0, characters = 0, more = 0;
  for (size_t s = 0; s < t->training.count; s++)
    for (size_t i = 0; i < sizes[s]; i++) {
      spaces += sentences[s][i] == ' ';
      characters += ((unsigned char)sentences[s][i] & 0xC0) != 0x80;
    }
  t->training.few_spaces = spaces <= characters / 1000;
  if (!spaces) more = 1;
  if (t->training.few_spaces && !strcmp(t->training.type, "char")) more = characters;
  for (size_t size; more; more -= size) {
    size = more < sizeof blank - 1 ? more : sizeof blank - 1;
    CH_TRY(add_sentence(t, blank, size));
  }
  return CHOIR_OK;
}

/* The last owner frees the trainer. */
static void release_trainer(trainer *t) {
  pthread_mutex_lock(&t->lock);
  int owned = --t->owners > 0;
  pthread_mutex_unlock(&t->lock);
  if (owned) return;
  ch_sample_free(&t->sample);
  free(t->sentences.data);
  free(t->sizes.data);
  free(t->model);
  free(t);
}

static void *train(void *argument) {
  trainer *t = argument;
  void *model = NULL;
  size_t size = 0;
  int code = ch_spm_train(&t->training, &model, &size);
  pthread_mutex_lock(&t->lock);
  t->model = model, t->size = size;
  t->code = code, t->finished = 1;
  if (code) snprintf(t->message, sizeof t->message, "%s", choir_error_message()); /* error messages are per thread */
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->lock);
  release_trainer(t);
  return NULL;
}

/* Starts train() on at most `threads` of the CPUs this process may use; SentencePiece's own threads inherit that. */
static int start_thread(trainer *t, pthread_t *thread) {
  pthread_attr_t attributes;
  cpu_set_t all, some;
  sigset_t before;
  CPU_ZERO(&some);
  pthread_attr_init(&attributes);
  if (t->o->threads > 0 && !sched_getaffinity(0, sizeof all, &all)) {
    for (int cpu = 0, left = t->o->threads; cpu < CPU_SETSIZE && left; cpu++)
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &some), left--;
    pthread_attr_setaffinity_np(&attributes, sizeof some, &some);
  }
  t->owners++;
  ch_signals_hold(&before); /* inherited: the host's handlers run on its own threads */
  int failed = pthread_create(thread, &attributes, train, t);
  ch_signals_release(&before);
  pthread_attr_destroy(&attributes);
  if (failed) t->owners--; /* otherwise the thread owns it, and may have ended */
  return failed ? ch_error(CHOIR_ERROR_MEMORY, "cannot start a thread: %s", strerror(failed)) : CHOIR_OK;
}

static struct timespec in_a_moment(void) {
  const long moment = 250000000, second = 1000000000;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += moment;
  if (until.tv_nsec >= second) until.tv_nsec -= second, until.tv_sec++;
  return until;
}

/* SentencePiece does not report its progress, so the message gives a range of CPU seconds per megabyte: the lower
 * figure was measured on prose, the upper one on source code, which has many more distinct words. */
static void report_search(trainer *t) {
  const double min = 0.5, max = 3;
  double megabytes = 1e-6 * (double)t->sample.bytes;
  report(t, "finding pieces: %.0f s (CPU time %.0f s; %.1f MB of text need %.0f to %.0f s)",
         ch_machine_seconds() - t->started, ch_machine_cpu_seconds() - t->cpu, megabytes, min * megabytes,
         max * megabytes);
}

static int run_trainer(trainer *t) {
  pthread_t thread;
  CH_TRY(start_thread(t, &thread));
  pthread_mutex_lock(&t->lock);
  while (!t->finished && !t->stopped) {
    struct timespec until = in_a_moment();
    pthread_cond_timedwait(&t->changed, &t->lock, &until);
    if (!t->finished) report_search(t);
  }
  int finished = t->finished, code = t->code ? ch_error(t->code, "%s", t->message) : stopped(t);
  pthread_mutex_unlock(&t->lock);
  if (finished)
    pthread_join(thread, NULL);
  else
    pthread_detach(thread);
  return code;
}

static int make_tokenizer(trainer *t) {
  CH_TRY(read_sample(t));
  for (size_t i = 0; i < t->sample.count; i++)
    CH_TRY(split_text(t, t->sample.blocks[i].text, t->sample.blocks[i].size));
  if (!t->training.count) return ch_error(CHOIR_ERROR_FORMAT, "%s: no text to train a tokenizer on", t->o->inputs[0]);
  CH_TRY(look_for_spaces(t));
  t->training.sentences = (void *)t->sentences.data, t->training.sizes = (void *)t->sizes.data;
  t->started = ch_machine_seconds(), t->cpu = ch_machine_cpu_seconds();
  return run_trainer(t);
}

/* Opens the output first, so that minutes of work are not lost to a directory that cannot be written. */
static int make_and_save(trainer *t) {
  ch_file file;
  CH_TRY(ch_file_begin(&file, t->o->output));
  int code = make_tokenizer(t);
  if (code) {
    ch_file_abandon(&file);
    return code;
  }
  ch_file_write(&file, t->model, t->size);
  return ch_file_commit(&file);
}

static const char *const types[] = {"bpe", "unigram", "char", NULL}; /* the first is the default */

int choir_tokenizer_train(const choir_tokenizer_train_options *options) {
  CH_ENTER(options);
  CH_OPTIONS(choir_tokenizer_train_options, o, options, CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT);
  if (!o.inputs || !o.inputs[0]) return ch_error(CHOIR_ERROR_ARGUMENT, "inputs: name at least one text file");
  if (!o.output) return ch_error(CHOIR_ERROR_ARGUMENT, "output: name the file to write");
  if (o.vocab_size < LOWEST_VOCAB || o.vocab_size > CH_VOCAB_LIMIT)
    return ch_error(CHOIR_ERROR_ARGUMENT, "vocab_size is %d; must be %d to %d", o.vocab_size, LOWEST_VOCAB,
                    CH_VOCAB_LIMIT);
  const char *const *type = types;
  while (*type && o.type && strcmp(*type, o.type)) type++;
  if (!*type) {
    char list[64];
    return ch_error(CHOIR_ERROR_ARGUMENT, "type '%.40s' is not known; take one of: %s", o.type,
                    ch_word_list(list, sizeof list, types));
  }
  int threads;
  CH_TRY(ch_threads_resolve(o.threads, &threads));
  trainer *t;
  CH_TRY(CH_ALLOC(&t, 1, "a training of a tokenizer"));
  *t = (trainer){
      .o = &o,
      .sample = {.limit = o.sample_bytes ? o.sample_bytes : (size_t)16 << 20},
      .training = {.type = *type, .vocab_size = o.vocab_size, .pieces = PARTIAL_SUMS, .longest = LONGEST_SENTENCE},
      .owners = 1,
      .lock = PTHREAD_MUTEX_INITIALIZER,
      .changed = PTHREAD_COND_INITIALIZER};
  int code = make_and_save(t);
  release_trainer(t);
  return code;
}
