#include "train/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "choir/version.h"
#include "model/config.h"
#include "moe/route_stats_json.h"

int ch_metrics_open(ch_metrics *m, const char *out, int64_t bytes) {
  char timing[4096];
  struct stat status;
  *m = (ch_metrics){0};
  snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", out);
  snprintf(timing, sizeof timing, "%s/timing.jsonl", out);
  m->file = fopen(m->path, "a");
  m->timing = fopen(timing, "a");
  if (!m->file || !m->timing || fstat(fileno(m->file), &status)) {
    int code = ch_error_errno("%s: cannot open for appending", m->file ? timing : m->path);
    ch_metrics_close(m);
    return code;
  }
  setvbuf(m->file, NULL, _IOLBF, BUFSIZ); /* whoever follows the file sees whole lines, at once */
  setvbuf(m->timing, NULL, _IOLBF, BUFSIZ);
  if (status.st_size < bytes) {
    ch_metrics_close(m);
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: %lld bytes, but the checkpoint was made when it had %" PRId64
                    "; put the file back, or train into another directory",
                    m->path, (long long)status.st_size, bytes);
  }
  if (ftruncate(fileno(m->file), bytes)) {
    int code = ch_error_errno("%s: cannot cut back to %" PRId64 " bytes", m->path, bytes);
    ch_metrics_close(m);
    return code;
  }
  return CHOIR_OK;
}

void ch_metrics_close(ch_metrics *m) {
  if (m->file) fclose(m->file);
  if (m->timing) fclose(m->timing);
  m->file = m->timing = NULL;
}

/* One object as one line; drops the reference. */
static void write_line(FILE *file, json_t *object) {
  json_dumpf(object, file, JSON_COMPACT | JSON_REAL_PRECISION(9));
  fputc('\n', file);
  json_decref(object);
}

void ch_metrics_line(ch_metrics *m, json_t *object) { write_line(m->file, object); }

void ch_metrics_run(ch_metrics *m, const ch_run *run) {
  choir_config_costs costs = {0};
  choir_config_cost(&run->config, &costs);
  json_t *line = json_object();
  json_object_set_new(line, "event", json_string("run"));
  json_object_set_new(line, "version", json_string(choir_version()));
  json_object_set_new(line, "parameters", json_integer(costs.parameters));
  json_object_set_new(line, "active_parameters", json_integer(costs.active_parameters));
  json_object_set_new(line, "train_flops_per_token", json_real(costs.train_flops_per_token));
  if (*run->from) json_object_set_new(line, "from", json_string(run->from));
  json_object_set_new(line, "config", ch_config_json(&run->config));
  write_line(m->file, line);
}

/* By hand, because steps allocate nothing. */
void ch_metrics_step(ch_metrics *m, const choir_train_event *e) {
  fprintf(m->file,
          "{\"event\":\"step\",\"step\":%" PRId64
          ",\"loss\":%.9g,\"aux_loss\":%.9g,\"rate\":%.9g,\"gradient_norm\":%.9g,"
          "\"dropped\":%.9g,\"unrouted\":%.9g,\"imbalance\":%.9g,\"fill\":%.9g,\"tokens\":%" PRId64 "}\n",
          e->step, e->loss, e->aux_loss, e->rate, e->gradient_norm, e->dropped, e->unrouted, e->imbalance, e->fill,
          e->tokens);
}

void ch_metrics_timing(ch_metrics *m, const choir_train_event *e, double seconds) {
  fprintf(m->timing,
          "{\"step\":%" PRId64 ",\"seconds\":%.6g,\"tokens_per_second\":%.6g,\"gflops\":%.6g,\"peak_gflops\":%.6g}\n",
          e->step, seconds, e->tokens_per_second, e->gflops, e->peak_gflops);
}

static json_t *layer_json(const choir_route_stats *s) {
  json_t *layer = json_object();
  json_object_set_new(layer, "layer", json_integer(s->layer));
  json_object_set_new(layer, "tokens", json_integer(s->tokens));
  json_object_set_new(layer, "capacity", json_integer(s->capacity));
  json_object_set_new(layer, "assignments", json_integer(s->assignments));
  json_object_set_new(layer, "dropped", json_integer(s->dropped));
  json_object_set_new(layer, "gate_mass", json_real(s->gate_mass));
  json_object_set_new(layer, "token_entropy", ch_json_number(s->token_entropy));
  json_object_set_new(layer, "load_entropy", ch_json_number(s->load_entropy));
  json_object_set_new(layer, "drift", ch_json_number(s->drift));
  json_object_set_new(layer, "load", ch_json_integers(s->load, s->experts));
  json_object_set_new(layer, "demand", ch_json_integers(s->demand, s->experts));
  json_object_set_new(layer, "certificate", ch_certificate_json(&s->certificate));
  json_object_set_new(layer, "histogram", ch_json_integers(s->histogram, s->experts + 1));
  return layer;
}

json_t *ch_metrics_result(const choir_eval_result *r, const ch_layer_stats *stats) {
  json_t *result = json_object(), *layers = json_array();
  json_object_set_new(result, "loss", json_real(r->loss));
  json_object_set_new(result, "perplexity", json_real(r->perplexity));
  json_object_set_new(result, "bits_per_byte", json_real(r->bits_per_byte));
  json_object_set_new(result, "unigram_loss", json_real(r->unigram_loss));
  json_object_set_new(result, "tokens", json_integer(r->tokens));
  json_object_set_new(result, "routing", json_string(r->routing));
  json_object_set_new(result, "looks_across_tokens", json_boolean(r->looks_across_tokens));
  for (int i = 0; i < stats->layers; i++) json_array_append_new(layers, layer_json(&stats->layer[i]));
  json_object_set_new(result, "layers", layers);
  return result;
}

void ch_metrics_eval(ch_metrics *m, int64_t step, json_t *own, json_t *causal) {
  json_t *line = json_pack("{s:s, s:I}", "event", "eval", "step", (json_int_t)step);
  json_object_update(line, own);
  if (causal) {
    double gap = json_number_value(json_object_get(causal, "loss")) - json_number_value(json_object_get(own, "loss"));
    json_object_set_new(line, "causal_gap", json_real(gap));
    json_object_set(line, "threshold", causal);
  }
  write_line(m->file, line);
}

void ch_metrics_checkpoint(ch_metrics *m, int64_t step, const char *path) {
  json_t *line = json_pack("{s:s, s:I, s:s}", "event", "checkpoint", "step", (json_int_t)step, "path", path);
  write_line(m->timing, line);
  fflush(m->timing);
}

int ch_metrics_sync(ch_metrics *m, int64_t *bytes) {
  struct stat status;
  if (fflush(m->file) || ferror(m->file) || fsync(fileno(m->file)) || fstat(fileno(m->file), &status))
    return ch_error_errno("%s: cannot write", m->path);
  fflush(m->timing); /* timing is not worth stopping for */
  *bytes = status.st_size;
  return CHOIR_OK;
}
