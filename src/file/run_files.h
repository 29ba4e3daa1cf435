/* The files of a run's directory, by name: who writes, reads or judges them takes their names from here. */
#ifndef CH_FILE_RUN_FILES_H
#define CH_FILE_RUN_FILES_H

#include "file/dir.h"

#define CH_RUN_CONFIG "config.json"          /* settings of the last command; the first file that a run writes */
#define CH_RUN_DATA "data.path"              /* where the data are */
#define CH_RUN_FROM "from.path"              /* the checkpoint of train --init-from */
#define CH_RUN_TUNE "finetune.json"          /* settings of fine-tuning */
#define CH_RUN_NO_CHECKPOINT "no-checkpoint" /* until the first checkpoint is saved */
#define CH_RUN_METRICS "metrics.jsonl"       /* losses; its existence means that the run has begun */
#define CH_RUN_TIMING "timing.jsonl"         /* how fast */
#define CH_RUN_BEST "best"                   /* names the best checkpoint */
#define CH_RUN_RESULT "result.json"          /* accuracy of fine-tuning */
#define CH_RUN_PAGE "report.html"            /* of `choir report` */
#define CH_RUN_CHECKPOINTS "checkpoints"     /* a directory */
/* CH_LOCK (dir.h), too. */

/* All files that training and fine-tuning write but the lock: those before metrics.jsonl first, CH_RUN_EARLY of them.
 */
#define CH_RUN_FILES                                                                                           \
  {                                                                                                            \
    CH_RUN_CONFIG, CH_RUN_DATA, CH_RUN_FROM, CH_RUN_TUNE, CH_RUN_NO_CHECKPOINT, CH_RUN_METRICS, CH_RUN_TIMING, \
        CH_RUN_BEST, CH_RUN_RESULT                                                                             \
  }
enum { CH_RUN_EARLY = 5 };

#endif
