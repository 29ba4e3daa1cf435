#include "pages/page.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"

void ch_html_text(FILE *out, const char *text) {
  for (; *text; text++) {
    switch (*text) {
      case '<':
        fputs("&lt;", out);
        break;
      case '>':
        fputs("&gt;", out);
        break;
      case '&':
        fputs("&amp;", out);
        break;
      case '"':
        fputs("&quot;", out);
        break;
      case '\'':
        fputs("&#39;", out);
        break;
      default:
        fputc(*text, out);
    }
  }
}

void ch_page_card(FILE *out, const char *label, const char *format, double value, const char *unit) {
  if (!isfinite(value)) return;
  fputs("<div><b>", out);
  ch_print(out, format, value);
  ch_html_text(out, unit);
  fputs("</b><span>", out);
  ch_html_text(out, label);
  fputs("</span></div>\n", out);
}

int ch_page_save(const char *output, int (*write)(FILE *out, const void *context), const void *context) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  int code = out ? write(out, context) : CHOIR_OK, failed = !out || ferror(out);
  if (out && fclose(out)) failed = 1;
  if (!code && failed) code = ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the page", output);
  if (!code) code = ch_file_save(output, text, bytes);
  free(text);
  return code;
}

int ch_html_json(FILE *out, const json_t *json) {
  char *text = json ? ch_json_dump(json, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6)) : NULL;
  if (!text) return -1;
  for (const char *c = text; *c; c++) { /* outside of strings JSON has none of these */
    if (*c == '<' || *c == '>' || *c == '&')
      fprintf(out, "\\u%04x", (unsigned)*c);
    else
      fputc(*c, out);
  }
  free(text);
  return 0;
}

void ch_page_begin(FILE *out, const char *title, const char *style, int scripts) {
  fputs(
      "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><meta http-equiv=Content-Security-Policy content=\"default-src "
      "'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'",
      out);
  fprintf(out, "%s\"><title>choir: ", scripts ? "; script-src 'unsafe-inline'" : "");
  ch_html_text(out, title);
  fprintf(out, "</title><style>\n%s%s%s</style>\n", ch_chart_css, ch_page_css, style ? style : "");
}
