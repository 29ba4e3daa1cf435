/* Every call that can fail, failing: for each job, each class of calls and each errno that the class is known for, the
 * first, second, ... call fails; and errno 0, where the process is killed in the place of the call. Whatever happens,
 * the job ends with a word and not by a signal, one that says it succeeded has, no file that was there is gone or gets
 * shorter, and going on leads to the same bytes.
 * faults_sweep MOST [EVERY]: that many calls of each job, class and errno at most, spread over all of them (0: every
 * call); of the pairs of a class and an errno every EVERY-th, not the same for each job. FAULTS_JOB=NAME: of that job
 * alone; FAULTS_FROM=N: from the N-th call on, as its progress counts them. */

#include <ftw.h>

#include "faults.h"

static int max = 3, every = 1;
static int64_t from;
static long faults, succeeded, killed, given_up;

static const struct {
  shim_class class;
  int numbers[8]; /* ends with -1 */
} errors[] = {
    {SHIM_WRITE, {0, ENOSPC, EIO, EINTR, EDQUOT, EFBIG, -1}},
    {SHIM_FSYNC, {0, EIO, ENOSPC, -1}},
    {SHIM_RENAME, {0, EIO, ENOSPC, EACCES, -1}},
    {SHIM_OPEN, {0, EACCES, EMFILE, EIO, ENOENT, -1}},
    {SHIM_MKDIR, {0, ENOSPC, EACCES, -1}},
    {SHIM_UNLINK, {0, EACCES, EIO, -1}},
    {SHIM_FTRUNCATE, {0, EIO, EPERM, -1}},
    {SHIM_MMAP, {ENOMEM, -1}},
    {SHIM_MALLOC, {ENOMEM, -1}},
    {SHIM_READ, {0, EIO, EINTR, -1}},
    {SHIM_FLOCK, {ENOLCK, EINTR, -1}},
    {SHIM_THREAD, {EAGAIN, -1}},
    {SHIM_PREAD, {0, EIO, EINTR, ESTALE, -1}},
    {SHIM_READDIR, {0, EIO, ESTALE, -1}},
    {SHIM_ACCESS, {EIO, EACCES, -1}},
    {SHIM_STAT, {0, EIO, ESTALE, EACCES, -1}},
};

static const char *const names[] = SHIM_NAMES;

/* SentencePiece does not bear two failures, and nobody can help from outside: it does not catch what C++ throws for
 * want of memory in its own threads (SIGABRT), and its protobuf takes apart a list with a piece that was never made
 * (SIGSEGV). Accepted only where the call that failed was its own; there must be a word, and nothing may be lost. */
static int gave_up(const char *caller, int status) {
  if (strncmp(caller, "libsentencepiece", 16)) return 0;
  if (status == 128 + SIGABRT) return strstr(program_output, "choir: a library that it uses gave up") != NULL;
  return status == 128 + SIGSEGV && strstr(program_output, "choir: a fault in choir or a library that it uses") != NULL;
}

/* Runs the job under a fault; what the shim counted, if it came to that. The exit status. */
static int run_faulty(const faults_job *job, const char *fault, shim_counts *counts) {
  size_t size = 0;
  memset(counts, 0, sizeof *counts);
  unlink("counts");
  int status = program_run("cd spoilt && export FAULT_COUNTS=../counts && faulty %s %s", fault, job->words);
  char *bytes = program_read("counts", &size);
  if (bytes && size == sizeof *counts) memcpy(counts, bytes, sizeof *counts);
  free(bytes);
  return status;
}

/* How often each class is called when nothing fails. */
static shim_counts count_calls(const faults_job *job) {
  shim_counts counts;
  faults_prepare(job, "spoilt");
  int status = run_faulty(job, "none:0:1", &counts);
  if (status || !counts.calls[SHIM_OPEN]) fail_msg("%s: status %d: %s", job->name, status, program_output);
  return counts;
}

/* ---- files that were there */

typedef struct standing {
  char path[512];
  off_t size;
} standing;
static standing stood[64];
static int stands;

static int note_file(const char *path, const struct stat *status, int flag, struct FTW *place) {
  (void)place;
  if (flag != FTW_F) return 0;
  if (stands == sizeof stood / sizeof *stood || strlen(path) >= sizeof stood->path) abort();
  strcpy(stood[stands].path, path);
  stood[stands++].size = status->st_size;
  return 0;
}

static void note_files(const char *directory) {
  stands = 0;
  if (nftw(directory, note_file, 8, FTW_PHYS)) abort();
}

/* The first of them that is gone or has become shorter, or NULL. Settings are replaced by others, a process number by
 * another, and the oldest checkpoint goes where two newer ones are there. */
static const char *shortened(const char *directory) {
  struct stat status;
  for (int i = 0; i < stands; i++) {
    const char *slash = strrchr(stood[i].path, '/'), *checkpoint = strstr(stood[i].path, "/checkpoints/");
    if (!strcmp(slash, "/lock") || (!checkpoint && !strcmp(slash, "/config.json"))) continue;
    int gone = lstat(stood[i].path, &status);
    if (gone && checkpoint && !program_run("cd %s/run/checkpoints && test $(ls | grep -cx '[0-9]*') -ge 2", directory))
      continue;
    if (gone || status.st_size < stood[i].size) return stood[i].path;
  }
  return NULL;
}

/* The rule sees a log that is cut, a log that is gone, and a checkpoint that is gone without newer ones. */
static void shortened_files_are_detected(void **state) {
  (void)state;
  static const char *const harms[] = {"truncate -s -1 run/metrics.jsonl", "rm run/timing.jsonl",
                                      "rm -r run/checkpoints/*", "truncate -s 9 run/checkpoints/*/state.safetensors"};
  const faults_job *job = &faults_jobs[1];
  for (size_t i = 0; i < sizeof harms / sizeof *harms; i++) {
    faults_prepare(job, "spoilt");
    note_files("spoilt");
    assert_null(shortened("spoilt"));
    program_must("cd spoilt && %s", harms[i]);
    assert_non_null(shortened("spoilt"));
  }
}

static void fail_once(const faults_job *job, const char *class, int number, uint64_t call) {
  char what[96];
  snprintf(what, sizeof what, "%s:%d:%llu", class, number, (unsigned long long)call);
  faults_prepare(job, "spoilt");
  note_files("spoilt");
  shim_counts counts;
  int status = run_faulty(job, what, &counts);
  int was_killed = status == 128 + SIGKILL && !number;
  if (status > 1 && !was_killed && !gave_up(counts.caller, status))
    fail_msg("%s, %s: a call of %s failed, status %d, and it said: %s", job->name, what, counts.caller, status,
             program_output);
  given_up += status > 1 && !was_killed;
  if (status == 1 && !*program_output) fail_msg("%s, %s: status 1 without a word", job->name, what);
  int differs = !status && !faults_right(job, "spoilt", faults_passed_over(program_output));
  if (differs)
    fail_msg("%s, %s: a call of %s failed; it says that it succeeded: %s", job->name, what, counts.caller,
             program_output);
  char said[2048];
  snprintf(said, sizeof said, "%.2000s", program_output);
  const char *path = shortened("spoilt");
  if (path) fail_msg("%s, %s: %s is gone or has become shorter; it said: %s", job->name, what, path, said);
  snprintf(program_output, sizeof program_output, "%s", said);
  faults++, succeeded += !status, killed += was_killed;
  faults_repair(job, "spoilt", what);
  faults_nothing_left(job, "spoilt", what);
}

/* Runs the job once for each call that is to fail; with `all` 0 only counts these calls. */
static int64_t sweep_classes(const faults_job *job, const shim_counts *counts, int pair, int64_t all) {
  int64_t done = 0;
  for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
    for (const int *number = errors[e].numbers; *number >= 0; number++) {
      shim_class class = errors[e].class;
      uint64_t calls = counts->calls[class], stride = max && calls > (uint64_t)max ? calls / (uint64_t)max : 1;
      uint64_t first = 1 + (uint64_t)*number * 2654435761u % stride; /* not always an early one */
      if (pair++ % every) continue;
      for (uint64_t call = first; call <= calls; call += stride, done++) {
        if (!all || done < from) continue;
        faults_progress(job->name, done, all);
        fail_once(job, names[class], *number, call);
      }
    }
  return done;
}

static void sweep(const faults_job *job, int number) {
  shim_counts counts = count_calls(job);
  long before = faults;
  sweep_classes(job, &counts, number, sweep_classes(job, &counts, number, 0));
  print_message("%s: %ld calls failed, of", job->name, faults - before);
  for (int c = 0; c < SHIM_CLASSES; c++) print_message(" %s %llu", names[c], (unsigned long long)counts.calls[c]);
  print_message("\n");
}

static void all_jobs(void **state) {
  (void)state;
  if (getenv("FAULTS_FROM")) from = atoll(getenv("FAULTS_FROM"));
  for (int i = 0; i < FAULTS_JOBS; i++)
    if (!getenv("FAULTS_JOB") || !strcmp(getenv("FAULTS_JOB"), faults_jobs[i].name)) sweep(&faults_jobs[i], i);
  print_message(
      "%ld calls failed: %ld jobs succeeded all the same, %ld were killed, in %ld SentencePiece gave up, the others "
      "said "
      "why not\n",
      faults, succeeded, killed, given_up);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(shortened_files_are_detected), cmocka_unit_test(all_jobs)};
  if (argc > 1) max = atoi(argv[1]);
  if (argc > 2) every = atoi(argv[2]);
  return max < 0 || every < 1 ? 2 : cmocka_run_group_tests(tests, faults_setup, program_directory_remove);
}
