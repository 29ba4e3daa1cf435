/* Kills and interrupts at random instants.
 * faults_kills KILLS INTERRUPTS: how many of each; interrupts come by turns to runs on one thread and on two. */
#include "base/machine.h"
#include "faults.h"

static int kills = 24, interrupts = 40;

/* choir without a shell between, so that its number is the child's. */
static pid_t start(const char *directory, const char *words) {
  char command[640];
  snprintf(command, sizeof command, "cd %s && exec \"$CHOIR\" %s", directory, words);
  return program_start(command, "struck.txt");
}

/* Sends the signal after a time, unless the process ends before; *struck says whether it did not. The exit status. */
static int strike(pid_t child, int number, double after, int *struck) {
  siginfo_t ended = {.si_pid = 0};
  nanosleep(&(struct timespec){(time_t)after, (long)(1e9 * (after - floor(after)))}, NULL);
  *struck = !waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid;
  if (*struck) test_signal(child, number);
  size_t size;
  int status = program_wait(child);
  char *text = program_read("struck.txt", &size);
  snprintf(program_output, sizeof program_output, "%s", text ? text : "");
  free(text);
  return status;
}

/* ---- kills: going on leads to the same bytes */

static double duration(const faults_job *job) {
  faults_prepare(job, "spoilt");
  double begin = ch_machine_seconds();
  program_wait(start("spoilt", job->words));
  return ch_machine_seconds() - begin;
}

static void killed_at_random_instants(void **state) {
  (void)state;
  int done = 0, struck, tries = 0;
  double length[FAULTS_JOBS];
  for (int i = 0; i < FAULTS_JOBS; i++) length[i] = duration(&faults_jobs[i]);
  for (; done < kills; tries++) {
    int i = tries % FAULTS_JOBS;
    const faults_job *job = &faults_jobs[i];
    faults_progress("kills", done, kills);
    faults_prepare(job, "spoilt");
    int status = strike(start("spoilt", job->words), SIGKILL, length[i] * faults_drawn(1, tries), &struck);
    if (status && status != 128 + SIGKILL) fail_msg("%s: status %d: %s", job->name, status, program_output);
    done += status != 0;
    faults_repair(job, "spoilt", "killed");
    faults_nothing_left(job, "spoilt", "killed");
  }
  print_message("%d kills of %d processes: going on led to the same bytes\n", done, tries);
}

/* ---- interrupts: the run saves where it stands */

enum { STEPS = 60 };
#define LONG "--set eval_every=0 --set keep_checkpoints=0 --set steps=60 --config ../config.json --data ../data "

/* The step of the only checkpoint, 0: none. */
static int only_step(const char *run) {
  program_must("ls %s/checkpoints 2>/dev/null | tail -1", run);
  return atoi(program_output);
}

static void interrupted_at_random_instants(void **state) {
  (void)state;
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  int saved = 0, early = 0, late = 0, struck;
  char said[2048];
  double length[3];
  program_must("mkdir every && cd every && choir train --threads 1 " LONG "--set checkpoint_every=1 --out run");
  for (int threads = 1; threads <= 2; threads++) {
    char words[512];
    snprintf(words, sizeof words, "train --threads %d " LONG "--set checkpoint_every=0 --out run", threads);
    program_must("rm -rf spoilt; mkdir spoilt");
    double begin = ch_machine_seconds();
    assert_int_equal(program_wait(start("spoilt", words)), 0);
    length[threads] = ch_machine_seconds() - begin;
  }
  for (int i = 0; saved + early + late < interrupts; i++) {
    int threads = 1 + i % 2, number = numbers[i / 2 % 3];
    char words[512];
    faults_progress("interrupts", saved + early + late, interrupts);
    snprintf(words, sizeof words, "train --threads %d " LONG "--set checkpoint_every=0 --out run", threads);
    program_must("rm -rf spoilt; mkdir spoilt");
    int status = strike(start("spoilt", words), number, length[threads] * faults_drawn(2, i), &struck);
    snprintf(said, sizeof said, "%.2000s", program_output);
    int step = only_step("spoilt/run");
    if (status == 128 + number && !step && !strstr(said, "step")) { /* before there was anything to save */
      early++;
      continue;
    }
    if (status != (step == STEPS ? 0 : 3) || !step)
      fail_msg("signal %d, %d threads: status %d, step %d: %s", number, threads, status, step, said);
    late += step == STEPS;
    saved += step != STEPS;
    char a[128], b[128];
    static const char *const files[] = {"model.safetensors", "state.safetensors", "tokenizer.model"};
    for (size_t k = 0; k < 3; k++) {
      snprintf(a, sizeof a, "every/run/checkpoints/%08d/%s", step, files[k]);
      snprintf(b, sizeof b, "spoilt/run/checkpoints/%08d/%s", step, files[k]);
      if (!program_same(a, b)) fail_msg("signal %d, %d threads, step %d: another %s", number, threads, step, files[k]);
    }
  }
  print_message(
      "%d interrupts: %d checkpoints in the middle and %d at the end, all as an uninterrupted run's; %d came before "
      "the program had begun\n",
      saved + early + late, saved, late, early);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(killed_at_random_instants),
                                     cmocka_unit_test(interrupted_at_random_instants)};
  if (argc > 1) kills = atoi(argv[1]);
  if (argc > 2) interrupts = atoi(argv[2]);
  return kills < 0 || interrupts < 0 ? 2 : cmocka_run_group_tests(tests, faults_setup, program_directory_remove);
}
