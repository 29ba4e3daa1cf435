/* choir route: applies any router to any matrix of scores. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "npy/npy.h"

static struct {
  const char *router, *tokens, *valid, *pool, *thresholds, *out;
  double capacity_factor;
  int random_second, json;
  cli_list set;
} o;
static choir_route_request request;

/* Reads an optional array that belongs to the scores, with one entry for each of their n rows or columns; NULL path:
 * leaves it empty. */
static int read_optional(const char *path, ch_npy_type type, int64_t n, const char *of, ch_npy *array) {
  *array = (ch_npy){0};
  if (!path) return 0;
  if (type == CH_NPY_FLOAT32 ? ch_npy_read_table(path, 1, array) : ch_npy_read(path, type, 1, array)) return cli_fail();
  if (array->shape[0] == n) return 0;
  return cli_fail_with("%s: has %lld entries, the scores have %lld %s", path, (long long)array->shape[0], (long long)n,
                       of);
}

/* The properties of the config's routing; a router without pools only has the routing "batch". */
static choir_routing_properties properties(const choir_config *config) {
  choir_routing_properties p = {0};
  if (choir_router_get_properties(o.router, cli_field(config, "router.pool"), &p))
    choir_router_get_properties(o.router, "batch", &p);
  return p;
}

/* Nonzero if a token's experts depend on other tokens in this routing. */
static int looks(const choir_config *config) {
  return !o.thresholds && choir_router_looks_across_tokens(config, request.training);
}

/* The result of a routing. */
typedef struct result {
  float *gates; /* [n,e] */
  choir_route_stats stats;
  json_t *tokens_of; /* for each expert its assigned tokens */
} result;

static void keep(void *context, const choir_routing *r) {
  result *to = context;
  choir_route_stats_count(&to->stats, r);
  to->tokens_of = json_array();
  for (int i = 0; i < r->experts; i++) {
    json_t *tokens = json_array();
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++) {
      json_array_append_new(tokens, json_integer(r->slot_token[s]));
      to->gates[(int64_t)r->slot_token[s] * r->experts + i] = r->slot_gate[s];
    }
    json_array_append_new(to->tokens_of, tokens);
  }
}

/* Prints the assignment of the first experts and tokens, as a table to check by eye. */
static int print_tokens_of(const result *r, int n) {
  enum { EXPERTS = 16, TOKENS = 12 };
  char heads[80];
  cli_table table;
  snprintf(heads, sizeof heads, "expert>|cut-off>|chosen tokens (0 to %d), each with its gate", n - 1);
  cli_table_begin(&table, 2, heads);
  for (int i = 0; i < r->stats.experts && i < EXPERTS; i++) {
    const json_t *tokens = json_array_get(r->tokens_of, (size_t)i);
    char list[TOKENS * 40 + 40];
    size_t used = 0;
    for (size_t k = 0; k < json_array_size(tokens) && k < TOKENS; k++) {
      int token = (int)json_integer_value(json_array_get(tokens, k));
      used += (size_t)snprintf(list + used, sizeof list - used, "%s%d" CLI_TIE "(%.4f)", k ? " " : "", token,
                               r->gates[(int64_t)token * r->stats.experts + i]);
    }
    if (json_array_size(tokens) > TOKENS)
      snprintf(list + used, sizeof list - used, " and %zu more", json_array_size(tokens) - TOKENS);
    cli_cell(&table, "%d", i);
    if (isfinite(r->stats.cutoff[i]))
      cli_cell(&table, "%.4f", r->stats.cutoff[i]);
    else
      cli_cell(&table, "-");
    cli_cell(&table, "%s", json_array_size(tokens) ? list : "none");
  }
  int status = cli_table_end(&table);
  if (r->stats.experts > EXPERTS) printf("  ... of %d experts; --json has all\n", r->stats.experts);
  return status;
}

static int print_json(const choir_config *config, result *r) {
  json_t *root = cli_json_stats(&r->stats), *cutoffs = json_array();
  for (int i = 0; i < r->stats.experts; i++) json_array_append_new(cutoffs, cli_json_real(r->stats.cutoff[i]));
  json_object_set_new(root, "router", json_string(o.router));
  json_object_set_new(root, "looks_across_tokens", json_boolean(looks(config)));
  json_object_set_new(root, "cutoffs", cutoffs);
  json_object_set(root, "taken", r->tokens_of);
  return cli_json_print(root);
}

static int print_result(const choir_config *config, int n, result *r) {
  const choir_route_stats *s = &r->stats;
  if (o.json) return print_json(config, r);
  cli_print(2, "%s: %lld of %d tokens to %d experts, capacity %lld; %s", o.router, (long long)s->tokens, n, s->experts,
            (long long)s->capacity, looks(config) ? "not causal: compares tokens" : "causal: each token by itself");
  cli_print(4, "  assignments %s, dropped %s, gate mass %.4f per token, auxiliary loss %.6f",
            cli_grouped(s->assignments), cli_grouped(s->dropped), s->gate_mass, s->aux_loss);
  cli_print_load("  ", s);
  cli_print_certificate(&s->certificate);
  int status = print_tokens_of(r, n);
  cli_print_histogram(s);
  return status;
}

/* Adds the file name to the library's error, which names a value by array and position. */
static int refuse_scores(const char *scores_path) {
  const struct {
    const char *array, *path;
  } files[] = {{"scores[", scores_path}, {"thresholds[", o.thresholds}, {"tokens[", o.tokens}};
  const char *message = choir_error_message();
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path && !strncmp(message, files[i].array, strlen(files[i].array)))
      return cli_fail_with("%s: %s", files[i].path, message);
  return cli_fail();
}

static int route_scores(const choir_config *config, const char *path, const ch_npy *scores, const ch_npy *tokens,
                        const ch_npy *valid, const ch_npy *thresholds) {
  int n = (int)scores->shape[0], e = (int)scores->shape[1];
  result r = {.gates = calloc((size_t)n * (size_t)e + 1, sizeof *r.gates)};
  if (!r.gates) return cli_fail_with("out of memory");
  request.config = config;
  request.n = n;
  request.e = e;
  request.scores = scores->data;
  request.tokens = tokens->data;
  request.valid = valid->data;
  request.thresholds = thresholds->data;
  int status = choir_route_stats_init(e, 0, &r.stats) ? cli_fail() : 0;
  if (!status && choir_route_visit(&request, keep, &r)) status = refuse_scores(path);
  ch_npy array = {.type = CH_NPY_FLOAT32, .dims = 2, .shape = {n, e}, .data = r.gates};
  if (!status && o.out && ch_npy_write(o.out, &array)) status = cli_fail();
  if (!status) status = print_result(config, n, &r);
  json_decref(r.tokens_of);
  choir_route_stats_clear(&r.stats);
  free(r.gates);
  return status;
}

/* Refuses flags that have no effect. */
static int check_flags(const choir_config *config) {
  const struct {
    const char *name;
    int given;
  } flags[] = {{"training", request.training}, {"capacity-factor", o.capacity_factor != -1},
               {"pool", o.pool != NULL},       {"length", request.sequence_length != 0},
               {"tokens", o.tokens != NULL},   {"seed", request.seed != 0}};
  for (size_t i = 0; o.thresholds && i < sizeof flags / sizeof *flags; i++)
    if (flags[i].given) return cli_usage("--%s has no effect with --thresholds", flags[i].name);
  const choir_routing_properties p = properties(config);
  int draws = request.training && (cli_count_of(config, "router.random_second") || p.draws);
  if (o.random_second && !request.training) return cli_usage("--random-second has no effect without --training");
  if (o.tokens && !p.reads_ids) return cli_usage("--tokens has no effect with --router %s", o.router);
  if (request.seed && !draws)
    return cli_usage(
        "--seed has no effect: nothing is sampled here; random samples, and gshard_top2 with --random-second, both "
        "with --training");
  int starts = choir_config_number(config, "router.capacity_start") != 0;
  const char *pool = cli_field(config, "router.pool");
  if (strcmp(cli_field(config, "router.capacity_schedule"), "constant") || starts)
    return cli_usage(
        "router.%s has no effect here: it depends on %s, which a matrix does not have; set capacity_factor",
        starts ? "capacity_start" : "capacity_schedule",
        starts ? "the steps of training" : "the masked tokens of a sequence");
  if (!strcmp(cli_field(config, "router.gate_on"), "input"))
    return cli_usage(
        "router.gate_on has no effect here: without a model there are no experts, whose input it would scale");
  if (request.sequence_length && strcmp(pool, "sequence") && strcmp(pool, "position"))
    return cli_usage("--length has an effect only with --pool sequence or position");
  return 0;
}

/* Makes the config of the router from the options; returns an exit status. */
static int make_config(choir_config *config) {
  char factor[32];
  if (choir_config_set(config, "router.name", o.router)) return cli_fail();
  int status = cli_apply_router_settings(config, &o.set);
  if (status) return status;
  snprintf(factor, sizeof factor, "%.17g", o.capacity_factor);
  if (o.capacity_factor != -1 && choir_config_set(config, "router.capacity_factor", factor)) return cli_fail();
  if (o.pool && choir_config_set(config, "router.pool", o.pool)) return cli_fail();
  if (o.random_second && choir_config_set(config, "router.random_second", "true")) return cli_fail();
  return check_flags(config);
}

static int route_files(const choir_config *config, const char *path) {
  ch_npy scores, tokens = {0}, valid = {0}, thresholds = {0};
  if (ch_npy_read_table(path, 2, &scores)) return cli_fail();
  int status = read_optional(o.tokens, CH_NPY_INT32, scores.shape[0], "rows", &tokens);
  if (!status) status = read_optional(o.valid, CH_NPY_UINT8, scores.shape[0], "rows", &valid);
  if (!status) status = read_optional(o.thresholds, CH_NPY_FLOAT32, scores.shape[1], "columns", &thresholds);
  if (!status) status = route_scores(config, path, &scores, &tokens, &valid, &thresholds);
  ch_npy_free(&scores);
  ch_npy_free(&tokens);
  ch_npy_free(&valid);
  ch_npy_free(&thresholds);
  return status;
}

static int run_route(int count, const char *const *operands) {
  choir_config *config;
  if (choir_config_create(&config)) return cli_fail();
  int status = make_config(config);
  if (!status) status = route_files(config, operands[0]);
  choir_config_free(config);
  return status;
}

static const cli_option options[] = {
    {"router", "NAME", CLI_TEXT, &o.router, NULL, "name of the router ('choir help routers' lists them)", 1},
    {"capacity-factor", "C", CLI_REAL, &o.capacity_factor, "-1",
     "mean number of experts per token; -1: the router's default", 0},
    {"set", "KEY=VALUE", CLI_LIST, &o.set, NULL, "set another option of the router, such as router.cap=3", 0},
    {"logits", NULL, CLI_FLAG, &request.is_logits, NULL,
     "the matrix holds logits; option router.score selects how they become scores", 0},
    {"tokens", "T.npy", CLI_INPUT, &o.tokens, NULL, "token ids, int32 [n]; required by hash and random", 0},
    {"valid", "V.npy", CLI_INPUT, &o.valid, NULL, "uint8 [n]: 0 marks padding, which is not routed", 0},
    {"pool", "batch|sequence|position|group", CLI_CHOICE, &o.pool, NULL,
     "the tokens that compete for an expert; group: router.group_size tokens", 0},
    {"length", "T", CLI_INT, &request.sequence_length, NULL, "tokens per sequence, for pools sequence and position", 0},
    {"thresholds", "B", CLI_INPUT, &o.thresholds, NULL,
     "float32 [e]: assign to each expert all tokens whose score reaches its threshold, whatever the pool", 0},
    {"training", NULL, CLI_FLAG, &request.training, NULL, "route as in training, with sampling", 0},
    {"random-second", NULL, CLI_FLAG, &o.random_second, NULL,
     "gshard_top2 samples its second expert; requires --training", 0},
    {"seed", "S", CLI_INT64, &request.seed, "0", "random seed for sampling", 0},
    {"out", "GATES.npy", CLI_OUTPUT, &o.out, NULL,
     "write the gates, float32 [n,e]: 0 where a token is not assigned to an expert", 0},
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print the statistics as JSON", 0},
    {0}};

CLI_VERB(route, "route", "SCORES", 1, 1, "route a matrix of scores, without a model",
         "SCORES is a matrix [n,e] with a row for each token: a .npy file, or text with a row per line and commas, "
         "tabs or spaces between numbers. Prints which tokens each expert processes.");
