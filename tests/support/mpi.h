/* For tests of the program under mpirun. */
#ifndef CH_TESTS_MPI_H
#define CH_TESTS_MPI_H

#include "program.h"

/* As many processes as asked for, on any number of cores, by shared memory without another process's permission: Open
 * MPI 4 asks vader, 5 smsc. Sanitizers do not report leaks: those are MPI's own. */
#define MPIRUN_SET "export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0; "
#define MPIRUN_WORDS                                                                                               \
  "mpirun --oversubscribe --allow-run-as-root --bind-to none --mca btl ^tcp,openib,uct,ofi,usnic --mca smsc ^cma " \
  "--mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 "
#define MPIRUN MPIRUN_SET MPIRUN_WORDS
/* Behind MPIRUN: two ranks, each with a command of its own, without single quotes. Not by a colon: the mpirun of Open
 * MPI 5.0.7 (Debian 13) dies of one. */
#define TWO(first, second) "-n 2 sh -c 'if test $OMPI_COMM_WORLD_RANK = 0; then exec " first "; else " second "; fi' "
#ifndef CHOIR_SHORT_MESSAGE
#define CHOIR_SHORT_MESSAGE "" /* as CHOIR_SHIM */
#endif
#define TRAIN "\"$CHOIR\" train --threads 1 "
#define FRESH \
  TRAIN "--config config.json --data data --set batch_sequences=8 --set grad_chunks=8 --set checkpoint_every=3 "

/* Nonzero, having said why: nothing here can be tried. */
static inline int without_mpi(void) {
  if (program_run("command -v mpirun")) return 1;
  program_run(MPIRUN "-n 2 " TRAIN "--out nothing --data data --config config.json");
  return strstr(program_output, "has no MPI") != NULL;
}
#define needs_mpi() \
  if (without_mpi()) test_skip("choir under mpirun: no mpirun here, or a build without MPI")

/* Whether a process works in this test's directory, or below it, and has the line in its environment. */
static inline int mpi_is_ours(const char *process, const char *line) {
  char path[64], at[PATH_MAX], text[1 << 15];
  snprintf(path, sizeof path, "/proc/%.20s/cwd", process);
  ssize_t length = readlink(path, at, sizeof at - 1);
  if (length < 0) return 0;
  at[length] = 0;
  size_t own = strlen(program_directory);
  if (strncmp(at, program_directory, own) || (at[own] && at[own] != '/')) return 0;
  snprintf(path, sizeof path, "/proc/%.20s/environ", process);
  int file = open(path, O_RDONLY);
  if (file < 0) return 0;
  length = read(file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  for (const char *word = text; word < text + length; word += strlen(word) + 1)
    if (!strcmp(word, line)) return 1;
  return 0;
}

/* The process number of a rank of the job in this directory; 0: no such process. */
static inline pid_t mpi_process(int rank) {
  char line[64];
  pid_t found = 0;
  snprintf(line, sizeof line, "OMPI_COMM_WORLD_RANK=%d", rank);
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && !found && (entry = readdir(processes));)
    if (atoi(entry->d_name) > 0 && mpi_is_ours(entry->d_name, line)) found = atoi(entry->d_name);
  if (processes) closedir(processes);
  return found;
}

#endif
