/* metrics.jsonl: what a run computed, the same bytes however often it was stopped and resumed; timing.jsonl: how fast.
 */
#ifndef CH_TRAIN_METRICS_H
#define CH_TRAIN_METRICS_H

#include <jansson.h>

#include "train/evaluate.h"
#include "train/log.h"
#include "train/run.h"

struct ch_metrics {
  ch_log results, timing;
};

/* Opens both files of a run directory; metrics.jsonl is cut back to `bytes` (what the checkpoint knows of). A shorter
 * file is an error. */
int ch_metrics_open(ch_metrics *m, const char *out, int64_t bytes);
/* Whether it can do so; changes nothing. */
int ch_metrics_check(const char *out, int64_t bytes);
void ch_metrics_close(ch_metrics *m);

/* One object as one line of metrics.jsonl; drops the reference. */
void ch_metrics_line(ch_metrics *m, json_t *object);

/* The first line of a training run: its config, and the checkpoint that its weights are from ("": none). */
void ch_metrics_run(ch_metrics *m, const ch_run *run, const char *from);
/* The process that goes on from here: when, on which machine and data, with how many threads. */
void ch_metrics_process(ch_metrics *m, const ch_run *run);
/* more: fields of the source, after those of every step. */
void ch_metrics_step(ch_metrics *m, const choir_trainer_result *r, const char *more);
void ch_metrics_timing(ch_metrics *m, int64_t step, const choir_step_speed *s);

/* One evaluation: its loss, how every MoE layer routed, and the locality of all layers (docs/locality.md), unless NULL.
 */
json_t *ch_metrics_result(const choir_eval_result *r, const ch_layer_stats *stats, const ch_locality *locality);

/* The line of an evaluation: the router's own routing, and the result by thresholds or NULL. */
void ch_metrics_eval(ch_metrics *m, int64_t step, json_t *primary, json_t *causal);
/* Text that the model wrote at this step, into timing.jsonl: what fails to be written there is not missed. */
void ch_metrics_sample(ch_metrics *m, int64_t step, const char *prompt, size_t prompt_size, const char *text,
                       size_t text_size);
void ch_metrics_checkpoint(ch_metrics *m, int64_t step, const char *path);

/* Brings everything written so far to the disk and says how long metrics.jsonl is: before each checkpoint.
 * CHOIR_ERROR_FULL: some of it waits for room. */
int ch_metrics_sync(ch_metrics *m, int64_t *bytes);

#endif
