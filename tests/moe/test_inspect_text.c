/* Statistics of routings: against naive counts over a matrix of gates, by law, and for every router in a model. */
#include "choir/model.h"
#include "model/config.h"
#include "moe/route_stats.h"
#include "moe/router.h"
#include "testing.h"

enum { E = 5, V = 7, MAX = 64 };

/* A routing and all that it points to, made from gates [n,E]; 0: not routed. */
typedef struct planted {
  int n, expert_begin[E + 1], slot_token[MAX * E], token_begin[MAX + 1], token_slot[MAX * E], demand[E];
  int32_t token[MAX];
  uint8_t valid[MAX];
  float gates[MAX * E], scores[MAX * E], slot_gate[MAX * E], thresholds[E], cutoffs[E];
  choir_routing view;
} planted;

static void index_slots(planted *p) {
  int slots = 0, begin = 0;
  for (int i = 0; i < E; i++) {
    p->expert_begin[i] = slots;
    for (int t = 0; t < p->n; t++) {
      if (p->gates[t * E + i] == 0) continue;
      p->slot_token[slots] = t;
      p->slot_gate[slots++] = p->gates[t * E + i];
    }
    p->demand[i] = slots - p->expert_begin[i] + i;
  }
  p->expert_begin[E] = slots;
  for (int t = 0; t < p->n; t++) {
    p->token_begin[t] = begin;
    for (int s = 0; s < slots; s++)
      if (p->slot_token[s] == t) p->token_slot[begin++] = s;
  }
  p->token_begin[p->n] = begin;
}

static void plant(planted *p, int n, uint32_t sub) {
  ch_rng rng = ch_rng_make(77, CH_STREAM_TEST, sub);
  uint64_t at = 0;
  *p = (planted){.n = n};
  for (int t = 0; t < n; t++) {
    double sum = 0;
    p->valid[t] = ch_rng_below(rng, at++, 8) != 0;
    p->token[t] = (int32_t)ch_rng_below(rng, at++, V);
    for (int i = 0; i < E; i++) sum += (double)(p->scores[t * E + i] = (float)ch_rng_uniform(rng, at++));
    for (int i = 0; i < E; i++) {
      p->scores[t * E + i] /= (float)sum;
      if (p->valid[t] && ch_rng_below(rng, at++, 3) == 0) p->gates[t * E + i] = p->scores[t * E + i];
    }
  }
  for (int i = 0; i < E; i++) {
    p->thresholds[i] = i == 1 ? 0 : 0.1F + 0.01F * (float)i;
    p->cutoffs[i] = i == 3 ? INFINITY : 0.2F + 0.1F * (float)sub * (float)i;
  }
  index_slots(p);
  p->view = (choir_routing){.layer = 3,
                            .moe = 1,
                            .tokens = n,
                            .experts = E,
                            .token = p->token,
                            .valid = p->valid,
                            .expert_begin = p->expert_begin,
                            .slot_token = p->slot_token,
                            .slot_gate = p->slot_gate,
                            .token_begin = p->token_begin,
                            .token_slot = p->token_slot,
                            .scores = p->scores,
                            .thresholds = p->thresholds,
                            .cutoffs = p->cutoffs,
                            .demand = p->demand,
                            .capacity = 9,
                            .dropped = 2,
                            .target = 4.5};
}

static void near(double got, double wanted, const char *what) {
  if (!(fabs(got - wanted) <= 1e-9 * fmax(1, fabs(wanted)))) fail_msg("%s is %.12g, not %.12g", what, got, wanted);
}

/* A loop over the matrices says the same, over both batches. */
typedef struct naive {
  double tokens, slots, mass, entropy, load[E], gate[E], histogram[E + 1], shared[E][E], text[V], held[E][V];
} naive;

static void count_naively(const planted *p, naive *w) {
  for (int t = 0; t < p->n; t++) {
    int experts = 0;
    if (!p->valid[t]) continue;
    w->tokens++;
    w->text[p->token[t]]++;
    for (int i = 0; i < E; i++) {
      double s = (double)p->scores[t * E + i], g = (double)p->gates[t * E + i];
      w->entropy -= s * log(s);
      if (g == 0) continue;
      experts++;
      w->slots++;
      w->mass += g;
      w->gate[i] += g;
      w->load[i]++;
      w->held[i][p->token[t]]++;
      for (int j = 0; j < E; j++) w->shared[i][j] += p->gates[t * E + j] != 0;
    }
    w->histogram[experts]++;
  }
}

static void compare_experts(const choir_route_stats *s, const naive *w) {
  double load_entropy = 0;
  for (int i = 0; i < E; i++) {
    near((double)s->load[i], w->load[i], "load");
    near(s->gate[i], w->gate[i] / w->load[i], "mean gate");
    load_entropy -= w->load[i] / w->slots * log(w->load[i] / w->slots);
    for (int v = 0; v < V; v++) near((double)s->held[i * V + v], w->held[i][v], "tokens held");
    for (int j = 0; j < E; j++) {
      near((double)s->shared[i * E + j], w->shared[i][j], "tokens shared");
      near(choir_route_stats_overlap(s, i, j), w->shared[i][j] / (w->load[i] + w->load[j] - w->shared[i][j]),
           "overlap");
    }
  }
  near(s->load_entropy, load_entropy, "entropy of the load");
}

static void against_naive_counts(void **state) {
  planted p[2];
  choir_route_stats s;
  naive w = {0};
  test_ok(choir_route_stats_init(E, V, &s));
  for (uint32_t b = 0; b < 2; b++) {
    plant(&p[b], b ? 40 : MAX, b);
    choir_route_stats_count(&s, &p[b].view);
    count_naively(&p[b], &w);
  }
  assert_int_equal(s.layer, 3);
  assert_int_equal(s.moe, 1);
  near((double)s.tokens, w.tokens, "tokens");
  near((double)s.assignments, w.slots, "slots");
  near(s.gate_mass, w.mass / w.tokens, "gate mass");
  near(s.target, 9, "target");
  assert_int_equal(s.capacity, 18);
  assert_int_equal(s.dropped, 4);
  if (!(fabs(s.token_entropy - w.entropy / w.tokens) < 1e-6)) fail_msg("entropy of scores %g", s.token_entropy);
  for (int i = 0; i <= E; i++) near((double)s.histogram[i], w.histogram[i], "histogram");
  for (int v = 0; v < V; v++) near((double)s.text[v], w.text[v], "text");
  compare_experts(&s, &w);

  double first = ch_valid_count(p[0].valid, p[0].n), second = ch_valid_count(p[1].valid, p[1].n), drift = 0;
  for (int i = 0; i < E; i++) {
    double cutoff = ((double)p[0].cutoffs[i] * first + (double)p[1].cutoffs[i] * second) / (first + second);
    near(s.threshold[i], (double)p[0].thresholds[i], "threshold");
    if (i == 3) {
      assert_true(isnan(s.cutoff[i])); /* it took none */
      continue;
    }
    near(s.cutoff[i], cutoff, "cut-off");
    if (i != 1) drift += fabs(cutoff / (double)p[0].thresholds[i] - 1) / (E - 2); /* from 0 nothing is a share */
  }
  near(s.drift, drift, "drift");
  choir_route_stats_clear(&s);
}

/* The whole list of an expert in the order of the definition. */
static void favourites(void **state) {
  planted p;
  choir_route_stats s;
  choir_favourite whole[V + 1], best[V + 1];
  plant(&p, MAX, 5);
  test_ok(choir_route_stats_init(E, V, &s));
  choir_route_stats_count(&s, &p.view);
  for (int i = 0; i < E; i++)
    for (int typical = 0; typical < 2; typical++)
      for (int max = 1; max <= V + 1; max++) {
        double before = INFINITY;
        int wanted = 0, last = -1;
        for (int v = 0; v < V; v++) {
          double lift = (double)s.held[i * V + v] * (double)s.tokens / ((double)s.load[i] * (double)s.text[v]);
          wanted += s.held[i * V + v] > 0 && (!typical || lift > 1);
        }
        int count = (typical ? choir_route_stats_get_typical : choir_route_stats_get_frequent)(&s, i, max, best);
        assert_int_equal(count, wanted < max ? wanted : max);
        (typical ? choir_route_stats_get_typical : choir_route_stats_get_frequent)(&s, i, V + 1, whole);
        for (int f = 0; f < count; f++)
          assert_int_equal(best[f].token, whole[f].token); /* a shorter list is its head */
        for (int f = 0; f < count; f++) {
          double worth = (double)best[f].held * (typical ? log(best[f].lift) : 1);
          assert_int_equal(best[f].held, s.held[i * V + best[f].token]);
          assert_int_equal(best[f].text, s.text[best[f].token]);
          assert_true(worth < before || (worth == before && best[f].token > last));
          before = worth, last = best[f].token;
        }
      }
  assert_int_equal(choir_route_stats_get_frequent(&s, E, 3, best), 0);
  choir_route_stats_clear(&s);
}

/* Ends of the scales: even scores, one certain expert, one expert alone, nobody. */
static void extremes(void **state) {
  planted p;
  choir_route_stats s;
  choir_favourite none;
  plant(&p, 10, 9);
  for (int i = 0; i < 10 * E; i++) {
    p.scores[i] = i / E < 5 ? 0.2F : i % E == 2; /* half the tokens do not know, half are sure */
    p.gates[i] = i % E == 2;
  }
  index_slots(&p);
  p.view.valid = NULL;
  test_ok(choir_route_stats_init(E, V, &s));
  choir_route_stats_count(&s, &p.view);
  if (!(fabs(s.token_entropy - log(E) / 2) < 1e-7)) fail_msg("entropy %g", s.token_entropy);
  near(s.load_entropy, 0, "entropy of the load of one expert");
  near(choir_route_stats_overlap(&s, 2, 2), 1, "overlap with itself");
  near(choir_route_stats_overlap(&s, 0, 1), 0, "overlap of two that hold nothing");
  assert_int_equal(s.histogram[1], 10);
  /* the expert takes every token as often as the text has it */
  assert_int_equal(choir_route_stats_get_typical(&s, 2, 1, &none), 0);
  choir_route_stats_clear(&s);

  memset(p.valid, 0, sizeof p.valid);
  memset(p.gates, 0, sizeof p.gates);
  index_slots(&p);
  p.view.valid = p.valid;
  test_ok(choir_route_stats_init(E, 0, &s)); /* the cheap ones alone, of nothing but padding */
  choir_route_stats_count(&s, &p.view);
  assert_int_equal(s.tokens + s.assignments, 0);
  near(s.gate_mass, 0, "gate mass of nothing");
  assert_true(isnan(s.cutoff[0]));
  assert_null(s.shared);
  choir_route_stats_clear(&s);
  assert_int_equal(choir_route_stats_init(0, V, &s), CHOIR_ERROR_ARGUMENT);

  test_ok(ch_route_stats_alloc(E, &s)); /* what choir_route gives has no room for it */
  choir_route_stats_count(&s, &p.view);
  assert_int_equal(s.tokens + s.capacity, 0);
  choir_route_stats_clear(&s);
}

typedef struct inspection {
  choir_route_stats stats[4];
  int calls;
} inspection;

static void look(void *context, const choir_routing *r) {
  inspection *all = context;
  choir_route_stats_count(&all->stats[r->moe], r);
  all->calls++;
}

/* One object, every number as it is in the struct. */
static void check_json(const choir_route_stats *s) {
  char *text, wanted[256];
  test_ok(choir_route_stats_get_json(s, &text));
  snprintf(wanted, sizeof wanted,
           "{\"tokens\":%lld,\"experts\":%d,\"capacity\":%lld,\"assignments\":%lld,\"dropped\":%lld,\"aux_loss\":",
           (long long)s->tokens, s->experts, (long long)s->capacity, (long long)s->assignments, (long long)s->dropped);
  if (strncmp(text, wanted, strlen(wanted))) fail_msg("%s is not %s", text, wanted);
  snprintf(wanted, sizeof wanted, "\"load\":[%lld", (long long)s->load[0]);
  assert_non_null(strstr(text, wanted));
  if (s->certificate.assignments)
    snprintf(wanted, sizeof wanted, "\"over_cap\":%lld,\"iterations\":%lld}}", (long long)s->certificate.over_cap,
             (long long)s->certificate.iterations);
  else
    snprintf(wanted, sizeof wanted, "\"certificate\":null}");
  if (!strstr(text, wanted)) fail_msg("%s has no %s", text, wanted);
  free(text);
}

static void check_laws(const choir_model *model, const choir_route_stats *s) {
  choir_route_stats counted;
  int64_t tokens = 0, slots = 0;
  double max = log(s->experts) + 1e-6, target = 0;
  test_ok(choir_model_get_route_stats(model, s->moe, &counted)); /* counted by other code */
  assert_true(counted.moe == s->moe && counted.layer == s->layer);
  for (int k = 0; k <= s->experts; k++) {
    tokens += s->histogram[k];
    slots += k * s->histogram[k];
    assert_int_equal(s->histogram[k], counted.histogram[k]);
  }
  for (int i = 0; i < s->experts; i++) {
    assert_int_equal(s->load[i], counted.load[i]);
    assert_int_equal(s->demand[i], counted.demand[i]);
    assert_int_equal(s->shared[i * s->experts + i], s->load[i]);
    for (int j = 0; j < i; j++) {
      assert_int_equal(s->shared[i * s->experts + j], s->shared[j * s->experts + i]);
      assert_true(s->shared[i * s->experts + j] <= s->load[i]);
    }
    int64_t held = 0;
    for (int v = 0; v < s->vocab_size; v++) held += s->held[i * s->vocab_size + v];
    assert_int_equal(held, s->load[i]);
    target += s->target;
  }
  assert_int_equal(tokens, s->tokens);
  assert_int_equal(slots, s->assignments);
  near(s->gate_mass, counted.gate_mass, "gate mass");
  near(s->aux_loss, counted.aux_loss, "auxiliary loss");
  assert_true(s->tokens == counted.tokens && s->assignments == counted.assignments);
  assert_true(s->dropped == counted.dropped && s->capacity == counted.capacity);
  assert_memory_equal(&s->certificate, &counted.certificate, sizeof s->certificate);
  check_json(s);
  if (!isnan(s->token_entropy)) assert_true(s->token_entropy >= 0 && s->token_entropy <= max);
  assert_true(s->load_entropy >= 0 && s->load_entropy <= max);
  assert_true(target > 0);
  choir_route_stats_clear(&counted);
}

/* Every router, in a model of two MoE layers; nobody is shown anything after looking has ended. */
static void every_router(void **state) {
  enum { B = 4, T = 16, VOCABULARY = 50 };
  int32_t tokens[B * T];
  for (int i = 0; i < B * T; i++)
    tokens[i] = (int32_t)ch_rng_below(ch_rng_make(6, CH_STREAM_TEST, 2), (uint64_t)i, VOCABULARY);
  for (const char *const *name = choir_router_names(); *name; name++) {
    choir_config c;
    choir_model *model;
    choir_forward_result result;
    inspection all = {0};
    ch_config_default(&c);
    c.model.vocab_size = VOCABULARY, c.model.layers = 4, c.model.d_model = 16, c.model.d_hidden = 8;
    c.model.heads = 2, c.model.experts = !strcmp(*name, "dense") ? 1 : 4, c.model.moe_every = 2;
    c.train.sequence_length = T, c.train.batch_sequences = B;
    c.model.router = test_router(*name);
    test_ok(choir_model_create(&c, 3, NULL, &model));
    for (int l = 0; l < 2; l++) test_ok(choir_route_stats_init(c.model.experts, VOCABULARY, &all.stats[l]));
    choir_model_on_routing(model, look, &all);
    test_ok(choir_model_forward(model, B, T, tokens, NULL, 0, &result));
    assert_int_equal(all.calls, 2);
    for (int l = 0; l < 2; l++) {
      assert_int_equal(all.stats[l].layer, 2 * l + 1);
      assert_int_equal(all.stats[l].tokens, B * T);
      check_laws(model, &all.stats[l]);
    }
    choir_model_on_routing(model, NULL, NULL);
    test_ok(choir_model_forward(model, B, T, tokens, NULL, 1, &result));
    assert_int_equal(all.calls, 2);
    for (int l = 0; l < 2; l++) choir_route_stats_clear(&all.stats[l]);
    choir_model_free(model);
  }
}

/* The fullest device of 8, 16 and 32, whose experts stand together, by hand. */
static void fullest_devices(void **state) {
  int64_t load[2][32] = {{0}}, none[33] = {0};
  choir_route_stats layer[2];
  for (int i = 0; i < 32; i++) load[0][i] = 1, load[1][i] = i == 5 ? 33 : 1;
  for (int i = 0; i < 2; i++)
    layer[i] = (choir_route_stats){
        .experts = 32, .tokens = 32, .assignments = i ? 64 : 32, .load = load[i], .demand = load[i], .histogram = none};
  const ch_route_summary s = ch_route_stats_summary(layer, 2);
  near(s.fullest[0], (1 + 36 * 8 / 64.) / 2, "the fullest of 8 devices");
  near(s.fullest[1], (1 + 34 * 16 / 64.) / 2, "the fullest of 16 devices");
  near(s.fullest[2], (1 + 33 * 32 / 64.) / 2, "the fullest of 32 devices");
}

/* What a step says of all its layers, by hand: sums over them, and the busiest of any. */
static void summary_of_layers(void **state) {
  int64_t load[2][2] = {{6, 2}, {4, 4}}, demand[2][2] = {{9, 2}, {4, 4}}, histogram[2][3] = {{1, 6, 1}, {0, 8, 0}};
  choir_route_stats layer[2];
  for (int i = 0; i < 2; i++)
    layer[i] = (choir_route_stats){.experts = 2,
                                   .tokens = 8,
                                   .capacity = 6,
                                   .assignments = 8,
                                   .dropped = i ? 0 : 3,
                                   .load = load[i],
                                   .demand = demand[i],
                                   .histogram = histogram[i]};
  const ch_route_summary s = ch_route_stats_summary(layer, 2);
  near(s.imbalance, 1.5, "imbalance");
  near(s.fullest[0], 1, "the fullest of 8 devices, which 2 experts are none for");
  near(s.demand_imbalance, 18.0 / 11, "imbalance of the demand");
  near(s.dropped, 3.0 / 19, "dropped");
  near(s.unrouted, 1.0 / 16, "unrouted");
  near(s.fill, 16.0 / 24, "fill");
  near(s.slots, 1, "slots");
}

TEST_MAIN(NULL, NULL, fullest_devices, summary_of_layers, against_naive_counts, favourites, extremes, every_router)
