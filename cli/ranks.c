/* Several processes at one verb: started by mpirun or srun, this one is one of them. The first one speaks. */
#include <stdlib.h>

#include "cli.h"

static choir_ranks *ranks;

const choir_ranks *cli_ranks(void) { return ranks; }

/* What several processes do together; of every other verb each would do the same work again. */
static int is_shared(const cli_verb *verb) {
  const cli_verb *const shared[] = {&cli_train, &cli_eval, &cli_forward, &cli_stats};
  for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
    if (verb == shared[i]) return 1;
  return 0;
}

int cli_ranks_join(const cli_verb *verb) {
  if (choir_ranks_join(&ranks)) return cli_fail();
  int size = choir_ranks_size(ranks);
  if (choir_ranks_rank(ranks)) cli_be_silent();
  if (size == 1 || is_shared(verb)) return 0;
  return cli_fail_with("is for one process, and %d were started together; start it without mpirun or srun", size);
}

void cli_ranks_leave(void) {
  choir_ranks_leave(ranks);
  ranks = NULL;
}

int cli_ranks_first(void) { return choir_ranks_rank(ranks) == 0; }

int cli_ranks_no_pipe(const char *path) {
  if (choir_ranks_size(ranks) == 1 || path[0] != '-' || path[1]) return 0;
  return cli_fail_with("'-' stands for a pipe, which reaches one of %d processes: name a file",
                       choir_ranks_size(ranks));
}
