/* One run looked at closely: losses in pools of several sizes and mixtures, and which tokens get how many experts. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "choir/train.h"
#include "file/checkpoints.h"
#include "file/json.h"
#include "model/weights.h"
#include "study/study.h"

enum { SEQUENCES = 1024, FAVOURITES = 24, OFTEN = 40 }; /* windows evaluated; tokens shown; times a token must stand */

void ch_study_measure_path(const ch_study *s, const char *run, char *path) {
  snprintf(path, PATH_MAX, "%.3000s/runs/%s/measures.json", s->directory, run);
}

json_t *ch_study_measures_read(const ch_study *s, const char *run) {
  char path[PATH_MAX];
  json_t *root;
  ch_study_measure_path(s, run, path);
  if (access(path, R_OK) || ch_json_load(path, &root)) return NULL;
  if (!ch_study_check_measures(path, root) && json_integer_value(json_object_get(root, "step")) == s->steps)
    return root;
  json_decref(root);
  return NULL;
}

/* ---- which tokens ---- */

typedef struct counts {
  int vocab;
  int64_t *seen, *experts, *none; /* [V] over all MoE layers */
} counts;

static void count(void *context, const choir_routing *r) {
  const counts *c = context;
  for (int t = 0; r->token && t < r->tokens; t++) {
    if (r->valid && !r->valid[t]) continue;
    int id = r->token[t], held = r->token_begin[t + 1] - r->token_begin[t];
    c->seen[id]++;
    c->experts[id] += held;
    c->none[id] += !held;
  }
}

/* What a piece is; it may begin with the space in front of a word. */
static const char *kind_of(const char *piece) {
  const char mark[] = "\xE2\x96\x81";
  int spaced = piece[0] == ' ' ? 1 : strncmp(piece, mark, 3) ? 0 : 3;
  const unsigned char *at = (const unsigned char *)piece + spaced;
  if (!strcmp(piece, "</s>")) return "end of a document";
  if (!strncmp(piece, "<0x", 3)) return "line end or other byte";
  if (!*at) return "space";
  if (isdigit(*at)) return "number";
  if (*at < 128 && ispunct(*at)) return "punctuation";
  if (!isalpha(*at)) return "other characters";
  if (!spaced) return "inside a word";
  return isupper(*at) ? "word with a capital" : "word";
}

typedef struct kind {
  const char *name;
  int64_t seen, experts, none;
} kind;

static void add_kind(kind *kinds, int most, const char *name, const counts *c, int id) {
  for (int i = 0; i < most; i++) {
    if (kinds[i].name && strcmp(kinds[i].name, name)) continue;
    kinds[i].name = name;
    kinds[i].seen += c->seen[id], kinds[i].experts += c->experts[id], kinds[i].none += c->none[id];
    return;
  }
}

static json_t *share_json(const char *name, int64_t seen, int64_t experts, int64_t none) {
  return json_pack("{s:s, s:I, s:f, s:f}", "name", name, "tokens", (json_int_t)seen, "experts",
                   (double)experts / (double)seen, "none", (double)none / (double)seen);
}

static int by_experts(const void *a, const void *b, void *context) {
  const counts *c = context;
  int i = *(const int *)a, j = *(const int *)b;
  double x = (double)c->experts[i] / (double)c->seen[i], y = (double)c->experts[j] / (double)c->seen[j];
  return x != y ? (x < y) - (x > y) : i - j;
}

static int by_frequency(const void *a, const void *b, void *context) {
  const counts *c = context;
  int i = *(const int *)a, j = *(const int *)b;
  return c->seen[i] != c->seen[j] ? (c->seen[i] < c->seen[j]) - (c->seen[i] > c->seen[j]) : i - j;
}

static json_t *token_json(const choir_tokenizer *tokenizer, const counts *c, int id) {
  json_t *row = share_json("", c->seen[id], c->experts[id], c->none[id]);
  json_t *piece = json_string(choir_tokenizer_piece(tokenizer, id));
  ch_json_put(row, "name", piece ? piece : json_string("?"));
  return row;
}

/* Tokens by what they are, by how frequent they are, and those with the most and the fewest experts. */
static json_t *tokens_json(const choir_tokenizer *tokenizer, counts *c, int *order) {
  static const int bands[] = {0, 10, 100, 1000, 1 << 30};
  static const char *const band_names[] = {"the 10 most frequent", "the next 90", "the next 900", "all others"};
  kind kinds[12] = {0};
  json_t *by_kind = json_array(), *by_band = json_array(), *most = json_array(), *fewest = json_array();
  int present = 0, often = 0;
  for (int id = 0; id < c->vocab; id++)
    if (c->seen[id]) order[present++] = id, add_kind(kinds, 12, kind_of(choir_tokenizer_piece(tokenizer, id)), c, id);
  for (int i = 0; i < 12 && kinds[i].name; i++)
    ch_json_add(by_kind, share_json(kinds[i].name, kinds[i].seen, kinds[i].experts, kinds[i].none));
  qsort_r(order, (size_t)present, sizeof *order, by_frequency, c);
  for (int band = 0; band < 4; band++) {
    kind sum = {0};
    for (int i = bands[band]; i < bands[band + 1] && i < present; i++)
      sum.seen += c->seen[order[i]], sum.experts += c->experts[order[i]], sum.none += c->none[order[i]];
    if (sum.seen) ch_json_add(by_band, share_json(band_names[band], sum.seen, sum.experts, sum.none));
  }
  while (often < present && c->seen[order[often]] >= OFTEN) often++;
  qsort_r(order, (size_t)often, sizeof *order, by_experts, c);
  for (int i = 0; i < FAVOURITES && i < often; i++) {
    ch_json_add(most, token_json(tokenizer, c, order[i]));
    ch_json_add(fewest, token_json(tokenizer, c, order[often - 1 - i]));
  }
  return json_pack("{s:o, s:o, s:o, s:o}", "kinds", by_kind, "frequency", by_band, "most", most, "fewest", fewest);
}

/* ---- losses ---- */

typedef struct measuring {
  const choir_study_measure_options *options;
  choir_model *model;
  choir_tokenizer *tokenizer;
  int length; /* T */
  json_t *out;
} measuring;

/* Loss by a routing in pools of `batch` sequences, as an object. NULL: an error was set. */
static json_t *evaluate(const measuring *m, const char *routing, int batch, int scattered) {
  choir_eval_result r;
  choir_eval_options options = {.data = m->options->data,
                                .sequences = m->options->sequences ? m->options->sequences : SEQUENCES,
                                .batch_sequences = batch,
                                .in_order = !scattered};
  if (choir_model_set_routing(m->model, routing) || choir_eval(m->model, m->tokenizer, &options, &r)) return NULL;
  return json_pack("{s:s, s:I, s:b, s:f, s:f, s:I, s:b}", "routing", r.routing, "pool",
                   (json_int_t)batch * (json_int_t)m->length, "scattered", scattered, "loss", r.loss, "bits_per_byte",
                   r.bits_per_byte, "tokens", (json_int_t)r.tokens, "looks_across_tokens", r.looks_across_tokens);
}

static int add(json_t *array, json_t *row) {
  if (row) ch_json_add(array, row);
  return row ? CHOIR_OK : CHOIR_ERROR_FORMAT;
}

/* Pools of about 512 to 32,768 tokens, but of no more than were evaluated: a smaller pool would stand under the name of
 * a larger one. Each row has the causal loss of the same sequences beside its own. */
static int add_pools(const measuring *m, json_t *pools, int scattered) {
  json_t *causal = evaluate(m, "threshold", choir_model_config_of(m->model)->train.batch_sequences, scattered);
  int code = causal ? CHOIR_OK : CHOIR_ERROR_FORMAT;
  json_int_t evaluated = json_integer_value(json_object_get(causal, "tokens"));
  for (int tokens = 512; tokens <= 32768 && !code; tokens *= 4) {
    int batch = tokens / m->length;
    if (batch < 1 || (json_int_t)batch * m->length > evaluated) continue;
    json_t *row = evaluate(m, "batch", batch, scattered);
    if (row) ch_json_share(row, "causal", json_object_get(causal, "loss"));
    code = add(pools, row);
  }
  json_decref(causal);
  return code;
}

/* Its own routing and batch size, with the tokens counted. */
static int add_own(const measuring *m, const char *routing, const char *name) {
  counts c = {.vocab = choir_model_config_of(m->model)->model.vocab_size};
  c.seen = calloc(3 * (size_t)c.vocab, sizeof *c.seen);
  int *order = calloc((size_t)c.vocab, sizeof *order);
  c.experts = c.seen + c.vocab, c.none = c.seen + 2 * (size_t)c.vocab;
  json_t *row = NULL;
  if (c.seen && order) {
    choir_model_on_routing(m->model, count, &c);
    row = evaluate(m, routing, choir_model_config_of(m->model)->train.batch_sequences, 1);
    choir_model_on_routing(m->model, NULL, NULL);
  }
  if (row) ch_json_put(row, "counted", tokens_json(m->tokenizer, &c, order));
  free(c.seen);
  free(order);
  if (!row) return CHOIR_ERROR_MEMORY;
  ch_json_put(m->out, name, row);
  return CHOIR_OK;
}

static int measure(measuring *m) {
  json_t *pools = json_array();
  ch_json_put(m->out, "pools", pools);
  CH_TRY(add_own(m, NULL, "own"));
  if (!choir_model_looks_across_tokens(m->model)) return CHOIR_OK;
  CH_TRY(add_own(m, "threshold", "causal"));
  for (int scattered = 0; scattered < 2; scattered++) CH_TRY(add_pools(m, pools, scattered));
  return CHOIR_OK;
}

int choir_study_measure(const choir_study_measure_options *options) {
  char checkpoint[PATH_MAX] = "", path[PATH_MAX + 32];
  int64_t step = ch_checkpoint_newest_step(options->run);
  if (step < 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: has no checkpoint", options->run);
  ch_checkpoint_path(options->run, step, checkpoint);
  choir_run_options run = CHOIR_RUN_OPTIONS_INIT;
  run.threads = options->threads;
  measuring m = {.options = options, .out = json_pack("{s:I}", "step", (json_int_t)step)};
  snprintf(path, sizeof path, "%s/tokenizer.model", checkpoint);
  int code = choir_tokenizer_load(path, &m.tokenizer);
  if (!code) code = choir_model_load(checkpoint, &run, &m.model);
  if (!code) {
    m.length = choir_model_config_of(m.model)->train.sequence_length;
    code = measure(&m);
  }
  choir_model_free(m.model);
  choir_tokenizer_free(m.tokenizer);
  if (!code) return ch_json_save(m.out, options->out);
  json_decref(m.out);
  return code;
}
