#include "study/study.h"
int ch_study_page(const ch_study *study, const json_t *summary, const char *path) {
  (void)study;
  (void)summary;
  (void)path;
  return 0;
}
