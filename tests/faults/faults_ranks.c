/* Several processes run while one of them is killed or stopped, while a call of one fails, while two jobs want one
 * directory and while the disk is full: all end, soon and with a word, and going on, on any number of them, leads to
 * the bytes that one process leaves. faults_ranks KILLS CALLS EVERY STOPS: how many processes are killed, and are
 * stopped; how many calls of each class fail on a rank, of every EVERY-th class. */
#include "base/machine.h"
#include "faults.h"
#include "mpi.h"

static int kills = 6, calls = 1, every = 1, stops = 4, there, failed, hung;
#define needs_ranks() \
  if (!there) test_skip("choir under mpirun: no mpirun here, or a build without MPI")

#define ON " --set batch_sequences=4 --set grad_chunks=4 --set eval_every=0 --set keep_checkpoints=2 " FAULTS_FILES
#define OFTEN ON "--set checkpoint_every=1 --set steps=24 "
/* The layout of one process's bits, also where ranks outnumber experts. */
#define EXACT "train --threads 1 --replicas 1 "
#define BEGIN EXACT "--config ../config.json --data ../data --out run" OFTEN
#define END FAULTS_FILES_RUN("00000024")

/* `again` is made for a number of ranks. */
static faults_job jobs[] = {
    {"train", "", BEGIN, NULL, END},
    {"resume", "choir " BEGIN "--set steps=12 >/dev/null", EXACT "--resume --set steps=24 --out run", NULL, END}};
enum { JOBS = sizeof jobs / sizeof *jobs };

/* Goes on with what is there, or begins: on so many ranks. */
static const char *again_on(int ranks) {
  static char text[2048];
  char start[512] = "";
  if (ranks > 1) snprintf(start, sizeof start, MPIRUN "-n %d ", ranks);
  snprintf(text, sizeof text,
           "if test -e run/metrics.jsonl || ls run/checkpoints 2>/dev/null | grep -q .; then %s \"$CHOIR\" " EXACT
           "--resume --set steps=24 --out run; else %s \"$CHOIR\" " BEGIN "; fi",
           start, start);
  return text;
}

/* mpirun's own --timeout does not hold while it ends: after a rank was killed while the job began, Open MPI 4.1.4
 * sometimes waits for a lock of PMIx for ever, with no rank left. */
enum { JOB_SECONDS = 240, LAUNCHER_SECONDS = 300 };

static pid_t start(const faults_job *job, int ranks, const char *more) {
  char command[1024];
  snprintf(command, sizeof command,
           "cd spoilt && " MPIRUN_SET "timeout -s KILL %d " MPIRUN_WORDS "--timeout %d -n %d \"$CHOIR\" %s%s",
           LAUNCHER_SECONDS, JOB_SECONDS, ranks, job->words, more);
  return program_start(command, "struck.txt");
}

/* The process of a rank, once it is there; 0: the job has ended. */
static pid_t find(pid_t job, int rank) {
  siginfo_t ended = {.si_pid = 0};
  for (;;) {
    pid_t process = mpi_process(rank);
    if (process) return process;
    if (waitid(P_PID, (id_t)job, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid) return 0;
    program_nap(0.002);
  }
}

/* From the first sight of a process to the end of the job. */
static double duration(const faults_job *job, int ranks) {
  faults_prepare(job, "spoilt");
  pid_t child = start(job, ranks, "");
  find(child, 0);
  double begin = ch_machine_seconds();
  assert_int_equal(program_wait(child), 0);
  return ch_machine_seconds() - begin;
}

static void read_job_output(void) {
  size_t size;
  char *text = program_read("struck.txt", &size);
  snprintf(program_output, sizeof program_output, "%s", text ? text : "");
  free(text);
}

/* mpirun may be gone a little before the last one that it has killed. */
static void all_gone(int ranks, const char *what) {
  enum { TRIES = 200 }; /* ten seconds */
  for (int r = 0, tries = 0; r < ranks; r++)
    for (; mpi_process(r); program_nap(0.05))
      if (tries++ == TRIES) fail_msg("%s: rank %d goes on ten seconds after the job has ended", what, r);
}

/* Another number of ranks goes on to the same bytes, and leaves nothing behind. */
static void another_number_of_ranks_resumes(faults_job *job, int next, const char *what) {
  job->again = again_on(next);
  faults_repair(job, "spoilt", what);
  faults_nothing_left(job, "spoilt", what);
}

static void killed_at_random_instants(void **state) {
  (void)state;
  needs_ranks();
  static const int numbers[] = {2, 4}, others[] = {4, 1, 2};
  double length[JOBS][2];
  int done = 0, tries = 0, stuck = 0, at_step[3] = {0};
  for (int i = 0; i < 2 * JOBS; i++) length[i / 2][i % 2] = duration(&jobs[i / 2], numbers[i % 2]);
  for (; done < kills; tries++) {
    int k = tries / JOBS % 2, ranks = numbers[k], rank = (int)(ranks * faults_drawn(1, tries)),
        next = others[tries % 3];
    faults_job *job = &jobs[tries % JOBS];
    char what[96];
    faults_progress("kills of ranks", done, kills);
    faults_prepare(job, "spoilt");
    double begin = ch_machine_seconds();
    pid_t child = start(job, ranks, ""), process = find(child, rank);
    program_nap(length[tries % JOBS][k] * faults_drawn(2, tries));
    int struck = process && mpi_process(rank) == process && !test_signal(process, SIGKILL);
    int status = program_wait(child), step = program_newest("spoilt/run");
    read_job_output();
    snprintf(what, sizeof what, "rank %d of %d killed after step %d, then %d", rank, ranks, step, next);
    if (!status != !struck && !(struck && step == 24)) fail_msg("%s: status %d: %s", what, status, program_output);
    all_gone(ranks, what);
    stuck += ch_machine_seconds() - begin > LAUNCHER_SECONDS;
    done += struck;
    at_step[step == 0 ? 0 : step < 24 ? 1 : 2] += struck;
    another_number_of_ranks_resumes(job, next, what);
  }
  print_message(
      "%d kills of %d jobs (%d before the first checkpoint, %d after the last): going on led to the same bytes; "
      "mpirun did not end, with no rank left, %d times\n",
      done, tries, at_step[0], at_step[2], stuck);
}

/* ---- one is stopped ---- */

/* Whether the job ends within seconds. */
static int ends_within(pid_t job, double seconds) {
  siginfo_t ended = {.si_pid = 0};
  for (double begin = ch_machine_seconds(); ch_machine_seconds() - begin < seconds; program_nap(0.02))
    if (waitid(P_PID, (id_t)job, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid) return 1;
  return 0;
}

/* By turns a rank stays as it is, and the others end with status 4 and a word, or it goes on a little later, and the
 * job does, too. Nobody watches while MPI begins and once all have left: there mpirun waits until it goes on. */
static void stopped_at_random_instants(void **state) {
  needs_ranks();
  static const int numbers[] = {2, 4}, others[] = {4, 1, 2};
  double length[JOBS][2];
  int done = 0, tries = 0, ended = 0, woken = 0;
  for (int i = 0; i < 2 * JOBS; i++) length[i / 2][i % 2] = duration(&jobs[i / 2], numbers[i % 2]);
  for (; done < stops; tries++) {
    int k = tries / JOBS % 2, stays = tries / (2 * JOBS) % 2, ranks = numbers[k];
    int rank = (int)(ranks * faults_drawn(4, tries)), next = others[tries % 3];
    faults_job *job = &jobs[tries % JOBS];
    char what[96], whom[32];
    faults_progress("stops of ranks", done, stops);
    faults_prepare(job, "spoilt");
    pid_t child = start(job, ranks, stays ? " --rank-timeout 6" : ""), process = find(child, rank);
    program_nap(length[tries % JOBS][k] * faults_drawn(5, tries));
    int before = program_newest("spoilt/run");
    int struck = process && mpi_process(rank) == process && !test_signal(process, SIGSTOP);
    int wakes = struck && (stays ? !ends_within(child, 30) : !ends_within(child, faults_drawn(6, tries)));
    read_job_output(); /* so far */
    int unwatched = wakes && (!*program_output || program_newest("spoilt/run") == 24);
    if (wakes) test_signal(process, SIGCONT);
    int status = program_wait(child);
    read_job_output();
    snprintf(what, sizeof what, "rank %d of %d stopped after step %d, then %d", rank, ranks, before, next);
    snprintf(whom, sizeof whom, "rank %d (", rank); /* the waiting rank is "rank N of" */
    int told = strstr(program_output, " has waited for 6 s in ") && strstr(program_output, whom);
    if (struck && stays && !unwatched && status ? status != 4 || !told : status)
      fail_msg("%s: status %d: %s", what, status, program_output);
    if (wakes && stays && !unwatched) fail_msg("%s: nobody says so: %s", what, program_output);
    all_gone(ranks, what);
    done += struck, ended += status == 4, woken += wakes && stays;
    another_number_of_ranks_resumes(job, next, what);
  }
  print_message(
      "%d stops of %d jobs (%d ended with status 4, %d stood until the rank went on, before or after all work): "
      "going on led to the same bytes\n",
      done, tries, ended, woken);
}

/* ---- a call of one rank fails ---- */

static const struct {
  shim_class class;
  int number;
} errors[] = {{SHIM_WRITE, EIO},    {SHIM_FSYNC, EIO},     {SHIM_RENAME, EACCES}, {SHIM_OPEN, EACCES},
              {SHIM_MKDIR, EACCES}, {SHIM_MMAP, ENOMEM},   {SHIM_READ, EIO},      {SHIM_MALLOC, ENOMEM},
              {SHIM_FLOCK, ENOLCK}, {SHIM_FTRUNCATE, EIO}, {SHIM_THREAD, EAGAIN}};
static const char *const names[] = SHIM_NAMES;

/* Two ranks, of which `bad` runs under a fault; what the shim counted. */
static int run_faulty(const char *words, const char *fault, int bad, shim_counts *counts) {
  const char *const healthy = "-n 1 \"$CHOIR\" ";
  char faulty[512];
  size_t size = 0;
  snprintf(faulty, sizeof faulty, "-n 1 env FAULT=%s FAULT_COUNTS=../counts LD_PRELOAD='%s' \"$CHOIR\" ", fault,
           CHOIR_SHIM);
  memset(counts, 0, sizeof *counts);
  unlink("counts");
  int status = program_run("cd spoilt && " MPIRUN "--timeout 90 %s %s : %s %s", bad ? healthy : faulty, words,
                           bad ? faulty : healthy, words);
  char *bytes = program_read("counts", &size);
  if (bytes && size == sizeof *counts) memcpy(counts, bytes, sizeof *counts);
  free(bytes);
  return status;
}

/* If a call of MPI's own libraries fails, MPI may hang. choir cannot prevent this, and no data is lost. */
static void fails_once(faults_job *job, int bad, const char *fault) {
  char what[96], words[512];
  shim_counts counts;
  snprintf(what, sizeof what, "%s on rank %d", fault, bad);
  snprintf(words, sizeof words, "%s --rank-timeout 30", job->words);
  faults_prepare(job, "spoilt");
  int status = run_faulty(words, fault, bad, &counts);
  int hang = strstr(program_output, "has waited for") || strstr(program_output, "Timeout: ");
  int own = !strcmp(counts.caller, "choir") || !strncmp(counts.caller, "libchoir", 8);
  if (hang && own) fail_msg("%s, %s: the others hang: %s", job->name, what, program_output);
  hung += hang;
  if (status && !*program_output) fail_msg("%s, %s: status %d without a word", job->name, what, status);
  if (!status && !faults_same(job, job->name, "spoilt"))
    fail_msg("%s, %s: says that it succeeded: %s", job->name, what, program_output);
  job->again = again_on(1);
  faults_repair(job, "spoilt", what);
}

static void fail_calls(faults_job *job, int bad, const shim_counts *counts) {
  static int classes;
  for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
    uint64_t max = counts->calls[errors[e].class];
    if (classes++ % every) continue;
    for (int i = 0; i < calls && max; i++, failed++) {
      char fault[64];
      int at = 1 + (int)(faults_drawn(3, failed) * (double)max);
      snprintf(fault, sizeof fault, "%s:%d:%d", names[errors[e].class], errors[e].number, at);
      fails_once(job, bad, fault);
    }
  }
}

static void a_call_fails_on_one_rank(void **state) {
  (void)state;
  needs_ranks();
  shim_counts counts;
  for (int bad = 0; bad < 2; bad++)
    for (int j = 0; j < JOBS; j++) {
      faults_prepare(&jobs[j], "spoilt");
      assert_int_equal(run_faulty(jobs[j].words, "none:0:1", bad, &counts), 0);
      assert_true(counts.calls[SHIM_OPEN] > 0);
      fail_calls(&jobs[j], bad, &counts);
    }
  print_message(
      "%d calls failed on one of two ranks: MPI hung in %d of its own, none of choir's left the other waiting\n",
      failed, hung);
}

/* ---- output directories that exist, and inputs that are missing ---- */

static void two_jobs_want_one_directory(void **state) {
  (void)state;
  needs_ranks();
  program_must("rm -rf spoilt && mkdir spoilt");
  pid_t first = program_start("cd spoilt && " MPIRUN "-n 2 \"$CHOIR\" " BEGIN "--set steps=100000", "first.txt");
  program_wait_for_checkpoint(first, "spoilt/run", 0);
  program_refuses(1, "is using it", "cd spoilt && " MPIRUN "-n 2 \"$CHOIR\" train --threads 1 --resume --out run");
  program_refuses(1, "is using it", "cd spoilt && \"$CHOIR\" train --threads 1 --resume --out run");
  test_signal(mpi_process(0), SIGKILL);
  program_wait(first);
}

/* The first rank's disk has no room, for a while or for ever: the run goes on in memory on all ranks, or all end with
 * one message. */
static void full_disk_of_the_writer(void **state) {
  (void)state;
  needs_ranks();
  shim_counts counts;
  faults_prepare(&jobs[0], "spoilt");
  int status = run_faulty(jobs[0].words, "fsync:28:40:12", 0, &counts);
  if (status || !strstr(program_output, "until there is room the run goes on in memory") ||
      !faults_same(&jobs[0], jobs[0].name, "spoilt"))
    fail_msg("status %d: %s", status, program_output);
  faults_prepare(&jobs[0], "spoilt");
  status = run_faulty(BEGIN "--disk-minutes 0.01", "fsync:28:40:1000000", 0, &counts);
  const char *said = strstr(program_output, "which could not be saved");
  if (status != 1 || !said || strstr(said + 1, "which could not be saved"))
    fail_msg("status %d: %s", status, program_output);
  jobs[0].again = again_on(2);
  faults_repair(&jobs[0], "spoilt", "no room");
}

static int setup(void **state) {
  if (faults_setup(state)) return -1;
  there = !without_mpi();
  for (int j = 0; j < JOBS; j++) { /* in place of faults_setup's jobs of one process */
    faults_prepare(&jobs[j], jobs[j].name);
    program_must("cd %s && choir %s", jobs[j].name, jobs[j].words);
  }
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(killed_at_random_instants), cmocka_unit_test(stopped_at_random_instants),
      cmocka_unit_test(a_call_fails_on_one_rank), cmocka_unit_test(two_jobs_want_one_directory),
      cmocka_unit_test(full_disk_of_the_writer)};
  if (argc > 1) kills = atoi(argv[1]);
  if (argc > 2) calls = atoi(argv[2]);
  if (argc > 3) every = atoi(argv[3]);
  if (argc > 4) stops = atoi(argv[4]);
  return kills < 0 || calls < 0 || every < 1 || stops < 0
             ? 2
             : cmocka_run_group_tests(tests, setup, program_directory_remove);
}
