/* HTML pages that hold everything they show: one style sheet, the data as one JSON object, and scripts that draw it.
 * The static parts are files beside this one, embedded when choir is built. */
#ifndef CH_PAGES_PAGE_H
#define CH_PAGES_PAGE_H

#include <jansson.h>
#include <stdio.h>

#include "plan/plan.h"

/* NUL-terminated; cmake/tools.cmake makes them of the files of these names. */
extern const char ch_page_css[], ch_page_js[], ch_report_js[], ch_plan_js[], ch_inspect_html[], ch_inspect_text_js[],
    ch_inspect_js[];

typedef struct ch_page {
  const char *title;     /* "choir: TITLE" */
  const char *body;      /* before the scripts; NULL: <main id=page> alone */
  const char *script[2]; /* after page.js, which all pages share */
} ch_page;

/* Writes a file that is whole or not there. Its policy lets it fetch nothing, and lets scripts make no markup of text.
 * Takes over `data`, where NULL means memory that ran out. CHOIR_ERROR_MEMORY, CHOIR_ERROR_IO. */
int ch_page_save(const ch_page *page, json_t *data, const char *output);

/* JSON that may be in a script element: no "<" and nothing but ASCII. 0, or -1: no memory. */
int ch_html_json(FILE *out, const json_t *json);

/* Writes a plan as one such file. CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY. */
int ch_plan_page(const ch_plan *plan, const char *output);

#endif
