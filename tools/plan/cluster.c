#include "plan/cluster.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "comm/collective.h"
#include "file/json.h"

static const double assumed_share = 0.6; /* about what products of a training step reach in docs/performance.md */

static const char *const share_names[CH_FLOPS_PARTS + 1] = {"attention", "dense", "router", "experts", "head", NULL};

/* An object being read, and the beginning of messages about it. */
typedef struct {
  const json_t *object;
  const char *where;
} text_place;

/* Reads a number, or `fallback` if the file does not have it. */
static int number(text_place at, const char *key, double low, double high, double fallback, double *value) {
  *value = fallback;
  return json_object_get(at.object, key) ? ch_json_get_number(at.object, at.where, key, low, high, value) : CHOIR_OK;
}

static int text(text_place at, const char *key, size_t size, char *to) {
  const char *value;
  if (!json_object_get(at.object, key)) return CHOIR_OK;
  CH_TRY(ch_json_get_string(at.object, at.where, key, &value));
  if (strlen(value) >= size)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" has %zu bytes: at most %zu", at.where, key, strlen(value),
                    size - 1);
  strcpy(to, value);
  return CHOIR_OK;
}

/* ---- levels ---- */

static int read_torus(text_place at, int units, ch_level *l) {
  json_t *dims, *dim;
  size_t i;
  int64_t product = 1;
  CH_TRY(ch_json_get_array(at.object, at.where, "dimensions", &dims));
  if (json_array_size(dims) < 1 || json_array_size(dims) > CH_TORUS_DIMS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"dimensions\" has %zu numbers: must be 1 to %d", at.where,
                    json_array_size(dims), CH_TORUS_DIMS);
  json_array_foreach(dims, i, dim) {
    if (!json_is_integer(dim) || json_integer_value(dim) < 1 || json_integer_value(dim) > CH_RANKS)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"dimensions\"[%zu] must be an integer from 1 to %d", at.where, i,
                      CH_RANKS);
    l->dim[l->dims++] = (int)json_integer_value(dim);
    product *= json_integer_value(dim);
  }
  if (product == units) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: \"dimensions\" make %lld places for %d units below this level", at.where,
                  (long long)product, units);
}

/* Reads the fields of one topology. */
static int read_topology(text_place at, int units, ch_level *l) {
  static const char *const topologies[] = {[CH_FLAT] = "flat", [CH_FAT_TREE] = "fat_tree", [CH_TORUS] = "torus", NULL};
  char word[16] = "flat", known[64];
  int t = 0;
  CH_TRY(text(at, "topology", sizeof word, word));
  while (topologies[t] && strcmp(topologies[t], word)) t++;
  if (!topologies[t])
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"topology\" is \"%s\": must be one of: %s", at.where, word,
                    ch_word_list(known, sizeof known, topologies));
  l->topology = (ch_topology)t;
  if (t != CH_FAT_TREE && json_object_get(at.object, "oversubscription"))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"oversubscription\" belongs to a fat_tree, and this is \"%s\"", at.where,
                    word);
  if (t != CH_TORUS && json_object_get(at.object, "dimensions"))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"dimensions\" belong to a torus, and this is \"%s\"", at.where, word);
  CH_TRY(number(at, "oversubscription", 1, 1000, 1, &l->oversubscription));
  return t == CH_TORUS ? read_torus(at, units, l) : CHOIR_OK;
}

static int read_level(text_place at, const ch_cluster *c, int below, ch_level *l) {
  static const char *const keys[] = {
      "name", "ranks", "bandwidth_gbs", "latency_us", "oversubscription", "topology", "dimensions", NULL};
  const char *name;
  int64_t ranks;
  double gbs, us;
  CH_TRY(ch_json_check_keys(at.object, at.where, keys));
  CH_TRY(ch_json_get_string(at.object, at.where, "name", &name));
  CH_TRY(text(at, "name", sizeof l->name, l->name));
  for (const ch_level *other = c->level; other < l; other++)
    if (!strcmp(other->name, name))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"name\" is \"%s\", as that of another level", at.where, name);
  CH_TRY(ch_json_get_integer(at.object, at.where, "ranks", 1, c->ranks, &ranks));
  if (ranks <= below || ranks % below)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"ranks\" is %lld: must be a multiple of the %d of the level before",
                    at.where, (long long)ranks, below);
  CH_TRY(ch_json_get_number(at.object, at.where, "bandwidth_gbs", 1e-6, 1e6, &gbs));
  CH_TRY(ch_json_get_number(at.object, at.where, "latency_us", 0, 1e9, &us));
  l->ranks = (int)ranks;
  l->bandwidth = gbs * 1e9;
  l->latency = us * 1e-6;
  return read_topology(at, l->ranks / below, l);
}

static int read_levels(text_place at, ch_cluster *c) {
  json_t *levels = NULL, *level;
  size_t i;
  int below = 1;
  if (c->ranks == 1 && !json_object_get(at.object, "levels")) return CHOIR_OK;
  CH_TRY(ch_json_get_array(at.object, at.where, "levels", &levels));
  if (json_array_size(levels) > CH_LEVELS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu levels: at most %d", at.where, json_array_size(levels), CH_LEVELS);
  json_array_foreach(levels, i, level) {
    char where[PATH_MAX];
    snprintf(where, sizeof where, "%s: levels[%zu]", at.where, i);
    if (!json_is_object(level)) return ch_error(CHOIR_ERROR_FORMAT, "%s: must be an object {...}", where);
    CH_TRY(read_level((text_place){level, where}, c, below, &c->level[i]));
    below = c->level[i].ranks;
    c->levels++;
  }
  if (below == c->ranks) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: the levels tie %d ranks together, and there are %d: add a level of %d",
                  at.where, below, c->ranks, c->ranks);
}

/* ---- the cluster ---- */

static int read_shares(text_place at, ch_cluster *c) {
  json_t *shares = json_object_get(at.object, "shares");
  char where[PATH_MAX];
  snprintf(where, sizeof where, "%s: shares", at.where);
  if (shares) CH_TRY(ch_json_get_object(at.object, at.where, "shares", &shares));
  if (shares) CH_TRY(ch_json_check_keys(shares, where, share_names));
  for (int p = 0; p < CH_FLOPS_PARTS; p++) {
    if (!json_object_get(shares, share_names[p])) c->assumed |= 1u << p;
    CH_TRY(number((text_place){shares, where}, share_names[p], 1e-4, 1, assumed_share, &c->share[p]));
  }
  return CHOIR_OK;
}

static int take_cluster(const json_t *root, const char *file, ch_cluster *c) {
  static const char *const keys[] = {
      "name",       "notes",      "ranks",      "bench",  "fp32_gflops",         "bf16_gflops", "shares",
      "memory_gib", "memory_gbs", "message_us", "levels", "price_per_rank_hour", "currency",    NULL};
  const text_place at = {root, file};
  const char *name;
  int64_t ranks;
  double gib;
  *c = (ch_cluster){0};
  CH_TRY(ch_json_check_keys(at.object, at.where, keys));
  CH_TRY(ch_json_get_string(at.object, at.where, "name", &name));
  CH_TRY(text(at, "name", sizeof c->name, c->name));
  CH_TRY(text(at, "notes", sizeof c->notes, c->notes));
  CH_TRY(text(at, "bench", sizeof c->bench, c->bench));
  CH_TRY(text(at, "currency", sizeof c->currency, c->currency));
  CH_TRY(ch_json_get_integer(at.object, at.where, "ranks", 1, CH_RANKS, &ranks));
  CH_TRY(ch_json_get_number(at.object, at.where, "memory_gib", 1e-3, 1e6, &gib));
  CH_TRY(number(at, "fp32_gflops", 1e-3, 1e9, 0, &c->fp32));
  CH_TRY(number(at, "bf16_gflops", 0, 1e9, 0, &c->bf16));
  CH_TRY(number(at, "memory_gbs", 1e-3, 1e6, 0, &c->memory_bandwidth));
  CH_TRY(number(at, "message_us", 0, 1e6, 0, &c->message));
  CH_TRY(number(at, "price_per_rank_hour", 0, 1e9, 0, &c->price));
  c->ranks = (int)ranks;
  c->memory = gib * 0x1p30;
  c->fp32 *= 1e9;
  c->bf16 *= 1e9;
  c->memory_bandwidth *= 1e9;
  c->message *= 1e-6;
  CH_TRY(read_shares(at, c));
  return read_levels(at, c);
}

/* ---- from a benchmark ---- */

/* The part of a step that a benchmark case measures. */
static int part_of(const char *problem) {
  static const struct {
    const char *name;
    ch_flops_part part;
  } cases[] = {{"attention ", CH_FLOPS_ATTENTION},
               {"gemm ", CH_FLOPS_DENSE},
               {"moe ", CH_FLOPS_EXPERTS},
               {"head ", CH_FLOPS_HEAD}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (!strncmp(problem, cases[i].name, strlen(cases[i].name))) return cases[i].part;
  return -1;
}

/* Reads the share of peak of every case that measures a part; of several the last. */
static int take_results(const json_t *results, const char *name, ch_cluster *c) {
  json_t *row;
  size_t i;
  unsigned open = c->assumed;
  json_array_foreach(results, i, row) {
    const char *problem;
    char where[PATH_MAX];
    double share;
    snprintf(where, sizeof where, "%s: results[%zu]", name, i);
    CH_TRY(ch_json_get_string(row, where, "problem", &problem));
    int part = part_of(problem);
    if (part < 0 || !(open >> part & 1) || json_is_null(json_object_get(row, "share"))) continue;
    CH_TRY(ch_json_get_number(row, where, "share", 0, 1.5, &share)); /* may exceed the measured peak slightly */
    c->share[part] = share < 1e-4 ? 1e-4 : share > 1 ? 1 : share;
    c->assumed &= ~(1u << part);
  }
  return CHOIR_OK;
}

static int take_bench(const json_t *root, const char *name, ch_cluster *c) {
  json_t *peak, *results;
  char where[PATH_MAX];
  double fp32, bf16, read;
  snprintf(where, sizeof where, "%s: peak", name);
  CH_TRY(ch_json_get_object(root, name, "peak", &peak));
  CH_TRY(ch_json_get_array(root, name, "results", &results));
  CH_TRY(ch_json_get_number(peak, where, "fp32_gflops", 1e-3, 1e9, &fp32));
  CH_TRY(ch_json_get_number(peak, where, "bf16_gflops", 0, 1e9, &bf16));
  CH_TRY(ch_json_get_number(peak, where, "read_gbs", 1e-3, 1e6, &read));
  if (!c->fp32) c->fp32 = fp32 * 1e9;
  if (!c->bf16) c->bf16 = bf16 * 1e9;
  if (!c->memory_bandwidth) c->memory_bandwidth = read * 1e9;
  return take_results(results, name, c);
}

/* ---- from text and files ---- */

typedef int cluster_reader(const json_t *root, const char *name, ch_cluster *cluster);

/* Reads the cluster from parsed JSON, unless parsing failed (`code`); frees the JSON. */
static int take_parsed(int code, json_t *root, cluster_reader *from, const char *name, ch_cluster *cluster) {
  if (!code) code = from(root, name, cluster);
  json_decref(root);
  return code;
}

static int load_cluster(const char *path, cluster_reader *from, ch_cluster *cluster) {
  json_t *root = NULL;
  int code = ch_json_load(path, &root);
  return take_parsed(code, root, from, path, cluster);
}

int ch_cluster_parse(const char *text, size_t length, const char *name, int bench, ch_cluster *cluster) {
  json_t *root = NULL;
  int code = ch_json_parse(text, length, name, &root);
  return take_parsed(code, root, bench ? take_bench : take_cluster, name, cluster);
}

int ch_cluster_check(const char *name, const ch_cluster *c) {
  static const char what[] = "give it, or \"bench\": the file that `choir bench --json` prints on such a machine";
  if (c->fp32 <= 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: \"fp32_gflops\" is missing: %s", name, what);
  if (c->memory_bandwidth <= 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: \"memory_gbs\" is missing: %s", name, what);
  return CHOIR_OK;
}

int ch_cluster_load(const char *path, ch_cluster *cluster) {
  char bench[PATH_MAX + 256];
  CH_TRY(load_cluster(path, take_cluster, cluster));
  const char *slash = strrchr(path, '/');
  int directory = slash && *cluster->bench != '/' ? (int)(slash - path) + 1 : 0;
  snprintf(bench, sizeof bench, "%.*s%s", directory, path, cluster->bench);
  if (*cluster->bench) CH_TRY(load_cluster(bench, take_bench, cluster));
  return ch_cluster_check(path, cluster);
}
