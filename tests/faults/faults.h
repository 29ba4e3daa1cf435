/* The programs of this folder share small jobs of choir that can be spoilt in many ways, the bytes that they end with
 * when nobody does, and a comparison. Each program takes one number, how much it shall do; docs/testing.md has the
 * counts. */
#ifndef CH_TESTS_FAULTS_FAULTS_H
#define CH_TESTS_FAULTS_FAULTS_H

#include <errno.h>
#include <time.h>

#include "file/temporary.h"
#include "made_up_task.h"
#include "program.h"
#include "shim.h"

/* A job runs in a directory of its own, where `out` is what it makes. */
typedef struct faults_job {
  const char *name;
  const char *before; /* shell commands that make what is there when the job begins */
  const char *words;  /* of choir, in the directory */
  const char *again;  /* shell commands that finish or repeat the job, whatever became of it */
  const char *out;    /* files that must equal those of an undisturbed job */
} faults_job;

#define FAULTS_TRAIN "train --threads 1 --config ../config.json --data ../data --out run"
#define FAULTS_RESUME "train --threads 1 --resume --set steps=6 --out run"
/* Resumes what there is to resume; a run that never began is begun. */
#define FAULTS_CONTINUE(set)                                                                                           \
  "if test -e run/metrics.jsonl || ls run/checkpoints 2>/dev/null | grep -q .; then choir train --threads 1 --resume " \
  "--config ../config.json --data ../data --out run" set "; else choir " FAULTS_TRAIN set "; fi"
#define FAULTS_RUN                                                                   \
  "run/metrics.jsonl run/config.json run/checkpoints/00000006/model.safetensors "    \
  "run/checkpoints/00000006/state.safetensors run/checkpoints/00000006/config.json " \
  "run/checkpoints/00000006/tokenizer.model"
/* The same where the weights of a checkpoint stand in several files. */
#define FAULTS_FILES " --set file_bytes=8000 "
#define FAULTS_FILES_RUN(step)                                                                                        \
  "run/metrics.jsonl run/config.json run/checkpoints/" step                                                           \
  "/model.safetensors.index.json"                                                                                     \
  " run/checkpoints/" step "/model-00001-of-00004.safetensors run/checkpoints/" step                                  \
  "/model-00002-of-00004.safetensors run/checkpoints/" step "/model-00003-of-00004.safetensors run/checkpoints/" step \
  "/model-00004-of-00004.safetensors run/checkpoints/" step "/state.safetensors run/checkpoints/" step                \
  "/config.json run/checkpoints/" step "/tokenizer.model"
#define FAULTS_DATA "data build --threads 2 --tokenizer ../tokenizer.model --holdout 0.1 --out data ../corpus.txt"
#define FAULTS_TOKENIZER "tokenizer train --threads 1 --vocab-size 290 --out new.model ../small.txt"

#define FAULTS_TUNE                                                                                                  \
  "finetune --threads 1 --init-from ../pre --task ../mine.json --data ../set --set batch_sequences=2 --set steps=6 " \
  "--out "                                                                                                           \
  "run"
#define FAULTS_TUNE_ON                                                                                           \
  "if test -e run/metrics.jsonl || ls run/checkpoints 2>/dev/null | grep -q .; then choir finetune --threads 1 " \
  "--resume --out run; else choir " FAULTS_TUNE "; fi"

#define FAULTS_EXPORT "export --threads 1 --format hf --sequences 0 --out hf ../plain"
#define FAULTS_GGUF "export --threads 1 --format gguf --sequences 0 --out some.gguf ../plain"
#define FAULTS_CALIBRATE "calibrate --threads 1 --data ../data --sequences 4 --out cal ../pre"
#define FAULTS_TAKE "tokenizer import --out taken.model ../hf/tokenizer.json"
#define FAULTS_IMPORT "import --tokenizer ../tokenizer.model --out back ../hf"

static const faults_job faults_jobs[] = {
    {"train", "", FAULTS_TRAIN, FAULTS_CONTINUE(""), FAULTS_RUN},
    {"resume", "choir " FAULTS_TRAIN FAULTS_FILES "--set steps=3 >/dev/null", FAULTS_RESUME FAULTS_FILES,
     FAULTS_CONTINUE(FAULTS_FILES), FAULTS_FILES_RUN("00000006")},
    {"build", "", FAULTS_DATA, "test -e data || choir " FAULTS_DATA,
     "data/data.json data/text.train.shard data/text.heldout.shard data/tokenizer.model"},
    {"finetune", "", FAULTS_TUNE, FAULTS_TUNE_ON, "run/result.json run/best " FAULTS_RUN},
    {"export", "", FAULTS_EXPORT, "test -e hf || choir " FAULTS_EXPORT, "hf/config.json hf/model.safetensors"},
    {"gguf", "", FAULTS_GGUF, "test -e some.gguf || choir " FAULTS_GGUF, "some.gguf"},
    {"import", "", FAULTS_IMPORT, "test -e back || choir " FAULTS_IMPORT,
     "back/config.json back/model.safetensors back/tokenizer.model"},
    {"tokenizer", "", FAULTS_TOKENIZER, "test -e new.model || choir " FAULTS_TOKENIZER, "new.model"},
    {"calibrate", "", FAULTS_CALIBRATE, "test -e cal || choir " FAULTS_CALIBRATE,
     "cal/config.json cal/model.safetensors cal/tokenizer.model"},
    {"take", "", FAULTS_TAKE, "test -e taken.model || choir " FAULTS_TAKE, "taken.model"},
};
enum { FAULTS_JOBS = sizeof faults_jobs / sizeof *faults_jobs };

/* Makes an empty directory DIRECTORY/ with what the job finds there. */
static inline void faults_prepare(const faults_job *job, const char *directory) {
  program_must("rm -rf %s && mkdir %s && cd %s && { %s; }", directory, directory, directory,
               *job->before ? job->before : ":");
}

/* Whether the job's files in two directories are the same. */
static inline int faults_same(const faults_job *job, const char *a, const char *b) {
  char names[1024], *rest = NULL, path_a[512], path_b[512];
  int same = 1;
  snprintf(names, sizeof names, "%s", job->out);
  for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
    snprintf(path_a, sizeof path_a, "%s/%s", a, name);
    snprintf(path_b, sizeof path_b, "%s/%s", b, name);
    same &= program_same(path_a, path_b);
  }
  return same;
}

static inline int faults_passed_over(const char *said) { return strstr(said, "; passed over") != NULL; }

/* Whether the job's files are right. Where a checkpoint was passed over, the line of metrics.jsonl that tells of new
 * settings stands where the run really went on, a few steps earlier: there these lines are left out. */
static inline int faults_right(const faults_job *job, const char *directory, int passed_over) {
  char said[2048];
  if (faults_same(job, job->name, directory)) return 1;
  if (!passed_over) return 0;
  snprintf(said, sizeof said, "%.2000s", program_output);
  int status = program_run(
      "for f in %s; do case $f in *metrics.jsonl) for d in %s %s; do grep -v '\"event\":\"run\"' $d/$f >$d.lines; "
      "done; cmp %s.lines %s.lines;; *) cmp %s/$f %s/$f;; esac || exit 1; done",
      job->out, job->name, directory, job->name, directory, job->name, directory);
  snprintf(program_output, sizeof program_output, "%s", said);
  return !status;
}

/* Finishes or repeats a job that was spoilt, and wants the bytes of the one that was not. `what` says how it was
 * spoilt. */
static inline void faults_repair(const faults_job *job, const char *directory, const char *what) {
  char said[2048];
  snprintf(said, sizeof said, "%.2000s", program_output);
  int status = program_run("cd %s && { %s; }", directory, job->again);
  if (status || !faults_right(job, directory, faults_passed_over(said) || faults_passed_over(program_output)))
    fail_msg("%s, %s: status %d of going on.\nFirst it said: %s\nThen: %s", job->name, what, status, said,
             program_output);
}

/* Wants that nothing is left behind which the next command there would not remove. */
static inline void faults_nothing_left(const faults_job *job, const char *directory, const char *what) {
  ch_temporary_clean(directory);
  if (program_run("! find %s | grep choir-tmp-", directory))
    fail_msg("%s, %s: left behind: %s", job->name, what, program_output);
}

/* A random number below 1; FAULTS_SEED says which, else every process has others. */
static inline double faults_drawn(uint32_t sub, int number) {
  static uint64_t seed;
  if (!seed) seed = getenv("FAULTS_SEED") ? strtoull(getenv("FAULTS_SEED"), NULL, 10) : (uint64_t)getpid();
  return ch_rng_uniform(ch_rng_make(seed, CH_STREAM_TEST, sub), (uint64_t)number);
}

/* Says twice a minute how far it is, and how much longer it takes at this rate. */
static inline void faults_progress(const char *what, int64_t done, int64_t all) {
  enum { EVERY = 30 };
  static const char *of;
  static time_t begin, next;
  time_t now = time(NULL);
  if (of != what) of = what, begin = now, next = now + EVERY;
  if (now < next || !done) return;
  next = now + EVERY;
  print_message("%s: %lld of %lld, some %lld minutes left\n", what, (long long)done, (long long)all,
                (long long)(now - begin) * (all - done) / done / 60 + 1);
}

/* A checkpoint and a task to fine-tune it on. */
static inline void faults_setup_task(void) {
  program_must("mkdir set && choir train --threads 1 --config config.json --data data --out pre --set steps=2");
  made_up_four_rows("set/rows.tsv");
}

/* corpus.txt, data/, config.json of a run that saves every second of its six steps, what fine-tuning needs; and for
 * each job a directory of its name, as it is when nothing goes wrong. */
static inline int faults_setup(void **state) {
  static const char config[] =
      "{\"model\": {\"name\": \"tiny\", \"layers\": 2, \"d_model\": 16, \"d_hidden\": 16, \"heads\": 2, \"experts\": "
      "2},\n"
      " \"train\": {\"sequence_length\": 16, \"batch_sequences\": 2, \"steps\": 6, \"rate\": 0.05, "
      "\"checkpoint_every\": 2,\n"
      "           \"keep_checkpoints\": 2, \"eval_every\": 3, \"eval_sequences\": 2}}\n";
  setenv("GOMP_SPINCOUNT", "1000", 1); /* or choir starts itself again to set it */
  if (program_directory_make(state)) return -1;
  program_corpus("corpus.txt", 20, 1);
  program_corpus("small.txt", 8, 2);
  test_ok(ch_file_save("config.json", config, sizeof config - 1));
  program_must(
      "choir tokenizer train --vocab-size 300 --out tokenizer.model corpus.txt && choir data build --tokenizer "
      "tokenizer.model --holdout 0.1 --out data corpus.txt");
  faults_setup_task();
  program_must(
      "choir init config.json --set position=rope --set activation=swiglu --set moe_every=0 --tokenizer "
      "tokenizer.model --out plain && choir export --format hf --sequences 0 --out hf plain");
  for (int i = 0; i < FAULTS_JOBS; i++) {
    faults_prepare(&faults_jobs[i], faults_jobs[i].name);
    program_must("cd %s && choir %s", faults_jobs[i].name, faults_jobs[i].words);
  }
  return 0;
}

#endif
