/* Names of the files in a run's directory, for all code that writes, reads or checks them. */
#ifndef CH_FILE_RUN_FILES_H
#define CH_FILE_RUN_FILES_H

#include "file/dir.h"

#define CH_RUN_CONFIG "config.json"          /* settings of the last command; the first file that a run writes */
#define CH_RUN_DATA "data.path"              /* path of the data directory */
#define CH_RUN_FROM "from.path"              /* path of the checkpoint of train --init-from */
#define CH_RUN_TUNE "finetune.json"          /* settings of fine-tuning */
#define CH_RUN_NO_CHECKPOINT "no-checkpoint" /* exists until the first checkpoint is saved */
#define CH_RUN_METRICS "metrics.jsonl"       /* losses; its existence means that the run has begun */
#define CH_RUN_TIMING "timing.jsonl"         /* speed of the steps */
#define CH_RUN_BEST "best"                   /* names the best checkpoint */
#define CH_RUN_RESULT "result.json"          /* accuracy of fine-tuning */
#define CH_RUN_PAGE "report.html"            /* written by `choir report` */
#define CH_RUN_CHECKPOINTS "checkpoints"     /* a directory */
/* And CH_LOCK (dir.h). */

/* All files that training and fine-tuning write except the lock: first the CH_RUN_EARLY files that are written
 * before metrics.jsonl. */
#define CH_RUN_FILES                                                                                           \
  {                                                                                                            \
    CH_RUN_CONFIG, CH_RUN_DATA, CH_RUN_FROM, CH_RUN_TUNE, CH_RUN_NO_CHECKPOINT, CH_RUN_METRICS, CH_RUN_TIMING, \
        CH_RUN_BEST, CH_RUN_RESULT                                                                             \
  }
enum { CH_RUN_EARLY = 5 };

#endif
