#include "pages/page.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "choir/version.h"
#include "file/file.h"
#include "file/json.h"
#include "plan/plan.h"

int ch_html_json(FILE *out, const json_t *json) {
  char *text = json ? ch_json_dump(json, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6)) : NULL;
  if (!text) return -1;
  for (const char *c = text; *c; c++) { /* these characters occur in JSON only inside strings */
    if (*c == '<' || *c == '>' || *c == '&')
      fprintf(out, "\\u%04x", (unsigned)*c);
    else
      fputc(*c, out);
  }
  free(text);
  return 0;
}

static void escape(FILE *out, const char *text) {
  for (; *text; text++) {
    if (strchr("<>&\"'", *text))
      fprintf(out, "&#%d;", *text);
    else
      fputc(*text, out);
  }
}

static int write_page(FILE *out, const ch_page *page, const json_t *data) {
  fputs(
      "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><meta http-equiv=Content-Security-Policy content=\"default-src "
      "'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
      "require-trusted-types-for 'script'\"><title>choir: ",
      out);
  escape(out, page->title);
  fprintf(out, "</title><style>\n%s</style>\n%s", ch_page_css,
          page->body ? page->body : "<body>\n<main id=page></main>\n");
  fputs(
      "<noscript><p><strong>This page draws itself with the script that it carries; scripts are switched off "
      "here.</strong></p></noscript>\n<script type=\"application/json\" id=data>\n",
      out);
  int failed = ch_html_json(out, data);
  fprintf(out, "\n</script>\n<script>\n%s", ch_page_js);
  for (int i = 0; i < 2 && page->script[i]; i++) fputs(page->script[i], out);
  fputs("</script>\n</body>\n</html>\n", out);
  return failed;
}

int ch_page_save(const ch_page *page, json_t *data, const char *output) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  int failed = !out || write_page(out, page, data) || ferror(out);
  if (out && fclose(out)) failed = 1;
  int code =
      failed ? ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the page", output) : ch_file_save(output, text, bytes);
  free(text);
  json_decref(data);
  return code;
}

int ch_plan_page(const ch_plan *plan, const char *output) {
  const ch_page page = {.title = plan->cluster.name, .script = {ch_plan_js}};
  json_t *data = json_object(), *layouts = json_array();
  for (int i = 0; i < plan->count; i++) ch_json_add(layouts, ch_plan_layout_json(plan, &plan->layout[i]));
  ch_json_put(data, "version", json_string(choir_version()));
  ch_json_put(data, "plan", ch_plan_about_json(plan));
  ch_json_put(data, "layouts", layouts);
  return ch_page_save(&page, data, output);
}
