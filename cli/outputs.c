/* What is wrong with an output is said before the work, which may take hours: it is begun and given up. Only the first
 * of several processes writes. */
#include "cli.h"
#include "file/dir.h"
#include "file/file.h"

int cli_check_file(const char *path) {
  ch_file file;
  if (!cli_ranks_first()) return 0;
  if (ch_file_begin(&file, path)) return cli_fail();
  ch_file_abandon(&file);
  return 0;
}

int cli_check_new(const char *path) {
  ch_dir dir;
  if (!cli_ranks_first()) return 0;
  if (ch_dir_begin(&dir, path)) return cli_fail();
  ch_dir_end(&dir, CHOIR_ERROR_INTERRUPTED);
  return 0;
}
