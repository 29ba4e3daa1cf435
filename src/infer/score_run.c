/* Scoring with sessions. Requests are sorted by their tokens, so that requests with a common prefix are neighbors.
 * Each slot of a session processes consecutive requests and computes only the tokens after the prefix shared with the
 * previous request. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/machine.h"
#include "infer/score.h"
#include "infer/session.h"
#include "model/config.h"

typedef struct {
  int64_t next, end;         /* range of waiting items */
  const ch_score_item *item; /* the item being scored, or NULL */
  const ch_score_item *held; /* item whose tokens are in the slot's cache */
  int waiting;               /* tokens of its context that the session has not processed yet */
  int done;                  /* tokens of the continuation scored so far */
  int known;         /* tokens of the context whose following logits are summarized in `behind`; 0: `behind` is empty */
  ch_summary behind; /* summary of the logits after the context */
} scoring_slot;

typedef struct {
  const choir_score_options *o;
  choir_score_result *result;
  choir_session *session;
  ch_score_item *items;
  int64_t count, finished;
  int V, slots, rows; /* rows: maximum of rows of logits in one call */
  scoring_slot *slot;
  int *counts;    /* [slots] */
  int32_t *token; /* [chunk or rows] */
  float *last;    /* [slots,V] after contexts */
  float *all;     /* [rows,V] */
} scoring;

static int total(const ch_score_item *i) { return i->contexts + i->continuations; }

static int32_t token_at(const ch_score_item *i, int at) {
  return at < i->contexts ? i->context[at] : i->continuation[at - i->contexts];
}

/* Length of the common prefix of two requests. */
static int count_common(const ch_score_item *a, const ch_score_item *b) {
  int at = 0, max = total(a) < total(b) ? total(a) : total(b);
  if (a->context == b->context) at = a->contexts < b->contexts ? a->contexts : b->contexts;
  while (at < max && token_at(a, at) == token_at(b, at)) at++;
  return at;
}

static int compare_requests(const void *left, const void *right) {
  const ch_score_item *a = left, *b = right;
  int at = count_common(a, b), more = total(a) - total(b);
  if (at < total(a) && at < total(b)) return token_at(a, at) < token_at(b, at) ? -1 : 1;
  if (more) return more;
  return (a->contexts > b->contexts) - (a->contexts < b->contexts);
}

/* Tokens to compute for an item after the previous one; at least one, so that items without cost are distributed,
 * too. */
static int64_t cost(const ch_score_item *items, int64_t i) {
  int64_t fresh = total(&items[i]) - (i ? count_common(&items[i - 1], &items[i]) : 0);
  return fresh > 0 ? fresh : 1;
}

/* Gives every slot a contiguous range of items with about the same total cost. */
static void share_out(scoring *g) {
  int64_t sum = 0, so_far = 0, i = 0;
  for (int64_t k = 0; k < g->count; k++) sum += cost(g->items, k);
  for (int b = 0; b < g->slots; b++) {
    g->slot[b].next = i;
    while (i < g->count && so_far * g->slots < sum * (b + 1)) so_far += cost(g->items, i++);
    g->slot[b].end = i;
  }
}

/* Scores the next token of a continuation by the logits before it. */
static int score_token(scoring_slot *s, const float *logits, const ch_summary *of) {
  choir_scored *score = s->item->score;
  int32_t token = s->item->continuation[s->done];
  double log_probability = (double)logits[token] - of->log_sum;
  if (!isfinite(log_probability))
    return ch_error(CHOIR_ERROR_NUMERIC, "the logits in front of token %d of a continuation are not finite", s->done);
  if (score->log_probability) score->log_probability[s->done] = (float)log_probability;
  s->done++;
  score->log_likelihood += log_probability;
  score->greedy &= of->best == token;
  return CHOIR_OK;
}

static int finish_if_done(scoring *g, scoring_slot *s) {
  if (s->done < s->item->continuations) return 0;
  s->item = NULL;
  g->finished++;
  return 1;
}

/* Starts the slot's next item: keeps the cached common prefix, and, if that is the whole context, the logits after
 * it. */
static int begin_request(scoring *g, int b) {
  scoring_slot *s = &g->slot[b];
  s->item = &g->items[s->next++];
  s->done = 0;
  s->item->score->greedy = 1;
  int shared = s->held ? count_common(s->held, s->item) : 0, held = choir_session_length(g->session, b);
  int contexts = s->item->contexts, keep = shared < held ? shared : held;
  if (s->known != contexts || shared < contexts) s->known = 0;
  if (keep > contexts - !s->known) keep = contexts - !s->known;
  s->held = s->item;
  s->waiting = contexts - keep;
  CH_TRY(choir_session_rewind(g->session, b, keep));
  return s->known ? score_token(s, g->last + (int64_t)b * g->V, &s->behind) : CHOIR_OK;
}

/* Starts new items in free slots, including items that need no pass. */
static int begin_items(scoring *g) {
  for (int b = 0; b < g->slots; b++) {
    scoring_slot *s = &g->slot[b];
    while (!s->item && s->next < s->end) {
      CH_TRY(begin_request(g, b));
      finish_if_done(g, s);
    }
  }
  return CHOIR_OK;
}

/* Lays out at most `max` tokens for a call: of contexts, or of continuations, whose last token is never an input. */
static int lay_out(scoring *g, int contexts, int max) {
  int n = 0;
  for (int b = 0; b < g->slots; b++) {
    const scoring_slot *s = &g->slot[b];
    int left = !s->item ? 0 : contexts ? s->waiting : s->waiting ? 0 : s->item->continuations - s->done;
    g->counts[b] = left < max - n ? left : max - n;
    if (!g->counts[b]) continue;
    const int32_t *from =
        contexts ? s->item->context + s->item->contexts - s->waiting : s->item->continuation + s->done - 1;
    memcpy(g->token + n, from, (size_t)g->counts[b] * sizeof *g->token);
    n += g->counts[b];
  }
  g->result->tokens += n;
  return n;
}

static int read_contexts(scoring *g) {
  if (!lay_out(g, 1, g->session->chunk)) return CHOIR_OK;
  CH_TRY(choir_session_advance(g->session, g->counts, g->token, g->last, NULL));
  for (int b = 0; b < g->slots; b++) {
    scoring_slot *s = &g->slot[b];
    s->waiting -= g->counts[b];
    if (!g->counts[b] || s->waiting) continue;
    s->known = s->item->contexts;
    s->behind = ch_summarize(g->last + (int64_t)b * g->V, g->V);
    CH_TRY(score_token(s, g->last + (int64_t)b * g->V, &s->behind));
    finish_if_done(g, s);
  }
  return CHOIR_OK;
}

static int read_continuations(scoring *g) {
  if (!lay_out(g, 0, g->rows)) return CHOIR_OK;
  CH_TRY(choir_session_advance(g->session, g->counts, g->token, NULL, g->all));
  const float *row = g->all;
  for (int b = 0; b < g->slots; b++) {
    for (int i = 0; i < g->counts[b]; i++, row += g->V) {
      ch_summary s = ch_summarize(row, g->V);
      CH_TRY(score_token(&g->slot[b], row, &s));
    }
    if (g->counts[b]) finish_if_done(g, &g->slot[b]);
  }
  return CHOIR_OK;
}

static int wait_for_context(const scoring *g) {
  for (int b = 0; b < g->slots; b++)
    if (g->slot[b].item && g->slot[b].waiting) return 1;
  return 0;
}

static int run_scoring(scoring *g) {
  while (g->finished < g->count) {
    CH_TRY(begin_items(g));
    CH_TRY(wait_for_context(g) ? read_contexts(g) : read_continuations(g));
    CH_TRY(
        ch_model_check_cancelled(g->session->model, g->o->progress, g->o->context, g->finished, g->count, "requests"));
  }
  return CHOIR_OK;
}

static int start_session(scoring *g, choir_model *model) {
  enum { MAX_LOGITS = 1 << 24 };
  int longest = 0;
  for (int64_t i = 0; i < g->count; i++)
    if (total(&g->items[i]) > longest) longest = total(&g->items[i]);
  g->slots = g->o->batch < g->count ? g->o->batch : (int)g->count;
  CH_TRY(choir_session_create(
      model,
      &(choir_session_options){
          .size = sizeof(choir_session_options), .slots = g->slots, .length = longest, .chunk = g->o->chunk},
      &g->session));
  g->result->routing = choir_session_routing(g->session);
  g->result->measure = CHOIR_SCORE_EXACT;
  g->rows = MAX_LOGITS / g->V > 0 ? MAX_LOGITS / g->V : 1;
  if (g->rows > g->session->chunk) g->rows = g->session->chunk;
  size_t slots = (size_t)g->slots;
  CH_TRY(CH_ALLOC(&g->slot, slots, "sequences to score"));
  CH_TRY(CH_ALLOC(&g->counts, slots, "sequences to score"));
  CH_TRY(CH_ALLOC(&g->token, g->session->chunk, "tokens of a chunk"));
  CH_TRY(CH_ALLOC(&g->last, slots * (size_t)g->V, "logits of last tokens"));
  return CH_ALLOC(&g->all, (size_t)g->rows * (size_t)g->V, "logits of a chunk");
}

int ch_score_run(choir_model *model, ch_score_item *items, int64_t count, const choir_score_options *o,
                 choir_score_result *result) {
  if (ch_config_masked(&model->config)) return ch_score_masked(model, items, count, o, result);
  scoring g = {.o = o, .result = result, .items = items, .count = count, .V = model->config.model.vocab_size};
  double begin = ch_machine_seconds();
  qsort(items, (size_t)count, sizeof *items, compare_requests);
  int code = start_session(&g, model);
  if (!code) {
    share_out(&g);
    code = run_scoring(&g);
  }
  choir_session_free(g.session);
  free(g.slot), free(g.counts), free(g.token), free(g.last), free(g.all);
  result->seconds = ch_machine_seconds() - begin;
  return code;
}
