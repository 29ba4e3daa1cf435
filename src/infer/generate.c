/* Generation from several prompts: as many sequences at a time as the session has slots; a slot whose sequence has
 * ended gets the next one. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/machine.h"
#include "base/options.h"
#include "data/encoder.h"
#include "infer/prompt.h"
#include "infer/sample.h"
#include "infer/session.h"

/* The state of a slot. */
typedef struct {
  int sequence; /* -1: the slot is free */
  int waiting;  /* tokens of the prompt that the session has not processed yet */
  int32_t next; /* token sampled from the last logits */
  ch_stream_text text;
} generation_slot;

typedef struct {
  const choir_generate_options *o;
  const choir_tokenizer *tokenizer;
  const ch_prompts *prompts;
  choir_generate_result *result;
  choir_session *session;
  int V, slots, begun, ended; /* begun: number of sequences that have had a slot */
  int interrupted;
  generation_slot *slot;
  int *counts;              /* [slots] */
  int32_t *token;           /* [chunk or slots] */
  float *logits;            /* [slots,V] */
  ch_candidate *candidates; /* [V] */
  ch_sampling sampling;
} generation;

static int push(choir_generated *to, int32_t token) {
  if (!(to->count & (to->count - 1))) /* the array's capacity is the next power of two */
    CH_TRY(CH_RESIZE(&to->tokens, to->count ? 2 * (size_t)to->count : 1, "new tokens"));
  to->tokens[to->count++] = token;
  return CHOIR_OK;
}

static void emit(generation *g, choir_event_kind kind, choir_text_event text) {
  const choir_event e = {.kind = kind, .text = &text};
  if (g->o->event && g->o->event(g->o->context, &e)) g->interrupted = 1;
}

/* Passes the text after its first `before` bytes to the callback. */
static void pass_on(generation *g, const generation_slot *s, size_t before) {
  const ch_buffer *text = &s->text.text;
  const char *more = text->size > before ? text->data + before : "";
  emit(g, CHOIR_EVENT_TEXT, (choir_text_event){s->sequence, more, text->size - before, NULL});
}

/* Ends a sequence: emits the text that was held back, moves the text to the result, and frees the slot. */
static int finish_sequence(generation *g, generation_slot *s, choir_end end, size_t before) {
  choir_generated *to = &g->result->sequences[s->sequence];
  ch_buffer *text = &s->text.text;
  CH_TRY(ch_stream_end(&s->text));
  pass_on(g, s, before);
  CH_TRY(ch_buffer_append(text, "", 1));
  to->end = end;
  to->text = text->data;
  to->size = text->size - 1;
  *text = (ch_buffer){0};
  ch_stream_free(&s->text);
  emit(g, CHOIR_EVENT_END, (choir_text_event){s->sequence, .generated = to});
  g->ended++;
  s->sequence = -1;
  return CHOIR_OK;
}

/* Appends a token to a sequence, or ends the sequence. */
static int take_token(generation *g, generation_slot *s, int32_t token) {
  choir_generated *to = &g->result->sequences[s->sequence];
  const choir_tokenizer *t = g->tokenizer;
  size_t before = s->text.text.size;
  if (t && token == t->eos) return finish_sequence(g, s, CHOIR_END_EOS, before);
  s->next = token;
  CH_TRY(push(to, token));
  g->result->tokens++;
  if (t) CH_TRY(ch_stream_add(&s->text, t->surface[token].text, t->surface[token].size, g->o->stops));
  if (s->text.stopped) return finish_sequence(g, s, CHOIR_END_STOP, before);
  if (to->count == g->o->max_tokens) return finish_sequence(g, s, CHOIR_END_LENGTH, before);
  pass_on(g, s, before);
  return CHOIR_OK;
}

/* Samples a token for every slot whose logits the last call computed. */
static int sample(generation *g) {
  for (int b = 0; b < g->slots; b++) {
    generation_slot *s = &g->slot[b];
    if (s->sequence < 0 || s->waiting || !g->counts[b]) continue;
    const choir_generated *to = &g->result->sequences[s->sequence];
    ch_rng rng = ch_rng_make(g->o->seed, CH_STREAM_SAMPLE, (uint32_t)s->sequence);
    int position = to->prompt_count + to->count;
    int32_t token = ch_sample(&g->sampling, g->logits + (int64_t)b * g->V, g->V,
                              ch_rng_uniform(rng, (uint64_t)position), g->candidates);
    if (token < 0)
      return ch_error(CHOIR_ERROR_NUMERIC, "sequence %d, position %d: the logits are not finite numbers", s->sequence,
                      position);
    CH_TRY(take_token(g, s, token));
  }
  return CHOIR_OK;
}

/* Assigns the next prompts to free slots. Nonzero if any prompt still has unprocessed tokens. */
static int begin_sequences(generation *g) {
  int waiting = 0;
  for (int b = 0; b < g->slots; b++) {
    generation_slot *s = &g->slot[b];
    if (s->sequence < 0 && g->begun < g->result->count) {
      s->sequence = g->begun++;
      s->waiting = g->prompts->prompt[s->sequence].count;
      choir_session_rewind(g->session, b, 0);
    }
    waiting |= s->sequence >= 0 && s->waiting > 0;
  }
  return waiting;
}

/* Processes a chunk of the waiting prompts. */
static int read_prompts(generation *g) {
  int total = 0;
  for (int b = 0; b < g->slots; b++) {
    generation_slot *s = &g->slot[b];
    int left = s->sequence < 0 ? 0 : s->waiting, free_tokens = g->session->chunk - total;
    g->counts[b] = left < free_tokens ? left : free_tokens;
    if (!g->counts[b]) continue;
    const ch_prompt *p = &g->prompts->prompt[s->sequence];
    memcpy(g->token + total, p->tokens + p->count - left, (size_t)g->counts[b] * sizeof *g->token);
    s->waiting -= g->counts[b];
    total += g->counts[b];
  }
  double begin = ch_machine_seconds();
  CH_TRY(choir_session_advance(g->session, g->counts, g->token, g->logits, NULL));
  g->result->prompt_seconds += ch_machine_seconds() - begin;
  g->result->prompt_tokens += total;
  return sample(g);
}

/* Generates one token for every sequence. */
static int generate_step(generation *g) {
  int total = 0;
  for (int b = 0; b < g->slots; b++) {
    g->counts[b] = g->slot[b].sequence >= 0;
    if (g->counts[b]) g->token[total++] = g->slot[b].next;
  }
  double begin = ch_machine_seconds();
  CH_TRY(choir_session_advance(g->session, g->counts, g->token, g->logits, NULL));
  CH_TRY(sample(g));
  g->result->seconds += ch_machine_seconds() - begin;
  return CHOIR_OK;
}

static int at_work(const generation *g) {
  int busy = 0;
  for (int b = 0; b < g->slots; b++) busy += g->slot[b].sequence >= 0;
  return busy;
}

static int run_generation(generation *g) {
  while (!g->interrupted) {
    if (begin_sequences(g))
      CH_TRY(read_prompts(g));
    else if (at_work(g))
      CH_TRY(generate_step(g));
    else
      return CHOIR_OK;
    g->interrupted |= ch_generate_stopped(g->o, g->ended, g->result->count);
  }
  for (int b = 0; b < g->slots; b++)
    if (g->slot[b].sequence >= 0)
      CH_TRY(finish_sequence(g, &g->slot[b], CHOIR_END_INTERRUPTED, g->slot[b].text.text.size));
  return CHOIR_OK;
}

static int start_generation(generation *g, choir_model *model) {
  const choir_generate_options *o = g->o;
  enum { MAX = 1 << 26 };
  if (o->max_tokens > MAX - g->prompts->longest)
    return ch_error(CHOIR_ERROR_ARGUMENT, "a prompt of %d tokens and max_tokens %d are too much: %d together at most",
                    g->prompts->longest, o->max_tokens, MAX);
  choir_session_options session = {
      .size = sizeof session, .slots = g->slots, .length = g->prompts->longest + o->max_tokens, .chunk = o->chunk};
  CH_TRY(choir_session_create(model, &session, &g->session));
  g->result->routing = choir_session_routing(g->session);
  size_t slots = (size_t)g->slots, tokens = (size_t)(o->chunk > g->slots ? o->chunk : g->slots);
  CH_TRY(CH_ALLOC(&g->slot, slots, "sequences"));
  CH_TRY(CH_ALLOC(&g->counts, slots, "sequences"));
  CH_TRY(CH_ALLOC(&g->token, tokens, "tokens of a chunk"));
  CH_TRY(CH_ALLOC(&g->logits, slots * (size_t)g->V, "logits of sequences"));
  CH_TRY(CH_ALLOC(&g->candidates, g->V, "candidates for a token"));
  for (int b = 0; b < g->slots; b++) g->slot[b].sequence = -1;
  return CHOIR_OK;
}

static void release_generation(generation *g) {
  for (int b = 0; g->slot && b < g->slots; b++) ch_stream_free(&g->slot[b].text);
  choir_session_free(g->session);
  free(g->slot), free(g->counts), free(g->token), free(g->logits), free(g->candidates);
}

/* Allocates a result for every sequence; a sequence that was interrupted before it got a slot has an empty text. */
static int make_result(const ch_prompts *prompts, choir_generate_result *result) {
  CH_TRY(CH_ALLOC(&result->sequences, prompts->count, "sequences"));
  result->count = prompts->count;
  for (int i = 0; i < result->count; i++) {
    result->sequences[i].prompt_count = prompts->prompt[i].count;
    result->sequences[i].end = CHOIR_END_INTERRUPTED;
  }
  return CHOIR_OK;
}

static int end_unbegun(generation *g) {
  for (int i = g->begun; i < g->result->count; i++) {
    choir_generated *to = &g->result->sequences[i];
    CH_TRY(CH_ALLOC(&to->text, 1, "an empty text"));
    emit(g, CHOIR_EVENT_END, (choir_text_event){i, .generated = to});
  }
  return CHOIR_OK;
}

int choir_generate(choir_model *model, const choir_tokenizer *tokenizer, const choir_prompt *prompts, int count,
                   const choir_generate_options *options, choir_generate_result *result) {
  CH_ENTER(model, prompts, result);
  *result = (choir_generate_result){0};
  CH_OPTIONS(choir_generate_options, copy, options, CHOIR_GENERATE_OPTIONS_INIT);
  const choir_generate_options *o = &copy;
  int V = choir_model_config(model)->model.vocab_size;
  ch_prompts made = {0};
  generation g = {.o = o, .tokenizer = tokenizer, .prompts = &made, .result = result, .V = V};
  int code = ch_generate_check(model, tokenizer, o);
  if (!code) code = ch_prompts_make(tokenizer, V, o, prompts, count, &made);
  int stopped = code == CHOIR_ERROR_INTERRUPTED; /* interrupted while a long prompt was encoded: no sequence begins */
  if (!code || stopped) code = make_result(&made, result);
  g.sampling = (ch_sampling){o->temperature, o->top_k, o->top_p};
  g.slots = count < o->batch ? count : o->batch;
  if (!code && !stopped) code = start_generation(&g, model);
  if (!code && !stopped) code = run_generation(&g);
  if (!code) code = end_unbegun(&g);
  release_generation(&g);
  ch_prompts_free(&made);
  if (code) choir_generate_result_clear(result);
  return code;
}

void choir_generate_result_clear(choir_generate_result *result) {
  if (!result) return;
  for (int i = 0; i < result->count; i++) {
    free(result->sequences[i].text);
    free(result->sequences[i].tokens);
  }
  free(result->sequences);
  *result = (choir_generate_result){0};
}

const char *choir_end_name(choir_end end) {
  static const char *const names[] = {"length", "eos", "stop", "interrupted"};
  return (unsigned)end < 4 ? names[end] : "unknown";
}
