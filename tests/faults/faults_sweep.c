/* Every call that can fail, failing: for each job, each class of calls and each errno that the class is known for, the
 * first, second, ... call fails; and errno 0, where the process is killed in the place of the call. Whatever happens,
 * the job ends with a word and not by a signal, one that says it succeeded has, and going on leads to the same bytes.
 * faults_sweep MOST: that many calls of each job, class and errno at most, spread over all of them; 0: every call. */
#include "faults.h"

static int most = 3;
static long faults, succeeded, killed;

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
};

static const char *const names[] = SHIM_NAMES;

/* What two libraries do not bear, and nobody can help from outside: SentencePiece does not catch what it throws in its
 * own threads when there is no memory, and oneDNN writes the code that it generates into mappings without a look
 * whether it got them. The process ends by a signal then; there must be a word, and nothing may be lost. */
static int gave_up(const faults_job *job, const char *class, int status) {
  int trains = !strcmp(job->name, "train") || !strcmp(job->name, "resume");
  if (!strcmp(job->name, "tokenizer") && !strcmp(class, "malloc"))
    return status == 128 + SIGABRT && strstr(program_output, "choir: a library that it uses gave up");
  return trains && !strcmp(class, "mmap") && status == 128 + SIGSEGV &&
         strstr(program_output, "choir: a fault in choir or a library that it uses");
}

/* How often each class is called when nothing fails. */
static shim_counts count_calls(const faults_job *job) {
  shim_counts counts = {0};
  size_t size = 0;
  faults_prepare(job, "spoilt");
  program_must("cd spoilt && export FAULT_COUNTS=../counts && faulty none:0:1 %s", job->words);
  char *bytes = program_read("counts", &size);
  assert_int_equal(size, sizeof counts);
  memcpy(&counts, bytes, sizeof counts);
  free(bytes);
  return counts;
}

static void fail_once(const faults_job *job, const char *class, int number, uint64_t call) {
  char what[96];
  snprintf(what, sizeof what, "%s:%d:%llu", class, number, (unsigned long long)call);
  faults_prepare(job, "spoilt");
  int status = program_run("cd spoilt && faulty %s %s", what, job->words);
  int was_killed = status == 128 + SIGKILL && !number;
  if (status > 1 && !was_killed && !gave_up(job, class, status))
    fail_msg("%s, %s: status %d, and it said: %s", job->name, what, status, program_output);
  if (status == 1 && !*program_output) fail_msg("%s, %s: status 1 without a word", job->name, what);
  if (!status && !faults_same(job, job->name, "spoilt"))
    fail_msg("%s, %s: says that it succeeded: %s", job->name, what, program_output);
  faults++, succeeded += !status, killed += was_killed;
  faults_repair(job, "spoilt", what);
  faults_nothing_left(job, "spoilt", what);
}

static void sweep_class(const faults_job *job, shim_class class, int number, uint64_t calls) {
  uint64_t stride = most && calls > (uint64_t)most ? calls / (uint64_t)most : 1;
  for (uint64_t call = 1 + (uint64_t)number % stride; call <= calls; call += stride)
    fail_once(job, names[class], number, call);
}

static void sweep(const faults_job *job) {
  shim_counts counts = count_calls(job);
  long before = faults;
  for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
    for (const int *number = errors[e].numbers; *number >= 0; number++)
      sweep_class(job, errors[e].class, *number, counts.calls[errors[e].class]);
  print_message("%s: %ld calls failed, of", job->name, faults - before);
  for (int c = 0; c < SHIM_CLASSES; c++) print_message(" %s %llu", names[c], (unsigned long long)counts.calls[c]);
  print_message("\n");
}

static void all_jobs(void **state) {
  (void)state;
  for (int i = 0; i < FAULTS_JOBS; i++)
    if (!getenv("FAULTS_JOB") || !strcmp(getenv("FAULTS_JOB"), faults_jobs[i].name)) sweep(&faults_jobs[i]);
  print_message("%ld calls failed: %ld jobs succeeded all the same, %ld were killed, the others said why not\n", faults,
                succeeded, killed);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_jobs)};
  if (argc > 1) most = atoi(argv[1]);
  return most < 0 ? 2 : cmocka_run_group_tests(tests, faults_setup, program_directory_remove);
}
