/* Pages of choir: reads the JSON data in a page, and runs its script in a browser. */
#ifndef CH_TESTS_PAGE_H
#define CH_TESTS_PAGE_H

#include "base/text.h"
#include "program.h"

/* The JSON object of a page, which is fetched from nowhere and has the scripts of every page. */
static inline json_t *page_data(const char *path) {
  static const char begin[] = "<script type=\"application/json\" id=data>", space[] = "http://www.w3.org/2000/svg\"";
  static const char *const refused[] = {"http:", "https:", " src=", "@import", "url(", "<link", "<iframe", "innerHTML"};
  size_t size;
  char *page = program_read(path, &size);
  assert_non_null(page);
  assert_int_equal(strlen(page), size);              /* no NUL in it */
  assert_int_equal(ch_utf8_valid(page, size), size); /* as its head says */
  assert_non_null(
      strstr(page,
             "Content-Security-Policy content=\"default-src 'none'; base-uri 'none'; form-action 'none'; "
             "style-src 'unsafe-inline'; script-src 'unsafe-inline'; require-trusted-types-for 'script'\">"));
  char *from = strstr(page, begin), *to = from ? strstr(from, "\n</script>\n<script>\n") : NULL;
  assert_true(from && to);
  size_t bytes = (size_t)(to - (from += sizeof begin - 1));
  assert_null(memchr(from, '<', bytes));
  json_error_t error;
  json_t *data = json_loadb(from, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
  if (!data) fail_msg("%s: not JSON: line %d: %s", path, error.line, error.text);
  char *name = strstr(to, space); /* the name of a format, which nothing fetches */
  assert_non_null(name);
  memset(name, ' ', sizeof space - 1);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    if (strstr(page, refused[i])) fail_msg("%s has %s", path, refused[i]);
  free(page);
  return data;
}

/* The elements of a page after its script has run (dom.js beside this); `arguments` as there; NULL: node is missing. */
static inline char *page_dom(const char *path, const char *arguments) {
  size_t size;
  if (program_run("command -v node >/dev/null")) {
    printf("NOT TESTED: the script of %s: node is missing\n", path);
    return NULL;
  }
  program_must("node '" CHOIR_SOURCE_DIR "/tests/support/dom.js' '%s' %s >dom.html", path, arguments);
  return program_read("dom.html", &size);
}

/* The page, after its script has run, contains all of these words; a word after '!' it must not contain. */
static inline void page_shows(const char *path, const char *arguments, const char *const *words) {
  char *dom = page_dom(path, arguments);
  for (; dom && *words; words++) {
    const char *word = *words + (**words == '!');
    if ((strstr(dom, word) != NULL) == (word != *words)) fail_msg("%s %s: %s", path, arguments, *words);
  }
  free(dom);
}
#define PAGE_SHOWS(path, arguments, ...) page_shows(path, arguments, (const char *const[]){__VA_ARGS__, NULL})

#endif
