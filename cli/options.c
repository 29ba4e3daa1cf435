/* Parses a verb's words by its option table. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Whether `text` is one of the words of "a|b|c". */
static int among(const char *choices, const char *text) {
  size_t length = strlen(text);
  for (const char *at = choices; at; at = strchr(at, '|')) {
    at += *at == '|';
    if (!strncmp(at, text, length) && (at[length] == '|' || !at[length])) return 1;
  }
  return 0;
}

static int bad_value(const cli_option *option, const char *text, const char *wanted) {
  return cli_usage("--%s %s: must be %s", option->name, text, wanted);
}

static int store_number(const cli_option *option, const char *text) {
  char *end;
  errno = 0;
  if (option->kind == CLI_REAL) {
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value)) return bad_value(option, text, "a number");
    *(double *)option->target = value;
    return 0;
  }
  long long value = strtoll(text, &end, 10), max = option->kind == CLI_INT ? INT32_MAX : INT64_MAX;
  if (end == text || *end || value < 0) return bad_value(option, text, "a whole number, not negative");
  if (errno == ERANGE || value > max) return cli_usage("--%s %s: must be %lld at most", option->name, text, max);
  if (option->kind == CLI_INT)
    *(int *)option->target = (int)value;
  else
    *(int64_t *)option->target = value;
  return 0;
}

static int store(const cli_option *option, const char *text, int operands_seen) {
  switch (option->kind) {
    case CLI_FLAG:
      *(int *)option->target = 1;
      return 0;
    case CLI_CHOICE:
      if (!among(option->argument, text)) return bad_value(option, text, option->argument);
      *(const char **)option->target = text;
      return 0;
    case CLI_PATH:
    case CLI_NEW:
    case CLI_INPUT:
    case CLI_SMALL: /* opened after all words have been parsed */
    case CLI_OUTPUT:
      if (!*text) return cli_usage("--%s is empty; it needs a value: %s", option->name, option->argument);
      *(const char **)option->target = text;
      return 0;
    case CLI_TEXT:
      *(const char **)option->target = text;
      return 0;
    case CLI_LIST: {
      cli_list *list = option->target;
      if (list->count == CLI_LIST_MAX) return cli_usage("--%s: given more than %d times", option->name, CLI_LIST_MAX);
      list->values[list->count] = text;
      list->at[list->count++] = operands_seen;
      return 0;
    }
    default:
      return store_number(option, text);
  }
}

enum { OPTIONS_MAX = 32 };

/* Former names of options, which scripts may still use: verb, old name, new name. */
static const char *const renamed[][3] = {{"train", "from", "init-from"},
                                         {"finetune", "from", "init-from"},
                                         {"finetune", "batch-sequences", "batch"},
                                         {"score", "batch-sequences", "batch"},
                                         {"generate", "batch", "slots"}};

/* The row of `renamed` with this name; NULL: none. */
static const char *const *renaming(const cli_verb *verb, const char *name, size_t length) {
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
    if (!strcmp(renamed[i][0], verb->name) && strlen(renamed[i][1]) == length && !strncmp(renamed[i][1], name, length))
      return renamed[i];
  return NULL;
}

/* An option of the verb, or one that every verb has; its name is NULL if there is none. */
static const cli_option *find_option(const cli_verb *verb, const char *name, size_t length) {
  static const cli_option none = {0};
  const char *const *r = renaming(verb, name, length);
  if (r) name = r[2], length = strlen(r[2]);
  for (const cli_option *option = verb->options; option->name; option++)
    if (strlen(option->name) == length && !strncmp(option->name, name, length)) return option;
  return strlen(cli_plugin_option.name) == length && !strncmp(cli_plugin_option.name, name, length) ? &cli_plugin_option
                                                                                                    : &none;
}

cli_word cli_read_word(const cli_verb *verb, char **words, int left) {
  const char *word = words[0], *name = word + 2, *equals;
  cli_word w = {.kind = CLI_WORD_OPERAND, .words = 1};
  if (word[0] != '-' || !word[1]) return w;
  w.kind = !strcmp(word, "--")                              ? CLI_WORD_END
           : !strcmp(word, "--help") || !strcmp(word, "-h") ? CLI_WORD_HELP
           : word[1] != '-'                                 ? CLI_WORD_UNKNOWN
                                                            : CLI_WORD_OPTION;
  if (w.kind != CLI_WORD_OPTION) return w;
  equals = strchr(name, '=');
  w.name = name;
  w.length = equals ? (size_t)(equals - name) : strlen(name);
  w.option = find_option(verb, name, w.length);
  w.value = equals ? equals + 1 : NULL;
  if (!w.option->name || w.option->kind == CLI_FLAG || w.value || left < 2) return w;
  w.value = words[1];
  w.words = 2;
  return w;
}

/* Reports an unknown option and suggests the most similar one; for a field of the config, or another program's name
 * of one, suggests --set. */
static int unknown_option(const cli_verb *verb, const char *word) {
  char key[64];
  const char *names[OPTIONS_MAX + 1] = {NULL}, *meant;
  choir_field field;
  for (int i = 0; verb->options[i].name; i++) names[i] = verb->options[i].name;
  snprintf(key, sizeof key, "%s", word);
  for (char *c = key; *c; c++)
    if (*c == '-') *c = '_';
  int known = !choir_config_describe(key, &field) || !strstr(choir_error_message(), "unknown key");
  int sets = find_option(verb, "set", 3)->name != NULL;
  if (sets && known) return cli_usage("unknown option --%s; it is a field of the config: --set %s=VALUE", word, key);
  const char *near = ch_suggest(word, names);
  if (near) return cli_usage("unknown option --%s; did you mean --%s?", word, near);
  if (sets && (meant = strstr(choir_error_message(), "did you mean")))
    return cli_usage("unknown option --%s; among the fields that --set FIELD=VALUE sets, %s", word, meant);
  return cli_usage("unknown option --%s", word);
}

static int take_option(const cli_verb *verb, const cli_word *w, int operands_seen, char *given) {
  const cli_option *option = w->option;
  if (!option->name) {
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)w->length, w->name);
    return unknown_option(verb, word);
  }
  const char *const *r = renaming(verb, w->name, w->length);
  char line[100];
  if (r) snprintf(line, sizeof line, "--%s is called --%s now\n", r[1], r[2]), cli_print_notices(line);
  if (option->kind == CLI_FLAG && w->value) return cli_usage("--%s takes no value", option->name);
  if (option->kind != CLI_FLAG && !w->value) return cli_usage("--%s needs a value: %s", option->name, option->argument);
  char *before = &given[option - verb->options];
  if (*before && option->kind != CLI_LIST) return cli_usage("--%s is given twice", option->name);
  *before = 1;
  return store(option, w->value, operands_seen);
}

/* After all words were parsed: copies pipes to files, and checks outputs. */
static int open_files(const cli_verb *verb, int count, const char **operands) {
  int small = strstr(verb->operands, "CONFIG") != NULL; /* a config, and not a text or an array of any size */
  for (int i = 0; i < count; i++)
    if (cli_ranks_no_pipe(operands[i]) || !(operands[i] = cli_input(operands[i], small))) return CLI_FAILED;
  for (const cli_option *o = verb->options; o->name; o++) {
    const char **path = o->target;
    if (cli_is_output(o) && *path && cli_check_not_input(verb, *path, count, operands)) return CLI_USAGE;
    if (o->kind == CLI_OUTPUT && *path && cli_check_apart(verb, o)) return CLI_USAGE;
    if (o->kind == CLI_NEW && *path && cli_check_new(*path)) return CLI_FAILED;
    if ((o->kind != CLI_INPUT && o->kind != CLI_SMALL && o->kind != CLI_OUTPUT) || !*path) continue;
    if (cli_ranks_no_pipe(*path)) return CLI_FAILED;
    *path = o->kind == CLI_OUTPUT ? cli_output(*path) : cli_input(*path, o->kind == CLI_SMALL);
    if (!*path) return CLI_FAILED;
  }
  return 0;
}

/* --resume RUN probably means --resume --out RUN. */
static int missing_option(const cli_option *o, const char *more) {
  if (!more) return cli_usage("--%s %s is missing", o->name, o->argument);
  return cli_usage("--%s %s is missing; did you mean --%s %s?", o->name, o->argument, o->name, more);
}

/* Sets defaults first, then parses the words; options and operands may be in any order, "--" ends the options. */
static int parse(const cli_verb *verb, int count, char **words) {
  char given[OPTIONS_MAX] = {0};
  const char **operands = calloc((size_t)count + 1, sizeof *operands);
  int seen = 0, only_operands = 0, status = 0;
  if (!operands) return cli_fail_with("out of memory");
  for (const cli_option *o = verb->options; o->name && !status; o++)
    if (o->fallback) status = store(o, o->fallback, 0);
  for (int i = 0, used; i < count && !status; i += used) {
    const cli_word word = only_operands ? (cli_word){.words = 1} : cli_read_word(verb, words + i, count - i);
    used = word.words;
    if (word.kind == CLI_WORD_OPERAND) {
      operands[seen++] = words[i];
      if (!*words[i]) status = cli_usage("operand %d is empty; usage: choir %s %s", seen, verb->name, verb->operands);
    } else if (word.kind == CLI_WORD_END) {
      only_operands = 1;
    } else if (word.kind == CLI_WORD_HELP) {
      free(operands);
      status = cli_ranks_help("--help");
      if (!status) cli_help_verb(stdout, verb);
      return status;
    } else if (word.kind == CLI_WORD_UNKNOWN) {
      status = cli_usage("unknown option %s; options start with two dashes", words[i]);
    } else {
      status = take_option(verb, &word, seen, given);
    }
  }
  for (int i = 0; !status && verb->options[i].name; i++)
    if (verb->options[i].required && !given[i])
      status = missing_option(&verb->options[i], seen > verb->max && verb->max >= 0 ? operands[verb->max] : NULL);
  if (!status && seen < verb->min)
    status = cli_usage("missing operand; usage: choir %s %s", verb->name, verb->operands);
  if (!status && verb->max >= 0 && seen > verb->max) status = cli_usage("unexpected operand '%s'", operands[verb->max]);
  status = cli_ranks_take_options(verb, status);
  if (!status) status = cli_ranks_agree(open_files(verb, seen, operands));
  if (!status) status = verb->run(seen, operands);
  status = cli_pipes_end(status);
  cli_print_notices(choir_notices());
  free(operands);
  return status;
}

int cli_parse(const cli_verb *verb, int count, char **words) {
  cli_say_for(verb);
  int status = cli_ranks_join(verb), asks = 0;
  for (int i = 0; i < count; i++) asks |= !strcmp(words[i], "--help") || !strcmp(words[i], "-h");
  if (!status && !asks) status = cli_ranks_check(verb);
  if (!status) status = parse(verb, count, words);
  cli_ranks_leave();
  return status;
}
