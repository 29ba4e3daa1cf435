#include "study/page.h"

#include <stdlib.h>

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

int ch_html_json(FILE *out, const json_t *json) {
  char *text = json ? json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6)) : NULL;
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
