/* Tests the declared dependencies of a plug-in before memory is planned: changes of other tokens' scores must not
 * change a token's experts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "moe/plugin.h"

enum {
  SMALL = 64,   /* tokens, each of which is changed separately */
  LARGE = 1024, /* tokens if a pass has more than SMALL; only CHANGES of them are changed */
  CHANGES = 16, /* max number of changed tokens */
  TRIALS = 2
};

typedef struct {
  ch_plugin *p;
  const ch_router_spec *options;
  int n, e, training;
  float *base, *changed;   /* [n,e] scores */
  float *ranking, *alone;  /* [n,e], [e] of `rank` */
  uint8_t *first, *second; /* [n,e] choices */
  uint8_t *valid;          /* [n] */
  double *state;           /* [e] 0 */
  int32_t tokens[LARGE];   /* ids */
  ch_rng rng;
  uint64_t drawn;
} measurement;

static int measurement_new(ch_plugin *p, const ch_router_spec *o, int n, int e, measurement *m) {
  *m = (measurement){.p = p, .options = o, .n = n, .e = e};
  size_t cells = (size_t)n * (size_t)e;
  CH_TRY(CH_ALLOC(&m->base, 3 * cells + (size_t)e, "scores to measure a router by"));
  m->changed = m->base + cells;
  m->ranking = m->changed + cells;
  m->alone = m->ranking + cells;
  int code = CH_ALLOC(&m->first, 2 * cells + (size_t)n, "choices of a router");
  if (!code) code = CH_ALLOC(&m->state, e, "the state of a router");
  if (code) return free(m->base), free(m->first), code;
  m->second = m->first + cells;
  m->valid = m->second + cells;
  return CHOIR_OK;
}

/* Draws a new id for token t, and new scores: a softmax of normal logits. */
static void draw_row(measurement *m, int t, float *scores) {
  double sum = 0;
  float *row = scores + (int64_t)t * m->e;
  m->tokens[t] = (int32_t)ch_rng_below(m->rng, m->drawn++, 256);
  for (int i = 0; i < m->e; i++) sum += (double)(row[i] = (float)exp(2 * ch_rng_normal(m->rng, m->drawn++)));
  for (int i = 0; i < m->e; i++) row[i] = (float)((double)row[i] / sum);
}

/* The `call` argument for n tokens from `first` on, with scores [m->n,e] and the capacity for the valid tokens. */
static choir_plugin_call call_of(const measurement *m, int first, int n, const float *scores, char *message) {
  int valid = 0;
  for (int t = first; t < first + n; t++) valid += m->valid[t];
  choir_plugin_call call = ch_plugin_call(m->p, m->options, n, m->e, valid, m->training, message);
  call.first = (uint64_t)first;
  call.tokens = m->p->router.reads == CHOIR_READS_IDS ? m->tokens + first : NULL;
  call.scores = scores + (int64_t)first * m->e;
  call.state = m->state;
  call.valid = m->valid + first;
  return call;
}

static int call_router(const measurement *m, int first, int n, const float *scores, uint8_t *chosen) {
  char message[CHOIR_PLUGIN_MESSAGE_BYTES];
  choir_plugin_call call = call_of(m, first, n, scores, message);
  return ch_plugin_choose(m->p, &call, chosen);
}

static int rank(const measurement *m, int first, int n, float *ranking) {
  char message[CHOIR_PLUGIN_MESSAGE_BYTES];
  choir_plugin_call call = call_of(m, first, n, m->base, message);
  return ch_plugin_rank(m->p, &call, ranking);
}

static int row_differs(const measurement *m, int t, const uint8_t *a, const uint8_t *b) {
  return memcmp(a + (int64_t)t * m->e, b, (size_t)m->e) != 0;
}

/* Whether token t may depend on token u by the declaration. */
static int may_depend(const measurement *m, int t, int u) {
  switch (m->p->router.depends_on) {
    case CHOIR_DEPENDS_ON_NONE:
      return 0;
    case CHOIR_DEPENDS_ON_ALL_IN_TRAINING:
      return m->training;
    case CHOIR_DEPENDS_ON_PAST:
      return u < t;
    default:
      return 1;
  }
}

static int refuse(const measurement *m, int t, int u) {
  char which[64];
  snprintf(which, sizeof which, u < 0 ? "are others when it is alone" : "change with the scores of token %d", u);
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "router '%s' declares depends_on %s, but the experts of token %d %s (%s, %d made-up tokens, %d experts): "
      "declare what it depends on, or fix it",
      m->p->given.name, ch_plugin_depends_on[m->p->router.depends_on], t, which,
      m->training ? "in training" : "in evaluation", m->n, m->e);
}

/* Changes the scores of token u only, and compares the experts of all tokens that must not depend on it. */
static int change_one(measurement *m, int u) {
  size_t cells = (size_t)m->n * (size_t)m->e;
  memcpy(m->changed, m->base, cells * sizeof *m->base);
  int32_t id = m->tokens[u];
  draw_row(m, u, m->changed);
  int code = call_router(m, 0, m->n, m->changed, m->second);
  m->tokens[u] = id;
  CH_TRY(code);
  for (int t = 0; t < m->n; t++)
    if (t != u && !may_depend(m, t, u) && row_differs(m, t, m->first, m->second + (int64_t)t * m->e))
      return refuse(m, t, u);
  return CHOIR_OK;
}

/* A token that depends on no other token must have the same experts when routed alone. */
static int test_single_token(const measurement *m, int t) {
  if (may_depend(m, t, t - 1) || may_depend(m, t, t + 1)) return CHOIR_OK;
  CH_TRY(call_router(m, t, 1, m->base, m->second));
  return row_differs(m, t, m->first, m->second) ? refuse(m, t, -1) : CHOIR_OK;
}

/* Allows rounding errors: a matrix product of a single row may add in another order. */
static int same_ranking(const float *a, const float *b, int e) {
  float largest = 0, difference = 0;
  for (int i = 0; i < e; i++) {
    largest = fmaxf(largest, fmaxf(fabsf(a[i]), fabsf(b[i])));
    difference = fmaxf(difference, fabsf(a[i] - b[i]));
  }
  return difference <= 1e-5f * largest;
}

/* Threshold routing ranks each token alone, so the ranking of a token alone must equal its ranking among others. */
static int rank_alone(const measurement *m, int change) {
  if (!m->p->given.rank) return CHOIR_OK;
  CH_TRY(rank(m, 0, m->n, m->ranking));
  for (int t = 0; t < m->n; t += change) {
    CH_TRY(rank(m, t, 1, m->alone));
    if (m->valid[t] && !same_ranking(m->alone, m->ranking + (int64_t)t * m->e, m->e))
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "router '%s': the ranking of token %d changes when it is alone (%d made-up tokens, %d experts): "
                      "rank a token by its own scores, because generation has no others to compare it with",
                      m->p->given.name, t, m->n, m->e);
  }
  return CHOIR_OK;
}

/* In the second trial the last quarter is padding. */
static int measure_once(measurement *m, int trial) {
  int change = m->n <= SMALL ? 1 : m->n / CHANGES;
  for (int t = 0; t < m->n; t++) draw_row(m, t, m->base);
  for (int t = 0; t < m->n; t++) m->valid[t] = trial == 0 || t < m->n - m->n / 4;
  CH_TRY(call_router(m, 0, m->n, m->base, m->first));
  CH_TRY(call_router(m, 0, m->n, m->base, m->second));
  if (memcmp(m->first, m->second, (size_t)m->n * (size_t)m->e))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s' chooses otherwise when it is asked again with the same scores: what it does must be a "
                    "function of its arguments, random numbers too",
                    m->p->given.name);
  CH_TRY(rank_alone(m, change));
  if (m->p->router.depends_on == CHOIR_DEPENDS_ON_ALL) return CHOIR_OK;
  for (int u = 0; u < m->n; u += change) CH_TRY(change_one(m, u));
  for (int t = 0; t < m->n; t += 1 + m->n / 4) CH_TRY(test_single_token(m, t));
  return CHOIR_OK;
}

/* Hash of the inputs of the measurement. */
static uint64_t case_of(const ch_router_spec *o, int n, int e) {
  const double numbers[] = {n, e, ch_router_factor(o, 1), ch_router_factor(o, 0), ch_router_choices(o)};
  return XXH64(o->plugin_options, sizeof o->plugin_options, XXH64(numbers, sizeof numbers, 1)) | 1;
}

static int measure(ch_plugin *p, const ch_router_spec *o, int n, int e) {
  measurement m;
  CH_TRY(measurement_new(p, o, n, e, &m));
  int code = CHOIR_OK;
  for (int i = 0; i < 2 * TRIALS && !code; i++) {
    m.rng = ch_rng_make((uint64_t)i, CH_STREAM_PROBE, 0);
    m.training = i % 2;
    code = measure_once(&m, i / 2);
  }
  free(m.base);
  free(m.first);
  free(m.state);
  return code;
}

int ch_plugin_measure(const ch_plugin *declared, const ch_router_spec *o, int n, int e) {
  ch_plugin *p = (ch_plugin *)declared;
  uint64_t this_case = case_of(o, n > SMALL ? LARGE : n, e);
  if (n < 2 || __atomic_load_n(&p->verified_case, __ATOMIC_RELAXED) == this_case) return CHOIR_OK;
  CH_TRY(measure(p, o, n > SMALL ? SMALL : n, e));
  if (n > SMALL) CH_TRY(measure(p, o, LARGE, e));
  __atomic_store_n(&p->verified_case, this_case, __ATOMIC_RELAXED);
  return CHOIR_OK;
}
