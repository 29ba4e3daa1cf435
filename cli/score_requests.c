/* choir score --requests: log-likelihoods of continuations. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* The parsed line of a request, which owns its texts, and its tokens if given; NULL: not given. */
typedef struct {
  json_t *line;
  int32_t *tokens[2];
} given;

/* Requests in the order of the file. */
typedef struct {
  const char *path;
  ch_buffer request, given; /* arrays of choir_score_request and `given` */
  int64_t count;
} requests_work;

static given *given_of(const requests_work *w, int64_t i) { return (given *)(void *)w->given.data + i; }

static int refuse_line(const requests_work *w, int64_t line, const char *what) {
  return cli_fail_with("%s: line %lld: %s", w->path, (long long)line, what);
}

/* Reads token ids; the library checks that they are in the vocabulary. */
static int read_tokens(const requests_work *w, int64_t line, const json_t *array, int32_t **tokens, choir_prompt *to) {
  size_t count = json_array_size(array), i;
  const json_t *id;
  if (!json_is_array(array)) return refuse_line(w, line, "tokens must be an array of integers");
  *tokens = calloc(count + 1, sizeof **tokens);
  if (!*tokens || count > INT32_MAX) return refuse_line(w, line, "out of memory");
  json_array_foreach(array, i, id) {
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
      return refuse_line(w, line, "tokens must be an array of integers that are not negative");
    (*tokens)[i] = (int32_t)value;
  }
  *to = (choir_prompt){.tokens = *tokens, .count = (int)count};
  return 0;
}

/* Reads "NAME" as text or "NAME_tokens" as ids, where NAME is `name`: context or continuation. */
static int read_side(const requests_work *w, int64_t line, const json_t *object, const char *name, int32_t **tokens,
                     choir_prompt *to) {
  char other[32];
  snprintf(other, sizeof other, "%s_tokens", name);
  const json_t *text = json_object_get(object, name), *ids = json_object_get(object, other);
  if (text && ids) return refuse_line(w, line, "a text and its tokens too: give one of them");
  if (ids) return read_tokens(w, line, ids, tokens, to);
  if (text && !json_is_string(text)) return refuse_line(w, line, "context and continuation must be texts");
  *to = (choir_prompt){.text = text ? json_string_value(text) : "", .size = json_string_length(text)};
  return 0;
}

static int check_keys(const requests_work *w, int64_t line, json_t *object) {
  static const char *const known[] = {"id", "context", "continuation", "context_tokens", "continuation_tokens"};
  enum { KNOWN = sizeof known / sizeof *known };
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    int i = 0;
    while (i < KNOWN && strcmp(key, known[i])) i++;
    if (i == KNOWN)
      return cli_fail_with(
          "%s: line %lld: unknown key \"%.80s\"; knows id, context, continuation, context_tokens and "
          "continuation_tokens",
          w->path, (long long)line, key);
  }
  return 0;
}

static int add_request(requests_work *w, int64_t number, const ch_value *text) {
  choir_score_request request = {0};
  given line = {0};
  int status = cli_json_read(w->path, number, text, &line.line);
  if (!line.line) return status;
  if (ch_buffer_append(&w->given, &line, sizeof line)) return json_decref(line.line), cli_fail();
  given *g = given_of(w, w->count++);
  status = check_keys(w, number, g->line);
  if (!status) status = read_side(w, number, g->line, "context", &g->tokens[0], &request.context);
  if (!status) status = read_side(w, number, g->line, "continuation", &g->tokens[1], &request.continuation);
  if (!status && ch_buffer_append(&w->request, &request, sizeof request)) status = cli_fail();
  return status;
}

static int read_requests(requests_work *w) {
  size_t size;
  int status = 0;
  char *text = cli_read_file(w->path, &size);
  if (!text) return CLI_FAILED;
  ch_lines lines = {text, text + size, 0};
  ch_value line;
  while (!status && ch_lines_next(&lines, &line)) status = add_request(w, lines.number, &line);
  free(text);
  return status ? status : w->count ? 0 : cli_fail_with("%s: no requests", w->path);
}

/* Prints a score. For models that are trained by masking the fields have other names, since these scores are not
 * log-likelihoods. */
static int print_score(const requests_work *w, const choir_tokenizer *tokenizer, int64_t i,
                       const choir_score_result *result, int tokens) {
  const choir_scored *s = &result->score[i];
  json_t *given = json_object_get(given_of(w, i)->line, "id"), *object = json_object();
  json_object_set_new(object, "id", given ? json_incref(given) : json_integer(i + 1));
  json_object_set_new(object, result->measure, json_real(s->log_likelihood));
  if (s->greedy >= 0) json_object_set_new(object, "greedy", json_boolean(s->greedy));
  if (result->mask_samples) {
    json_object_set_new(object, "standard_error", cli_json_real(s->standard_error));
    json_object_set_new(object, "mask_samples", json_integer(s->count > 1 ? result->mask_samples : 1));
  }
  json_object_set_new(object, "tokens", json_integer(s->count));
  json_t *ids = json_array(), *pieces = json_array(), *values = json_array();
  for (int t = 0; t < s->count && tokens; t++) {
    json_array_append_new(ids, json_integer(s->tokens[t]));
    json_array_append_new(pieces, json_string(choir_tokenizer_piece(tokenizer, s->tokens[t])));
    json_array_append_new(values, json_real((double)s->log_probability[t]));
  }
  if (tokens) {
    json_object_set(object, "token_ids", ids);
    json_object_set(object, "pieces", pieces);
    json_object_set(object, result->mask_samples ? "shares" : "log_probabilities", values);
  }
  json_decref(ids), json_decref(pieces), json_decref(values);
  return cli_json_line(object);
}

static int score_requests(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer,
                          requests_work *w) {
  choir_score_result result;
  cli_progress progress;
  choir_score_options *options = &o->scoring;
  options->progress = cli_progress_count;
  options->context = &progress;
  int status = 0;
  cli_progress_begin(&progress, stderr);
  int masked = cli_predicts_masked(model);
  int code = masked ? CHOIR_OK : choir_model_check_causal(model); /* the routing that --routing requests */
  if (!code) code = choir_score(model, tokenizer, (void *)w->request.data, w->count, options, &result);
  cli_progress_clear(&progress);
  if (code) return cli_fail();
  for (int64_t i = 0; i < w->count && !status; i++) status = print_score(w, tokenizer, i, &result, o->tokens);
  fprintf(stderr, "%s request%s: %s tokens through the model, %s tokens/s\n", cli_grouped(result.count),
          result.count == 1 ? "" : "s", cli_grouped(result.tokens),
          cli_count(result.seconds > 0 ? (double)result.tokens / result.seconds : 0));
  if (masked)
    fprintf(stderr, "scores are %s, which do not compare with those of a model that predicts the next token\n",
            result.mask_samples ? "lower bounds of log-likelihoods" : "pseudo-log-likelihoods");
  choir_score_result_clear(&result);
  return status;
}

int cli_score_requests(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer) {
  requests_work w = {.path = o->requests};
  int status = read_requests(&w);
  if (!status) status = score_requests(o, model, tokenizer, &w);
  for (int64_t i = 0; i < w.count; i++) {
    json_decref(given_of(&w, i)->line);
    for (int side = 0; side < 2; side++) free(given_of(&w, i)->tokens[side]);
  }
  free(w.request.data), free(w.given.data);
  return status;
}
