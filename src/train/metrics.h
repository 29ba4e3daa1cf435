/* metrics.jsonl: the results of a run, with the same bytes however often it was stopped and resumed; timing.jsonl:
 * its speed. */
#ifndef CH_TRAIN_METRICS_H
#define CH_TRAIN_METRICS_H

#include <jansson.h>

#include "train/evaluate.h"
#include "train/log.h"
#include "train/run.h"

struct ch_metrics {
  ch_log results, timing;
};

/* Opens both files of a run directory and truncates metrics.jsonl to `bytes`, its length at the checkpoint. A
 * shorter file is an error. */
int ch_metrics_open(ch_metrics *m, const char *out, int64_t bytes);
/* Checks that ch_metrics_open can do so; changes nothing. */
int ch_metrics_check(const char *out, int64_t bytes);
void ch_metrics_close(ch_metrics *m);

/* Writes one object as one line of metrics.jsonl; releases the reference. */
void ch_metrics_line(ch_metrics *m, json_t *object);

/* Writes the first line of a training run: its config, and the checkpoint that its weights come from ("": none). */
void ch_metrics_run(ch_metrics *m, const ch_run *run, const char *from);
/* Writes the line of a starting process: time, machine, data, number of threads. */
void ch_metrics_process(ch_metrics *m, const ch_run *run);
/* more: the source's fields, after the fields of every step. */
void ch_metrics_step(ch_metrics *m, const choir_trainer_result *r, const char *more);
void ch_metrics_timing(ch_metrics *m, int64_t step, const choir_step_speed *s);

/* The JSON of one evaluation: its loss, the routing of every MoE layer, and, unless NULL, the locality of all layers
 * (docs/locality.md). */
json_t *ch_metrics_result(const choir_eval_result *r, const ch_layer_stats *stats, const ch_locality *locality);

/* Writes the line of an evaluation: the result with the router's own routing, and the result with threshold routing
 * or NULL. */
void ch_metrics_eval(ch_metrics *m, int64_t step, json_t *primary, json_t *causal);
/* Writes text that the model generated at this step into timing.jsonl; a failed write is ignored. */
void ch_metrics_sample(ch_metrics *m, int64_t step, const char *prompt, size_t prompt_size, const char *text,
                       size_t text_size);
void ch_metrics_checkpoint(ch_metrics *m, int64_t step, const char *path);

/* fsyncs the lines written so far and returns the length of metrics.jsonl: called before each checkpoint.
 * CHOIR_ERROR_FULL: some lines wait for disk space. */
int ch_metrics_sync(ch_metrics *m, int64_t *bytes);

#endif
