/* Self-contained HTML pages: one style sheet, the data as one JSON object, and scripts that draw it. The static
 * parts are files in this folder, embedded when choir is built. */
#ifndef CH_PAGES_PAGE_H
#define CH_PAGES_PAGE_H

#include <jansson.h>
#include <stdio.h>

#include "plan/plan.h"

/* NUL-terminated; cmake/tools.cmake generates them from the files with these names. */
extern const char ch_page_css[], ch_page_js[], ch_report_js[], ch_plan_js[], ch_inspect_html[], ch_inspect_text_js[],
    ch_inspect_js[];

typedef struct ch_page {
  const char *title;     /* "choir: TITLE" */
  const char *body;      /* HTML before the scripts; NULL: only <main id=page> */
  const char *script[2]; /* after page.js, which all pages share */
} ch_page;

/* Writes a page atomically. Its content security policy allows no network access, and scripts cannot make markup
 * from text. Takes over `data`, where NULL means that memory ran out. CHOIR_ERROR_MEMORY, CHOIR_ERROR_IO. */
int ch_page_save(const ch_page *page, json_t *data, const char *output);

/* Writes JSON for a script element: without "<", and only ASCII. 0, or -1: no memory. */
int ch_html_json(FILE *out, const json_t *json);

/* Writes a plan as a page. CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY. */
int ch_plan_page(const ch_plan *plan, const char *output);

#endif
