/* The docs are true: commands in them run, fit a terminal of 80 columns, and every verb is one. Lines of four spaces
 * that begin with `choir` are run, in the order of the page, on small made-up data; CONTRIBUTING.md says how a page
 * marks those that take too long. */
#include <glob.h>
#include <sys/stat.h>

#include "npy/npy.h"
#include "program.h"

static char *read_page(const char *page) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", CHOIR_SOURCE_DIR, page);
  size_t size;
  char *text = program_read(path, &size);
  if (!text) fail_msg("%s: %s", path, choir_error_message());
  return text;
}

static void write_scores(void) {
  float score[64 * 4];
  for (int i = 0; i < 64 * 4; i++) score[i] = (float)fabs(sin(i * i));
  test_ok(ch_npy_write("scores.npy", &(ch_npy){.type = CH_NPY_FLOAT32, .dims = 2, .shape = {64, 4}, .data = score}));
}

enum { COLUMNS = 80 };

/* Everything that pages take for granted, once; what they make they make themselves. */
static int setup(void **state) {
  if (program_setup(state) || mkdir("books", 0777) || mkdir("news", 0777) || mkdir("configs", 0777)) return -1;
  program_corpus("books/one.txt", 60, 2);
  program_corpus("books/two.txt", 60, 3);
  program_corpus("news/one.txt", 60, 4);
  program_corpus("page.txt", 3, 5);
  write_scores();
  setenv("COLUMNS", "80", 1);
  program_must(
      "set -e; xz books/*.txt; gzip news/one.txt; cp tokenizer.model en.model; for name in nano pico; do"
      "  sed 's/\"layers\"/\"vocab_size\": 320, \"layers\"/; s/\"steps\": 60/\"steps\": 20/' config.json "
      ">configs/$name.json; cp configs/$name.json $name;" /* a file goes before a built-in config */
      "done; sed 's/\"steps\": 2000/\"steps\": 5/' '" CHOIR_SOURCE_DIR
      "/configs/modern-nano.json' >modern-nano; printf 'One prompt.\\nAnother.\\n' >lines.txt;"
      "printf '0.6 0.3 0.1\\n0.3 0.6 0.1\\n0.7 0.2 0.1\\n0.1 0.4 0.5\\n' | tee scores.csv >table.txt;"
      "choir tokenizer encode --tokenizer en.model --length 128 --out tokens.npy page.txt;"
      "choir train --config configs/nano.json --data data --out run;"
      "mkdir -p glue/RTE tasks/CB examples; cp -r '" CHOIR_SOURCE_DIR
      "/examples/clusters' examples; for part in train dev; do"
      "  printf 'index\\tsentence1\\tsentence2\\tlabel\\n0\\tIt rains.\\tIt is wet.\\tentailment\\n"
      "1\\tIt rains.\\tIt is dry.\\tnot_entailment\\n' >glue/RTE/$part.tsv; done; for part in train val; do"
      "  printf '%%s\\n%%s\\n' '{\"premise\":\"It rains.\",\"hypothesis\":\"It is "
      "wet.\",\"label\":\"entailment\",\"idx\":0}'"
      "    '{\"premise\":\"It rains.\",\"hypothesis\":\"It is dry.\",\"label\":\"contradiction\",\"idx\":1}'"
      "    >tasks/CB/$part.jsonl; done");
  return 0;
}

/* Sizes that would take minutes become small. */
static void shorten(const char *line, int length, char *command, size_t size) {
  static const char *const large[] = {"--vocab-size ", "train.steps=", "--max-tokens "};
  static const char *const small[] = {"320", "5", "20"};
  size_t used = 0;
  for (int at = 0; at < length && used + 8 < size;) {
    int found = -1;
    for (int i = 0; i < 3; i++)
      if (!strncmp(line + at, large[i], strlen(large[i]))) found = i;
    if (found < 0) {
      command[used++] = line[at++];
      continue;
    }
    used += (size_t)snprintf(command + used, size - used, "%s%s", large[found], small[found]);
    for (at += (int)strlen(large[found]); line[at] >= '0' && line[at] <= '9';) at++;
  }
  command[used] = 0;
}

/* Removes the output of a command, which must not be there before it runs. */
static void clear_output(const char *command) {
  char path[256];
  const char *out = strstr(command, "--out ");
  if (out && sscanf(out + 6, "%255s", path) == 1) program_must("rm -rf %s", path);
}

/* Lines that need something, or much time: "# needs Python", "# takes hours". */
static int is_marked(const char *line, const char *end) {
  size_t length = (size_t)(end - line);
  return memmem(line, length, "# takes ", 8) || memmem(line, length, "# needs ", 8);
}

/* Nonzero: the command prints text of its own width: a model's, a file's, JSON, or a page of C. */
static int any_width(const char *command) {
  static const char *const words[] = {"generate", "--json", "--requests", "cmake ", "cc ", "python3 "};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strstr(command, words[i])) return 1;
  return 0;
}

/* No line of what the last command printed is wider than the terminal. */
static void fits(const char *page, const char *command) {
  for (const char *line = program_output; *line && !any_width(command);) {
    int columns = 0;
    const char *end = strchrnul(line, '\n');
    for (const char *c = line; c < end; c++) columns += (*c & 0xC0) != 0x80; /* UTF-8 */
    if (columns > COLUMNS)
      fail_msg("%s: %s: a line of %d columns:\n%.*s", page, command, columns, (int)(end - line), line);
    line = end + (*end != 0);
  }
}

static int run_page(const char *page) {
  char *text = read_page(page), command[1024];
  int count = 0;
  for (char *line = text, *end; *line; line = end + (*end != 0)) {
    end = strchrnul(line, '\n');
    char *verb = memmem(line, (size_t)(end - line), "choir ", 6);
    if (strncmp(line, "    ", 4) || !verb || is_marked(line, end)) continue;
    if (verb != line + 4 && strncmp(line + 4, "echo ", 5)) continue;
    shorten(line + 4, (int)(end - line) - 4, command, sizeof command);
    clear_output(command);
    int status = program_run("%s", command);
    if (status) fail_msg("%s: status %d of: %s\n%s", page, status, command, program_output);
    fits(page, command);
    count++;
  }
  free(text);
  return count;
}

static void commands_run(void **state) {
  glob_t found = {0};
  int count = run_page("README.md") + run_page("CONTRIBUTING.md");
  assert_int_equal(glob(CHOIR_SOURCE_DIR "/docs/*.md", 0, NULL, &found), 0);
  for (size_t i = 0; i < found.gl_pathc; i++) count += run_page(found.gl_pathv[i] + strlen(CHOIR_SOURCE_DIR) + 1);
  globfree(&found);
  assert_true(count >= 30);
}

static void verbs_exist(void **state) {
  program_must(
      "cd '%s'; grep -ohE '`choir [a-z]+' README.md CONTRIBUTING.md docs/*.md | sort -u | grep -v help | while read -r "
      "choir verb; do"
      "  choir help $verb >/dev/null || exit 1; done",
      CHOIR_SOURCE_DIR);
}

/* The lines of four spaces behind a heading, as the body of main. */
static void write_example(const char *page, const char *heading, const char *file) {
  char *text = read_page(page), *line = strstr(text, heading);
  FILE *f = fopen(file, "w");
  assert_non_null(line);
  assert_non_null(f);
  fprintf(f, "#include <choir/choir.h>\n#include <stdio.h>\nint main(void) {\n");
  line = strstr(line, "\n    ") + 1;
  for (char *end; !strncmp(line, "    ", 4); line = end + 1) {
    end = strchrnul(line, '\n');
    fprintf(f, "%.*s\n", (int)(end - line), line);
    if (!*end) break;
  }
  fprintf(f, "return 0;\n}\n");
  fclose(f);
  free(text);
}

static void the_example_in_c_runs(void **state) {
#ifdef CHOIR_SANITIZED
  test_skip("the example in C of docs/generation.md: its program would need the sanitizer of the library, too");
#endif
  char build[512];
  snprintf(build, sizeof build, "%s", CHOIR_PROGRAM);
  *strrchr(build, '/') = 0;
  write_example("docs/generation.md", "## The library", "example.c");
  program_must(
      "cc -Wall -Wextra -Werror -I'%s/include' -I'%s/include' example.c -L'%s' -lchoir -Wl,-rpath,'%s' -o "
      "example && ./example",
      CHOIR_SOURCE_DIR, build, build, build);
  assert_true(strlen(program_output) > 10);
}

TEST_MAIN(setup, program_directory_remove, commands_run, the_example_in_c_runs, verbs_exist)
