#include "pages/report.h"

#include "base/error.h"
#include "choir/version.h"
#include "file/json.h"
#include "pages/page.h"

static int add_run(json_t *runs, const char *directory) {
  ch_history history;
  CH_TRY(ch_history_read(directory, &history));
  ch_json_add(runs, ch_history_json(directory, &history));
  ch_history_free(&history);
  return CHOIR_OK;
}

int ch_report_write(const char *const *run_directories, int count, const char *output) {
  if (count < 1 || count > CH_REPORT_MOST)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d runs; a report is about 1 to %d", count, CH_REPORT_MOST);
  json_t *data = json_object(), *runs = json_array();
  int code = CHOIR_OK;
  for (int i = 0; i < count && !code; i++) code = add_run(runs, run_directories[i]);
  ch_json_put(data, "version", json_string(choir_version()));
  ch_json_put(data, "runs", runs);
  const ch_page page = {.title = count > 1 ? "runs compared" : run_directories[0], .script = {ch_report_js}};
  if (!code) return ch_page_save(&page, data, output);
  json_decref(data);
  return code;
}
