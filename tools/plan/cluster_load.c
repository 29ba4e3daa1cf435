/* A cluster from its file and from what a bench has measured. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "plan/cluster.h"

int ch_cluster_check(const char *name, const ch_cluster *c) {
  static const char what[] = "give it, or \"bench\": the file that `choir bench --json` prints on such a machine";
  if (c->fp32 <= 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: \"fp32_gflops\" is missing: %s", name, what);
  if (c->memory_bandwidth <= 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: \"memory_gbs\" is missing: %s", name, what);
  return CHOIR_OK;
}

/* ---- from a bench ---- */

/* Which part of a step a case stands for. */
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

/* The share of peak of every case that stands for a part; of several the last. */
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
    CH_TRY(ch_json_get_number(row, where, "share", 0, 1.5, &share)); /* a measured peak may be passed by a little */
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

int ch_cluster_bench_parse(const char *text, size_t length, const char *name, ch_cluster *cluster) {
  json_t *root;
  CH_TRY(ch_json_parse(text, length, name, &root));
  int code = take_bench(root, name, cluster);
  json_decref(root);
  return code;
}

static int load(const char *path, int (*take)(const json_t *, const char *, ch_cluster *), ch_cluster *cluster) {
  json_t *root;
  CH_TRY(ch_json_load(path, &root));
  int code = take(root, path, cluster);
  json_decref(root);
  return code;
}

int ch_cluster_load(const char *path, ch_cluster *cluster) {
  char bench[PATH_MAX + 256];
  CH_TRY(load(path, ch_cluster_take, cluster));
  const char *slash = strrchr(path, '/');
  int directory = slash && *cluster->bench != '/' ? (int)(slash - path) + 1 : 0;
  snprintf(bench, sizeof bench, "%.*s%s", directory, path, cluster->bench);
  if (*cluster->bench) CH_TRY(load(bench, take_bench, cluster));
  return ch_cluster_check(path, cluster);
}
