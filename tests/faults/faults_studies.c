/* Studies, killed: `choir study` and the programs that it runs, in the place of a random call of any of them, or one or
 * all of them at a random instant; or calls that fail. The same command then goes on to the results and the report of a
 * study that nobody disturbed. faults_studies KILLS */
#include "base/machine.h"
#include "faults.h"

static int kills = 3;

#define STUDY "study run ../two.json --data ../data --scale ../scale.json --out st --jobs 1"

typedef enum { A_CALL, THE_STUDY, ITS_PROGRAMS, ALL, WAYS } way;

/* Their calls, and about how many one process makes of each class. */
static const struct {
  shim_class class;
  int max;
} calls[] = {{SHIM_WRITE, 120}, {SHIM_FSYNC, 24},  {SHIM_RENAME, 12}, {SHIM_OPEN, 3000},
             {SHIM_MKDIR, 12},  {SHIM_UNLINK, 10}, {SHIM_READ, 3000}, {SHIM_FLOCK, 2}};
enum { CALLS = sizeof calls / sizeof *calls };

/* Early calls as often as late ones: only Python makes thousands. Nonzero: the call fails, and nobody is killed. */
static int draw_fault(int number, char *fault, size_t size) {
  static const char *const names[] = SHIM_NAMES;
  static const int errors[] = {0, EIO, 0, ENOSPC};
  int c = (int)(CALLS * faults_drawn(1, number)), error = errors[number / WAYS % 4];
  snprintf(fault, size, "%s:%d:%d", names[calls[c].class], error, (int)pow(calls[c].max, faults_drawn(2, number)));
  return error;
}

/* How many processes work in the directory, but `spared` (0: nobody); each gets the signal (0: none). */
static int at_work(const char *directory, pid_t spared, int number) {
  char here[256], link[288], cwd[256];
  int found = 0;
  if (!realpath(directory, here)) return 0;
  DIR *processes = opendir("/proc");
  assert_non_null(processes);
  for (struct dirent *entry; (entry = readdir(processes));) {
    pid_t process = (pid_t)atoi(entry->d_name);
    snprintf(link, sizeof link, "/proc/%.16s/cwd", entry->d_name);
    ssize_t length = process > 0 && process != spared ? readlink(link, cwd, sizeof cwd - 1) : -1;
    if (length < 0) continue;
    cwd[length] = 0;
    if (strcmp(cwd, here)) continue;
    found++;
    if (number) test_signal(process, number);
  }
  closedir(processes);
  return found;
}

static const char *const said_of[WAYS] = {"in the place of a call", "the study", "the programs that it runs", "all"};

static pid_t start(const char *directory, const char *fault) {
  char command[512];
  snprintf(command, sizeof command, "cd %s && %s%s; exec \"$CHOIR\" " STUDY, directory,
           fault ? "export FAULT_COUNTS=../counts LD_PRELOAD='" CHOIR_SHIM "' FAULT=" : "", fault ? fault : "true");
  return program_start(command, "struck.txt");
}

/* Whether the study still runs, a while later. */
static int still(pid_t child, double seconds) {
  siginfo_t ended = {.si_pid = 0};
  program_nap(seconds);
  return !waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid;
}

/* Runs a study and strikes its programs once some have started. Returns the study's exit status; *struck is 0 if the
 * study ended first. */
static int strike(way how, const char *fault, double after, int *struck) {
  pid_t child = start("spoilt", how == A_CALL ? fault : NULL);
  *struck = 0;
  if (how != A_CALL) {
    int there = still(child, after);
    while (there && how != THE_STUDY && !at_work("spoilt", child, 0)) there = still(child, 0.001);
    if (there && how != THE_STUDY) *struck += at_work("spoilt", child, SIGKILL);
    if (there && how != ITS_PROGRAMS) *struck += !test_signal(child, SIGKILL);
  }
  int status = program_wait(child);
  size_t size = 0;
  char *bytes = program_read("counts", &size), *said = program_read("struck.txt", &(size_t){0});
  if (bytes && size == sizeof(shim_counts)) *struck += ((shim_counts *)(void *)bytes)->failed > 0;
  snprintf(program_output, sizeof program_output, "%s", said ? said : "");
  free(said);
  free(bytes);
  return status;
}

/* What a study killed has left running saves and ends. */
static void wait_for_its_programs(void) {
  enum { TRIES = 600 }; /* a minute */
  for (int tries = 0; at_work("spoilt", 0, 0); program_nap(0.1))
    if (tries++ == TRIES) fail_msg("its programs go on a minute after the study was killed");
}

/* Everything that shall be the same, in one file: all but times, dates, and logs for people. */
static void gather(const char *directory) {
  program_must(
      "cd %s/st && { ls -A results two-scale runs trunks runs/*; sort results/*.jsonl >../results; "
      "for f in ../results two-scale/report.html "
      "two-scale/table.md two-scale/summary.json two-scale/figures/* runs/*/metrics.jsonl "
      "runs/*/checkpoints/00000010/*; do echo \"$f\"; sed -E 's/\"(step_seconds|threads|date)\":"
      "(\"[^\"]*\"|[^,}]*)//g' \"$f\"; done; } >../gathered",
      directory);
}

static void killed_and_resumed(void **state) {
  if (!*state) test_skip("studies: a Python with what they need is not installed");
  int done = 0, failed = 0, tries = 0, of[WAYS] = {0}, struck;
  program_must("mkdir study");
  double begin = ch_machine_seconds();
  if (program_wait(start("study", NULL))) fail_msg("%s", program_read("struck.txt", &(size_t){0}));
  double length = ch_machine_seconds() - begin;
  gather("study");
  for (; done < kills; tries++) {
    way how = (way)(tries % WAYS);
    char fault[64], what[128];
    int fails = draw_fault(tries, fault, sizeof fault) && how == A_CALL;
    double after = length * faults_drawn(3, tries);
    snprintf(what, sizeof what, "%s (%s, %.1f s) %s", said_of[how], fault, after, fails ? "fails" : "killed");
    faults_progress("kills of studies", done, kills);
    program_must("rm -rf spoilt counts && mkdir spoilt");
    int status = strike(how, fault, after, &struck);
    if (how != A_CALL && !status) struck = 0; /* just as they ended */
    if (fails ? status > 1 : !status != !struck) fail_msg("%s: status %d: %s", what, status, program_output);
    if (status == 1 && !*program_output) fail_msg("%s: status 1 without a word", what);
    wait_for_its_programs();
    if (struck && fails) failed++;
    if (struck && !fails) done++, of[how]++;
    status = program_run("cd spoilt && choir " STUDY);
    if (status) fail_msg("%s: status %d of going on: %s", what, status, program_output);
    gather("spoilt");
    if (!program_same("study/gathered", "spoilt/gathered")) fail_msg("%s: another result", what);
    if (program_run("! find spoilt | grep -e choir-tmp- -e '[.]new$'")) fail_msg("%s: left: %s", what, program_output);
  }
  print_message(
      "%d kills of %d studies (%d in the place of a call, %d the study alone, %d programs of it, %d all): "
      "going on led to the same results, also after %d calls that failed\n",
      done, tries, of[A_CALL], of[THE_STUDY], of[ITS_PROGRAMS], of[ALL], failed);
}

static int setup(void **state) {
  static int there;
  static const char scale[] =
      "{\"config\": {\"model\": {\"layers\": 2, \"d_model\": 16, \"d_hidden\": 16, \"heads\": 2, \"experts\": 2},\n"
      " \"train\": {\"sequence_length\": 16, \"batch_sequences\": 2, \"checkpoint_every\": 2}},\n"
      " \"budgets\": [320], \"seeds\": 1, \"rates\": [0.05], \"deviation\": 0.01}\n";
  static const char recipe[] =
      "{\"name\": \"two\", \"title\": \"Two arms\", \"question\": \"Which?\",\n"
      " \"arms\": [{\"name\": \"EC\", \"set\": {\"router.name\": \"expert_choice\"}},\n"
      "          {\"name\": \"top-2\", \"set\": {\"router.name\": \"gshard_top2\"}}],\n"
      " \"claims\": [{\"text\": \"EC ends below.\", \"kind\": \"loss\", \"arm\": \"EC\", \"rival\": \"top-2\"}]}\n";
  setenv("GOMP_SPINCOUNT", "1000", 1);
  if (program_directory_make(state)) return -1;
  *state = program_run("choir study list") ? NULL : &there;
  program_corpus("corpus.txt", 20, 1);
  test_ok(ch_file_save("scale.json", scale, sizeof scale - 1));
  test_ok(ch_file_save("two.json", recipe, sizeof recipe - 1));
  program_must(
      "choir tokenizer train --vocab-size 300 --out tokenizer.model corpus.txt && choir data build --tokenizer "
      "tokenizer.model --holdout 0.1 --out data corpus.txt");
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(killed_and_resumed)};
  if (argc > 1) kills = atoi(argv[1]);
  return kills < 0 ? 2 : cmocka_run_group_tests(tests, setup, program_directory_remove);
}
