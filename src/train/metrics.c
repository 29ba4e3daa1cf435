#include "train/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "choir/version.h"
#include "file/json.h"
#include "file/run_files.h"
#include "model/config.h"
#include "model/prefetch.h"
#include "moe/route_stats.h"

int ch_metrics_check(const char *out, int64_t bytes) {
  CH_TRY(ch_log_check(CH_IN(out, CH_RUN_METRICS), bytes));
  return ch_log_check(CH_IN(out, CH_RUN_TIMING), CH_LOG_LINES);
}

int ch_metrics_open(ch_metrics *m, const char *out, int64_t bytes) {
  *m = (ch_metrics){.results.fd = -1, .timing.fd = -1};
  CH_TRY(ch_metrics_check(out, bytes)); /* both files, before one is truncated */
  int code = ch_log_open(&m->results, CH_IN(out, CH_RUN_METRICS), bytes);
  if (!code) code = ch_log_open(&m->timing, CH_IN(out, CH_RUN_TIMING), CH_LOG_LINES);
  if (code) ch_metrics_close(m);
  return code;
}

void ch_metrics_close(ch_metrics *m) {
  ch_log_close(&m->results);
  ch_log_close(&m->timing);
}

/* Writes one object as one line; releases the reference. */
static void write_line(ch_log *log, json_t *object) {
  char *text = ch_json_dump(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
  json_decref(object);
  if (!text) {
    log->error = ENOMEM;
    return;
  }
  size_t length = strlen(text);
  text[length] = '\n'; /* replaces the NUL */
  ch_log_add(log, text, length + 1);
  free(text);
}

void ch_metrics_line(ch_metrics *m, json_t *object) { write_line(&m->results, object); }

void ch_metrics_run(ch_metrics *m, const ch_run *run, const char *from) {
  choir_config_costs costs = {0};
  choir_config_get_costs(&run->config, &costs);
  json_t *line = json_pack("{s:s, s:s, s:I, s:I, s:f}", "event", "run", "version", choir_version(), "parameters",
                           (json_int_t)costs.parameters, "active_parameters", (json_int_t)costs.active_parameters,
                           "train_flops_per_token", costs.train_flops_per_token);
  if (*from) ch_json_put(line, "from", ch_json_name(from));
  ch_json_put(line, "config", ch_config_json(&run->config));
  write_line(&m->results, line);
}

/* Formatted by hand, because steps must not allocate memory. */
void ch_metrics_step(ch_metrics *m, const choir_trainer_result *r, const char *more) {
  char line[640], loss[32] = "null"; /* a step without a masked token has no loss */
  if (r->targets) ch_format(loss, sizeof loss, "%.9g", r->loss);
  int length = ch_format(line, sizeof line,
                         "{\"event\":\"step\",\"step\":%" PRId64
                         ",\"loss\":%s,\"aux_loss\":%.9g,\"z_loss\":%.9g,\"learning_rate\":%.9g,\"gradient_norm\":%.9g,"
                         "\"dropped\":%.9g,\"unrouted\":%.9g,\"imbalance\":%.9g,\"fullest\":[%.5g,%.5g,%.5g]%s}\n",
                         r->step, loss, r->aux_loss, r->z_loss, r->learning_rate, r->gradient_norm, r->dropped,
                         r->unrouted, r->imbalance, r->fullest[0], r->fullest[1], r->fullest[2], more);
  ch_log_add(&m->results, line, (size_t)length);
}

/* Writes a line of timing.jsonl; without disk space the line is dropped. */
static void write_timing(ch_metrics *m, const char *line, int length) {
  if (m->results.error || ch_log_flush(&m->timing)) return;
  ch_log_add(&m->timing, line, (size_t)length);
}

/* Seconds since 1970, for comparisons with the logs of other programs. */
static double wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void ch_metrics_process(ch_metrics *m, const ch_run *run) {
  char line[512], host[128] = "", zone[] = "0000-00-00T00:00:00Z";
  const ch_exec *x = &run->trainer.model->x;
  time_t now = time(NULL);
  struct tm date;
  gethostname(host, sizeof host - 1);
  for (char *at = host; *at; at++) /* hostname characters only, so that the JSON string needs no escapes */
    if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\') *at = '?';
  if (gmtime_r(&now, &date)) strftime(zone, sizeof zone, "%Y-%m-%dT%H:%M:%SZ", &date);
  int length = ch_format(
      line, sizeof line,
      "{\"event\":\"process\",\"step\":%" PRId64
      ",\"time\":%.3f,\"date\":\"%s\",\"host\":\"%s\",\"pid\":%ld,\"threads\":%d,\"ranks\":%d,"
      "\"replicas\":%d,\"hidden\":%d,\"dense\":\"%s\",\"version\":\"%s\",\"data_hash\":\"%016" PRIx64 "\"}\n",
      run->trainer.step, wall_clock(), zone, host, (long)getpid(), x->threads, x->comm->size, x->grid.dp_group.size,
      x->grid.tp_group.size, ch_params_dense_sharded(&run->trainer.model->net.params) ? "sharded" : "whole",
      choir_version(), run->data_hash);
  write_timing(m, line, length);
}

void ch_metrics_timing(ch_metrics *m, int64_t step, const choir_step_speed *s) {
  char line[512], more[256] = "";
  if (s->ranks > 1)
    ch_format(more, sizeof more,
              ",\"ranks\":%d,\"sent_bytes\":%" PRId64 ",\"sent_messages\":%" PRId64
              ",\"waited\":%.6g,\"waited_least\":%.6g,\"slowest_rank\":%d",
              s->ranks, s->sent_bytes, s->sent_messages, s->waited, s->waited_least, s->slowest_rank);
  int length =
      ch_format(line, sizeof line,
                "{\"step\":%" PRId64
                ",\"time\":%.3f,\"seconds\":%.6g,\"tokens_per_second\":%.6g,\"gflops\":%.6g,\"peak_gflops\":%.6g%s}\n",
                step, wall_clock(), s->seconds, s->tokens_per_second, s->gflops, s->peak_gflops, more);
  write_timing(m, line, length);
}

static json_t *layer_json(const choir_route_stats *s) {
  return json_pack("{s:i, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "layer", s->layer, "tokens",
                   (json_int_t)s->tokens, "capacity", (json_int_t)s->capacity, "assignments",
                   (json_int_t)s->assignments, "dropped", (json_int_t)s->dropped, "gate_mass",
                   ch_json_number(s->gate_mass), "token_entropy", ch_json_number(s->token_entropy), "load_entropy",
                   ch_json_number(s->load_entropy), "drift", ch_json_number(s->drift), "load",
                   ch_json_integers(s->load, s->experts), "demand", ch_json_integers(s->demand, s->experts),
                   "certificate", ch_certificate_json(&s->certificate), "histogram",
                   ch_json_integers(s->histogram, s->experts + 1));
}

json_t *ch_metrics_result(const choir_eval_result *r, const ch_layer_stats *stats, const ch_locality *locality) {
  json_t *layers = json_array();
  for (int i = 0; i < stats->layers; i++) ch_json_add(layers, layer_json(&stats->layer[i]));
  json_t *result = json_pack("{s:o, s:o, s:o, s:o, s:I, s:s, s:b, s:o}", "loss", ch_json_number(r->loss), "perplexity",
                             ch_json_number(r->perplexity), "bits_per_byte", ch_json_number(r->bits_per_byte),
                             "unigram_loss", ch_json_number(r->unigram_loss), "tokens", (json_int_t)r->tokens,
                             "routing", r->routing, "looks_across_tokens", r->looks_across_tokens, "layers", layers);
  if (locality) ch_json_put(result, "locality", ch_locality_json(&locality[stats->layers], stats->layer->experts));
  if (result && strcmp(r->objective, "next_token")) {
    ch_json_put(result, "objective", json_string(r->objective));
    ch_json_put(result, "standard_error", ch_json_number(r->standard_error));
  }
  if (!result) ch_json_add(NULL, NULL); /* without memory for a part of the line it is not written */
  return result;
}

void ch_metrics_eval(ch_metrics *m, int64_t step, json_t *primary, json_t *causal) {
  json_t *line = json_pack("{s:s, s:I}", "event", "eval", "step", (json_int_t)step);
  json_object_update(line, primary);
  if (causal) {
    const json_t *there = json_object_get(causal, "loss"), *here = json_object_get(primary, "loss");
    int finite = json_is_real(there) && json_is_real(here);
    ch_json_put(line, "causal_gap",
                ch_json_number(finite ? json_real_value(there) - json_real_value(here) : (double)NAN));
    ch_json_put(line, "threshold", json_incref(causal));
  }
  write_line(&m->results, line);
}

void ch_metrics_sample(ch_metrics *m, int64_t step, const char *prompt, size_t prompt_size, const char *text,
                       size_t text_size) {
  write_line(&m->timing, json_pack("{s:s, s:I, s:o, s:o}", "event", "sample", "step", (json_int_t)step, "prompt",
                                   ch_json_text(prompt, prompt_size), "text", ch_json_text(text, text_size)));
}

void ch_metrics_checkpoint(ch_metrics *m, int64_t step, const char *path) {
  write_line(&m->timing,
             json_pack("{s:s, s:I, s:o}", "event", "checkpoint", "step", (json_int_t)step, "path", ch_json_name(path)));
}

int ch_metrics_sync(ch_metrics *m, int64_t *bytes) {
  CH_TRY(ch_log_sync(&m->results));
  *bytes = m->results.bytes;
  return CHOIR_OK;
}
