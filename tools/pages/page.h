/* HTML pages that hold everything they show. The static parts are files beside this one, embedded when choir is built.
 */
#ifndef CH_PAGES_PAGE_H
#define CH_PAGES_PAGE_H

#include <jansson.h>
#include <stdio.h>

/* NUL-terminated; CMakeLists.txt makes them of the files of these names. */
extern const char ch_page_css[], ch_chart_css[], ch_inspect_css[], ch_inspect_html[], ch_inspect_text_js[],
    ch_inspect_js[];

/* Everything up to the body, with a policy that lets the page fetch nothing, and run nothing unless `scripts`: title as
 * "choir: TITLE", the common style and `style` (or NULL) behind it. */
void ch_page_begin(FILE *out, const char *title, const char *style, int scripts);

/* Text with what HTML would interpret escaped. */
void ch_html_text(FILE *out, const char *text);

/* A key figure among <div class=cards>; nothing where it is not finite. */
void ch_page_card(FILE *out, const char *label, const char *format, double value, const char *unit);

/* What `write` writes, as a file that is whole or not there. The error of `write`, CHOIR_ERROR_MEMORY, CHOIR_ERROR_IO.
 */
int ch_page_save(const char *output, int (*write)(FILE *out, const void *context), const void *context);

/* JSON that may stand in a script element: no "<" and nothing but ASCII. 0, or -1: no memory. */
int ch_html_json(FILE *out, const json_t *json);

#endif
