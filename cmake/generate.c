/* generate ROOT [--check]: writes what files of the tree say about the fields of configs, from the .def files of
 * src/config: what stands between a line with "generated: KIND ..." and one with "generated: end". --check changes
 * nothing, and fails where something would change. Kinds: "fields", a table of all fields; "options", a table of
 * routers with the options of each; "keywords SECTION [but NAMES]", members of a TypedDict in Python; "rows of fields"
 * and "rows of routers", elements of a tuple in Python; "takers", of a dictionary; "words FORM", of a fuzzer's
 * dictionary: names by FORM ("\x22%s\x22:" or "%s="), then their words */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "choir/choir.h"
#include "file/file.h"
#include "model/config.h"
#include "moe/router.h"

static const char *const files[] = {"docs/formats.md",        "docs/routers.md",          "python/choir/fields.py",
                                    "python/choir/_table.py", "fuzz/dictionaries/config", "fuzz/dictionaries/set"};

static const char *name_of(const char *path) { return strrchr(path, '.') + 1; }

/* The default that all routers have which take the option; NULL: they differ. Of a field that is none, the field's. */
static const char *common_default(const choir_field *field, choir_field *option) {
  const char *value = NULL;
  static char first[CHOIR_VALUE_BYTES];
  for (const char *const *router = choir_router_names(); *router; router++)
    for (int i = 0; i < choir_router_option_count(*router); i++) {
      choir_router_option_at(*router, i, option);
      if (strcmp(option->key, field->key)) continue;
      if (value && strcmp(first, option->value)) return NULL;
      value = strcpy(first, option->value);
    }
  return value ? value : field->value;
}

static void write_default(FILE *out, const choir_field *field, const ch_field *f) {
  choir_field option;
  const char *value = common_default(field, &option), *quote = f->kind >= CH_FIELD_WORD ? "\"" : "";
  if (!value)
    fprintf(out, "the router's");
  else if (f->kind < CH_FIELD_FLAG && f->value == 0 && f->low > 0 && !f->open)
    fprintf(out, "required");
  else
    fprintf(out, "`%s%s%s`", quote, value, quote);
}

static void write_fields(FILE *out) {
  static const char integer[] = "an integer from ";
  fprintf(out, "| key | value | default | meaning |\n|---|---|---|---|\n");
  for (int i = 0; i < choir_config_field_count(); i++) {
    char text[400];
    choir_field field;
    choir_config_field_at(i, &field);
    const char *value = ch_field_wanted(&ch_fields[i], text, sizeof text);
    if (!strncmp(value, integer, strlen(integer))) value += strlen(integer);
    fprintf(out, "| `%s` | %s | ", field.key, value);
    write_default(out, &field, &ch_fields[i]);
    fprintf(out, " | %s |\n", field.help);
  }
}

static void write_options(FILE *out) {
  fprintf(out, "| name | options, with their defaults |\n|---|---|\n");
  for (const char *const *router = choir_router_names(); *router; router++) {
    int count = choir_router_option_count(*router);
    fprintf(out, "| `%s` |%s", *router, count ? "" : " -");
    for (int i = 0; i < count; i++) {
      choir_field option;
      choir_router_option_at(*router, i, &option);
      fprintf(out, "%s `%s` %s", i ? "," : "", name_of(option.key), option.value);
    }
    fprintf(out, " |\n");
  }
}

static const char *python_type(choir_field_kind kind) {
  static const char *const types[] = {
      [CHOIR_FIELD_INTEGER] = "int", [CHOIR_FIELD_NUMBER] = "float", [CHOIR_FIELD_STEPS] = "float",
      [CHOIR_FIELD_FLAG] = "bool",   [CHOIR_FIELD_WORD] = "str",     [CHOIR_FIELD_TEXT] = "str"};
  return types[kind];
}

/* Whether `list` has the word, between blanks. */
static int has(const char *list, const char *word) {
  char padded[256], wanted[80];
  snprintf(padded, sizeof padded, "%s ", list);
  snprintf(wanted, sizeof wanted, " %s ", word);
  return strstr(padded, wanted) != NULL;
}

/* what: "model.router but name cap". */
static void write_keywords(FILE *out, const char *what) {
  size_t section = strcspn(what, " ");
  for (int i = 0; i < choir_config_field_count(); i++) {
    choir_field field;
    choir_config_field_at(i, &field);
    const char *name = name_of(field.key);
    size_t length = (size_t)(name - 1 - field.key);
    if (section != length || strncmp(what, field.key, length) || has(what + section, name)) continue;
    fprintf(out, "    %s: %s\n", name, python_type(field.kind));
  }
}

/* A number in Python. */
static void write_number(FILE *out, double value) {
  char text[32];
  ch_format_exact(text, sizeof text, value);
  fprintf(out, ", %s", text);
}

static void write_field_rows(FILE *out) {
  static const char *const kinds[] = {
      [CHOIR_FIELD_INTEGER] = "integer", [CHOIR_FIELD_NUMBER] = "number", [CHOIR_FIELD_STEPS] = "steps",
      [CHOIR_FIELD_FLAG] = "flag",       [CHOIR_FIELD_WORD] = "word",     [CHOIR_FIELD_TEXT] = "text"};
  for (int i = 0; i < choir_config_field_count(); i++) {
    choir_field f;
    choir_config_field_at(i, &f);
    fprintf(out, "    (\"%s\", \"%s\", \"%s\"", f.key, kinds[f.kind], f.value);
    write_number(out, f.low);
    write_number(out, f.high);
    fprintf(out, ", %s, (", f.above ? "True" : "False");
    int is_name = !strcmp(f.key, "model.router.name"); /* its words are the routers, which a plug-in may add to */
    for (const char *const *word = is_name ? NULL : f.words; word && *word; word++) fprintf(out, "\"%s\", ", *word);
    fprintf(out, "),\n     \"%s\"),\n", f.help);
  }
}

/* Which routers take each option of choir's own. */
static void write_takers(FILE *out) {
  static const char *const takers[] = {
#define OPTION(takers, ...) #takers,
#include "config/router.def"
  };
  for (int i = 0; ch_router_option_names[i]; i++)
    fprintf(out, "    \"%s\": \"%s\",\n", ch_router_option_names[i], takers[i]);
}

/* The names of the options that a router takes. */
static void write_router_options(FILE *out, const char *router) {
  choir_field option;
  for (int i = 0; i < choir_router_option_count(router); i++)
    if (!choir_router_option_at(router, i, &option)) fprintf(out, "\"%s\", ", name_of(option.key));
}

/* The options of a config of this router that differ from the default of the field, taken or not. */
static void write_changed(FILE *out, const char *router) {
  choir_config config;
  ch_config_default(&config);
  config.model.router = ch_router_default(ch_router_find(router));
  for (int i = 0; i < CH_FIELDS; i++) {
    choir_field f;
    char value[CHOIR_VALUE_BYTES];
    choir_config_field_at(i, &f);
    ch_field_text(&config, &ch_fields[i], value, sizeof value);
    if (strcmp(value, f.value) && ch_fields[i].kind != CH_FIELD_ROUTER)
      fprintf(out, "\"%s\": \"%s\", ", name_of(f.key), value);
  }
}

static void write_router_rows(FILE *out) {
  static const char *const reads[] = {"scores", "ids", "nothing", "logits", "shares"},
                           *const gates[] = {"even", "score", "share", "sigmoid", "own"},
                           *const losses[] = {"none", "balance", "own"}, *const states[] = {"none",      "cutoffs",
                                                                                            "prices",    "biases",
                                                                                            "centroids", "own"};
  for (const char *const *router = choir_router_names(); *router; router++) {
    choir_router_info info;
    choir_router_describe(*router, &info);
    fprintf(out, "    (\"%s\", \"%s\", \"%s\", \"%s\", \"%s\", %d, %s, %s,\n", *router, reads[info.reads],
            gates[info.gates], losses[info.loss], states[info.state], info.choices, info.draws ? "True" : "False",
            info.is_plugin ? "True" : "False");
    fprintf(out, "     \"%s\",\n     (", choir_router_summary(*router));
    write_router_options(out, *router);
    fprintf(out, "),\n     {");
    write_changed(out, *router);
    fprintf(out, "}),\n");
  }
}

/* Whether a field before this one has the name or the word, or this one the word at an earlier place. */
static int said_before(int field, int place, const char *word) {
  for (int i = 0; i <= field; i++) {
    const char *const *words = ch_fields[i].words;
    if (place < 0 && i < field && !strcmp(name_of(ch_fields[i].path), word)) return 1;
    for (int j = 0; place >= 0 && words && words[j] && (i < field || j < place); j++)
      if (!strcmp(words[j], word)) return 1;
  }
  return 0;
}

/* form: what a name is written by, in quotes; words are as they are, or as JSON has them. */
static void write_words(FILE *out, const char *form) {
  const char *mark = strstr(form, "%s"), *quote = strchr(form, '\\') ? "\\x22" : "";
  if (!mark) return;
  for (int i = 0; i < CH_FIELDS; i++)
    if (!said_before(i, -1, name_of(ch_fields[i].path)))
      fprintf(out, "%.*s%s%s\n", (int)(mark - form), form, name_of(ch_fields[i].path), mark + 2);
  for (int i = 0; i < CH_FIELDS; i++)
    for (int j = 0; ch_fields[i].words && ch_fields[i].words[j]; j++)
      if (!said_before(i, j, ch_fields[i].words[j])) fprintf(out, "\"%s%s%s\"\n", quote, ch_fields[i].words[j], quote);
}

/* A line that begins such a place, from what is behind "generated: " on. */
static void write_kind(FILE *out, const char *kind) {
  if (!strncmp(kind, "fields", 6)) write_fields(out);
  if (!strncmp(kind, "options", 7)) write_options(out);
  if (!strncmp(kind, "keywords ", 9)) write_keywords(out, kind + 9);
  if (!strncmp(kind, "words ", 6)) write_words(out, kind + 6);
  if (!strcmp(kind, "rows of fields")) write_field_rows(out);
  if (!strcmp(kind, "rows of routers")) write_router_rows(out);
  if (!strcmp(kind, "takers")) write_takers(out);
}

/* The file as it is to be; *places counts what is generated there. */
static char *made_of(const char *text, int *places) {
  char *made;
  size_t size;
  FILE *out = open_memstream(&made, &size);
  int inside = 0;
  for (const char *line = text, *end; out && *line; line = end) {
    end = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line);
    char copy[256];
    snprintf(copy, sizeof copy, "%.*s", (int)(strcspn(line, "\n")), line);
    const char *mark = strstr(copy, "generated: ");
    if (mark) inside = strncmp(mark, "generated: end", 14) != 0;
    if (mark || !inside) fwrite(line, 1, (size_t)(end - line), out);
    if (mark && inside) ++*places, write_kind(out, mark + 11);
  }
  if (out) fclose(out);
  return out && !inside ? made : NULL;
}

static int first_difference(const char *a, const char *b) {
  int line = 1;
  for (; *a && *a == *b; a++, b++) line += *a == '\n';
  return line;
}

static int one_file(const char *root, const char *file, int check) {
  char path[4096], *text;
  size_t bytes;
  int places = 0;
  snprintf(path, sizeof path, "%s/%s", root, file);
  if (ch_file_read(path, 1 << 20, &text, &bytes)) return fprintf(stderr, "%s\n", choir_error_message()), 1;
  char *made = made_of(text, &places);
  int bad = !made || !places, differs = !bad && strcmp(text, made);
  if (bad)
    fprintf(stderr, "%s: has no 'generated: KIND', or one without 'generated: end'\n", file);
  else if (differs && check)
    fprintf(stderr, "%s:%d: is not what src/config says; write it anew: cmake --build build --target generated\n", file,
            first_difference(text, made));
  else if (differs && ch_file_save(path, made, strlen(made)))
    bad = 1, fprintf(stderr, "%s\n", choir_error_message());
  free(text), free(made);
  return bad || (differs && check);
}

int main(int count, char **words) {
  int failures = 0, check = count > 2 && !strcmp(words[2], "--check");
  if (count < 2) return fprintf(stderr, "generate ROOT [--check]\n"), 2;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) failures += one_file(words[1], files[i], check);
  return failures != 0;
}
