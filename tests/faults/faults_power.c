/* The power goes: a job's changes to its files are recorded, and at every point of the record the disk is made as it
 * may be left: changes without fsync are lost, torn, or made in another order. Going on must lead to the same bytes,
 * and checkpoints that choir reported as saved must be there. A temporary directory that has lost its mark stays,
 * because without the mark it may be another program's.
 * faults_power STRIDE [DRAWS]: at every STRIDE-th point; DRAWS random orders beside the five fixed ones. */
#include "disk.h"
#include "faults.h"

static int stride = 40, draws = 1;
static long disks;

/* Which of the changes without fsync reached the disk. */
typedef struct fate {
  int variant;
  uint32_t number; /* of a draw */
  uint64_t asked;
} fate;
enum { NOTHING, EVERYTHING, NAMES, BYTES, NAMES_AND_ZEROS, DRAWN };
static const char *const variants[] = {
    "nothing",      "everything, writes torn", "names without bytes", "bytes without names", "names and zeros",
    "a random part"};

static disk_fate keep(void *context, const disk_op *op) {
  fate *f = context;
  int bytes = op->kind == DISK_WRITE || op->kind == DISK_TRUNCATE;
  uint64_t at = f->asked++;
  switch (f->variant) {
    case NOTHING:
      return DISK_LOST;
    case EVERYTHING:
      return DISK_TORN;
    case NAMES:
      return bytes ? DISK_LOST : DISK_KEPT;
    case BYTES:
      return bytes ? DISK_KEPT : DISK_LOST;
    case NAMES_AND_ZEROS:
      return bytes ? DISK_ZEROS : DISK_KEPT;
    default:
      return (disk_fate)(ch_rng_uniform(ch_rng_make(20220218, CH_STREAM_TEST, f->number), at) * 4);
  }
}

/* The step of the newest checkpoint that stood before `end`, with its name synced: the program went on, and said so.
 * For jobs that make one output 1 where that stood. */
static int promised(const disk *d, size_t end) {
  int moved = 0, step = 0;
  for (size_t i = 0; i <= end; i++) {
    const char *place = strstr(d->said[i], " run/checkpoints/");
    if (!strncmp(d->said[i], "rename ", 7) && place) moved = atoi(place + 17);
    if (!strcmp(d->said[i], "fsync of directory run/checkpoints ")) step = moved;
  }
  return step;
}

/* The step that a run was taken up from, by what it printed: the number before that of its first line. */
static int taken_up(void) {
  const char *first = strstr(program_output, "step ");
  while (first && first != program_output && first[-1] != '\n') first = strstr(first + 1, "step ");
  if (strstr(program_output, "nothing left to do")) return 1 << 20;
  return first ? atoi(first + 5) - 1 : -1;
}

static void lose_power(const faults_job *job, const disk *d, size_t end, fate *f) {
  char what[512];
  snprintf(what, sizeof what, "power lost behind record %zu (%s); %s is there", end, d->said[end],
           variants[f->variant]);
  program_must("rm -rf spoilt");
  f->asked = 0;
  disk_leave(d, end, keep, f, "spoilt");
  int step = promised(d, end);
  *program_output = 0;
  faults_repair(job, "spoilt", what);
  if (step && taken_up() < step)
    fail_msg("%s, %s: step %d was saved, and the run began behind step %d: %s", job->name, what, step, taken_up(),
             program_output);
  disks++;
}

static void all_points(const faults_job *job) {
  disk d;
  long before = disks;
  faults_prepare(job, "spoilt");
  disk_read(&d, "spoilt");
  program_must(
      "rm -f trace; cd spoilt && export FAULT_TRACE=\"$OLDPWD/trace\" FAULT_ROOT=\"$PWD\" && faulty none:0:1 %s",
      job->words);
  assert_true(faults_same(job, job->name, "spoilt"));
  disk_trace(&d, "trace");
  for (size_t end = (size_t)(stride - 1) / 2; end < d.records; end += (size_t)stride) {
    fate f = {0};
    faults_progress(job->name, (int64_t)end, (int64_t)d.records);
    for (f.variant = NOTHING; f.variant < DRAWN; f.variant++) {
      lose_power(job, &d, end, &f);
      if (!f.asked) break; /* all changes were synced: other variants give the same disk */
    }
    for (int i = 0; i < draws && f.asked; i++) {
      f.variant = DRAWN, f.number = (uint32_t)(end * 1000 + (size_t)i);
      lose_power(job, &d, end, &f);
    }
  }
  print_message("%s: %zu changes recorded, %ld disks\n", job->name, d.records, disks - before);
  disk_free(&d);
}

static void all_jobs(void **state) {
  (void)state;
  for (int i = 0; i < FAULTS_JOBS; i++)
    if (!getenv("FAULTS_JOB") || !strcmp(getenv("FAULTS_JOB"), faults_jobs[i].name)) all_points(&faults_jobs[i]);
  print_message("%ld disks after a loss of power: going on led to the same bytes\n", disks);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_jobs)};
  if (argc > 1) stride = atoi(argv[1]);
  if (argc > 2) draws = atoi(argv[2]);
  return stride < 1 || draws < 0 ? 2 : cmocka_run_group_tests(tests, faults_setup, program_directory_remove);
}
