/* Hit rates of an expert cache (moe/locality.h). */
#include "moe/locality.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "file/json.h"

const int ch_segments[CH_SEGMENTS] = {16, 64, 256};

int ch_cache_size(int experts, int index) {
  int size = experts / (8 >> index);
  return size > 1 ? size : 1;
}

static int words(int experts) { return (experts + 63) / 64; }

static const uint64_t *row_of(const ch_route_log *log, int64_t token) {
  return (const uint64_t *)(const void *)log->rows.data + token * words(log->experts);
}

static int64_t token_count(const ch_route_log *log) {
  return (int64_t)(log->rows.size / sizeof(uint64_t)) / words(log->experts);
}

/* ---- the log */

static void append_token(ch_route_log *log, const choir_routing *r, int token) {
  uint64_t row[words(log->experts)];
  for (int i = 0; i < words(log->experts); i++) row[i] = 0;
  for (int i = r->token_begin[token], expert = 0; i < r->token_begin[token + 1]; i++) {
    while (r->token_slot[i] >= r->expert_begin[expert + 1]) expert++; /* slots ascend */
    row[expert / 64] |= (uint64_t)1 << expert % 64;
  }
  uint8_t begins = token % log->length == 0;
  if (!log->code) log->code = ch_buffer_append(&log->rows, row, sizeof row);
  if (!log->code) log->code = ch_buffer_append(&log->begins, &begins, sizeof begins);
}

void ch_route_log_append(ch_route_log *log, const choir_routing *r) {
  int64_t left = CH_ROUTE_LOG_TOKENS - token_count(log);
  for (int t = 0; t < r->tokens && left > 0; t++)
    if (!r->valid || r->valid[t]) {
      append_token(log, r, t);
      left--;
    }
}

void ch_route_log_free(ch_route_log *log) {
  free(log->rows.data);
  free(log->begins.data);
  *log = (ch_route_log){0};
}

/* ---- one pass over the tokens in a given order */

typedef struct pass {
  const ch_route_log *log;
  int shuffled;
  ch_recent recent;
  int *uses;   /* [CH_SEGMENTS,e] of this segment */
  int *sorted; /* [e] */
} pass;

static const uint64_t *row_at(const pass *p, int64_t at) {
  uint64_t n = (uint64_t)token_count(p->log);
  return row_of(p->log,
                p->shuffled ? (int64_t)ch_rng_permute(ch_rng_make(0, CH_STREAM_LOCALITY, 0), (uint64_t)at, n) : at);
}

static int has(const uint64_t *row, int expert) { return (int)(row[expert / 64] >> expert % 64 & 1); }

static void add_reuse(const pass *p, const uint64_t *row, const uint64_t *before, ch_locality_sums *s) {
  for (int i = 0; i < words(p->log->experts); i++) {
    s->reuse.part += __builtin_popcountll(row[i] & before[i]);
    s->reuse.whole += __builtin_popcountll(row[i]);
  }
}

int ch_recent_use(ch_recent *r, int expert) {
  int at = 0;
  while (at < r->count && r->expert[at] != expert) at++;
  int before = at < r->count ? at : INT_MAX;
  if (at == r->count) r->count++;
  for (; at > 0; at--) r->expert[at] = r->expert[at - 1];
  r->expert[0] = expert;
  return before;
}

/* Counts the hits of all sizes at once. */
static void use_cache(pass *p, int expert, ch_locality_sums *s) {
  int at = ch_recent_use(&p->recent, expert);
  for (int i = 0; i < CH_CACHE_SIZES; i++) {
    s->lru[i].part += at < ch_cache_size(p->log->experts, i);
    s->lru[i].whole++;
  }
}

static int descending(const void *a, const void *b) {
  const int *x = a, *y = b;
  return (*x < *y) - (*x > *y);
}

/* Ends a segment: adds the uses of its most used experts, and the number of experts used. */
static void end_segment(pass *p, int segment, ch_locality_sums *s) {
  int e = p->log->experts, *uses = p->uses + (size_t)segment * (size_t)e, all = 0, distinct = 0, best = 0, size = 0;
  for (int i = 0; i < e; i++) {
    p->sorted[i] = uses[i];
    all += uses[i];
    distinct += uses[i] > 0;
    uses[i] = 0;
  }
  qsort(p->sorted, (size_t)e, sizeof *p->sorted, descending);
  for (int c = 0; c < CH_CACHE_SIZES; c++) {
    for (; size < ch_cache_size(e, c); size++) best += p->sorted[size];
    s->srp[c][segment].part += best;
    s->srp[c][segment].whole += all;
  }
  s->working_set[segment].part += distinct;
  s->working_set[segment].whole++;
}

/* Every sequence begins with an empty cache and new segments. */
static void begin_sequence(pass *p) {
  p->recent.count = 0;
  for (int i = 0; i < CH_SEGMENTS * p->log->experts; i++) p->uses[i] = 0;
}

static void run(pass *p, ch_locality_sums *s) {
  int e = p->log->experts, place = 0;
  for (int64_t t = 0; t < token_count(p->log); t++, place++) {
    const uint64_t *row = row_at(p, t);
    if (p->log->begins.data[t]) {
      place = 0;
      begin_sequence(p);
    }
    if (place) add_reuse(p, row, row_at(p, t - 1), s);
    for (int i = 0; i < e; i++) {
      if (!has(row, i)) continue;
      use_cache(p, i, s);
      for (int g = 0; g < CH_SEGMENTS; g++) p->uses[g * e + i]++;
    }
    for (int g = 0; g < CH_SEGMENTS; g++)
      if ((place + 1) % ch_segments[g] == 0) end_segment(p, g, s);
  }
}

int ch_locality_make(const ch_route_log *log, ch_locality *locality) {
  pass p = {.log = log};
  *locality = (ch_locality){0};
  int code = log->code;
  if (!code) code = CH_ALLOC(&p.recent.expert, log->experts, "locality of routing");
  if (!code) code = CH_ALLOC(&p.uses, (int64_t)CH_SEGMENTS * log->experts, "locality of routing");
  if (!code) code = CH_ALLOC(&p.sorted, log->experts, "locality of routing");
  if (!code) run(&p, &locality->text);
  p.shuffled = 1;
  if (!code) run(&p, &locality->shuffled);
  free(p.recent.expert);
  free(p.uses);
  free(p.sorted);
  return code;
}

void ch_locality_expert_reuse(const ch_route_log *log, ch_ratio *reuse) {
  for (int i = 0; i < log->experts; i++) reuse[i] = (ch_ratio){0};
  for (int64_t t = 1; t < token_count(log); t++)
    for (int i = 0; i < log->experts && !log->begins.data[t]; i++) {
      if (!has(row_of(log, t), i)) continue;
      reuse[i].part += has(row_of(log, t - 1), i);
      reuse[i].whole++;
    }
}

static void add(ch_ratio *sum, ch_ratio more) {
  sum->part += more.part;
  sum->whole += more.whole;
}

static void add_sums(ch_locality_sums *sum, const ch_locality_sums *more) {
  add(&sum->reuse, more->reuse);
  for (int g = 0; g < CH_SEGMENTS; g++) add(&sum->working_set[g], more->working_set[g]);
  for (int c = 0; c < CH_CACHE_SIZES; c++) {
    add(&sum->lru[c], more->lru[c]);
    for (int g = 0; g < CH_SEGMENTS; g++) add(&sum->srp[c][g], more->srp[c][g]);
  }
}

void ch_locality_add(ch_locality *sum, const ch_locality *more) {
  add_sums(&sum->text, &more->text);
  add_sums(&sum->shuffled, &more->shuffled);
}

/* ---- as JSON */

json_t *ch_ratio_json(ch_ratio r) { return r.whole ? json_real((double)r.part / (double)r.whole) : json_null(); }

static void put_ratio(json_t *object, int key, ch_ratio r) {
  char name[16];
  snprintf(name, sizeof name, "%d", key);
  ch_json_put(object, name, ch_ratio_json(r));
}

static json_t *by_segment(const ch_ratio *ratios) {
  json_t *object = json_object();
  for (int g = 0; g < CH_SEGMENTS; g++) put_ratio(object, ch_segments[g], ratios[g]);
  return object;
}

static json_t *locality_sums(const ch_locality_sums *s, int experts) {
  json_t *object = json_object(), *lru = json_object(), *srp = json_object();
  for (int c = 0; c < CH_CACHE_SIZES; c++) {
    char size[16];
    snprintf(size, sizeof size, "%d", ch_cache_size(experts, c));
    put_ratio(lru, ch_cache_size(experts, c), s->lru[c]);
    ch_json_put(srp, size, by_segment(s->srp[c]));
  }
  ch_json_put(object, "reuse", ch_ratio_json(s->reuse));
  ch_json_put(object, "lru", lru);
  ch_json_put(object, "srp", srp);
  ch_json_put(object, "working_set", by_segment(s->working_set));
  return object;
}

json_t *ch_locality_json(const ch_locality *locality, int experts) {
  json_t *object = locality_sums(&locality->text, experts);
  ch_json_put(object, "shuffled", locality_sums(&locality->shuffled, experts));
  return object;
}
