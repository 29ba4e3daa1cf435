/* choir: one program, one file per verb. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* The verb named by the first one or two words; *used: number of these words. */
static const cli_verb *find_verb(int count, char **words, int *used) {
  for (int i = 0; cli_verbs[i]; i++) {
    const char *name = cli_verbs[i]->name, *space = strchr(name, ' ');
    size_t first = space ? (size_t)(space - name) : strlen(name);
    if (count < 1 || strlen(words[0]) != first || strncmp(words[0], name, first)) continue;
    if (space && (count < 2 || strcmp(words[1], space + 1))) continue;
    *used = space ? 2 : 1;
    return cli_verbs[i];
  }
  return NULL;
}

/* Whether `word` starts verbs of two words, as "data" does. */
static int is_family(const char *word) {
  size_t length = strlen(word);
  for (int i = 0; cli_verbs[i]; i++)
    if (!strncmp(cli_verbs[i]->name, word, length) && cli_verbs[i]->name[length] == ' ') return 1;
  return 0;
}

/* Reports an unknown verb: if the first word is a family, the second is wrong, otherwise the first; the suggestion
 * uses both, as a verb may have two words. */
static int unknown_verb(int count, char **words) {
  enum { MAX = 64 };
  const char *names[MAX + 1] = {NULL};
  char both[96];
  for (int i = 0; i < MAX && cli_verbs[i]; i++) names[i] = cli_verbs[i]->name;
  snprintf(both, sizeof both, "%s %s", words[0], count > 1 ? words[1] : "");
  const char *wrong = is_family(words[0]) ? both : words[0], *typed = wrong, *near = ch_suggest(typed, names);
  if (!near) near = ch_suggest(typed = both, names);
  if (near) return cli_usage("unknown command '%s'; did you mean '%s'?", typed, near);
  choir_field field;
  if (strchr(wrong, '.') && (!choir_config_describe(wrong, &field) || !strstr(choir_error_message(), "unknown key")))
    return cli_usage("'%s' is a field of the config; set it by --set %s=VALUE (docs/formats.md explains it)", wrong,
                     wrong);
  if (!strcmp(wrong, "compare"))
    return cli_usage(
        "unknown command 'compare': choir report A B --out page.html shows runs side by side; choir study run compares "
        "routers, each at its best learning rate, with several seeds and confidence intervals (docs/studies.md)");
  if (!(near = ch_suggest(wrong, choir_router_names()))) near = ch_suggest(wrong, choir_config_names());
  if (near) return cli_usage("unknown command '%s'; did you mean 'help %s'?", wrong, near);
  return cli_usage("unknown command '%s'", wrong);
}

static int is_one_of(const char *word, const char *const *names) {
  while (*names && strcmp(*names, word)) names++;
  return *names != NULL;
}

/* choir help [VERB], choir help routers, or choir help --man DIR: writes the manual pages that the build installs. */
static int help(int count, char **words) {
  int used = 0;
  const cli_verb *verb = find_verb(count, words, &used);
  if (count == 2 && !strcmp(words[0], "--man")) return cli_manual(words[1]);
  if (count == 2 && !strcmp(words[0], "--completion")) return cli_completion(words[1]);
  if (count == 1 && !strcmp(words[0], "routers")) return cli_help_routers(stdout), 0;
  if (count == 1 && (!strcmp(words[0], "help") || !strcmp(words[0], "--help"))) count = 0; /* help about help */
  if (count == 1 && !verb && is_one_of(words[0], choir_router_names())) return cli_help_router(stdout, words[0]), 0;
  if (count == 1 && !verb && is_one_of(words[0], choir_config_names())) return cli_help_config(stdout, words[0]), 0;
  if (count > 0 && !verb && !is_family(words[0])) return unknown_verb(count, words);
  if (count > (verb ? used : 1)) return cli_usage("help %s: one word too many: '%s'", words[0], words[verb ? used : 1]);
  if (verb)
    cli_help_verb(stdout, verb);
  else if (count > 0)
    cli_help_family(stdout, words[0]);
  else
    cli_help(stdout);
  return 0;
}

/* Handles words that are not a verb: version, help, and errors. */
static int say(int count, char **words) {
  FILE *wrong = cli_ranks_first() ? stderr : stdout; /* stdout is silenced on the other ranks */
  if (count < 1) return cli_help(wrong), CLI_USAGE;
  if (!strcmp(words[0], "--version") || !strcmp(words[0], "version")) {
    printf("choir %s\n", choir_version());
    return 0;
  }
  if (!strcmp(words[0], "help") || !strcmp(words[0], "--help") || !strcmp(words[0], "-h"))
    return help(count - 1, words + 1);
  if (!is_family(words[0]) || (count > 1 && words[1][0] != '-')) return unknown_verb(count, words);
  int asked = count > 1 && (!strcmp(words[1], "--help") || !strcmp(words[1], "-h"));
  cli_help_family(asked ? stdout : wrong, words[0]);
  return asked ? 0 : CLI_USAGE;
}

static const cli_option no_options = {0};
static const cli_verb no_verb = {.name = "", .options = &no_options};

/* Takes --plugin and its values from the words before a verb. */
static int take_first_plugins(int *count, char ***words) {
  for (int status; *count;) {
    const cli_word word = cli_read_word(&no_verb, *words, *count);
    if (word.option != &cli_plugin_option) break;
    if ((status = cli_add_plugin(word.value))) return status;
    *words += word.words;
    *count -= word.words;
  }
  return 0;
}

/* Removes --plugin and its values from a verb's words; NULL: the words name no verb. */
static int take_plugins(const cli_verb *verb, int *count, char **words) {
  int left = 0, ended = 0, status = 0;
  for (int i = 0; i < *count && !status;) {
    cli_word word = ended ? (cli_word){.words = 1} : cli_read_word(verb ? verb : &no_verb, words + i, *count - i);
    ended |= word.kind == CLI_WORD_END;
    if (word.option == &cli_plugin_option)
      status = cli_add_plugin(word.value), i += word.words;
    else
      for (; word.words; word.words--) words[left++] = words[i++];
  }
  *count = left;
  return status;
}

/* Loads routers before a verb reads a config. Python is started before this process joins other ranks. */
static int load_routers(const cli_verb *verb, int *count, char **words) {
  int status = take_plugins(verb, count, words);
  return status ? status : cli_load_plugins();
}

static int study(int count, char **words) {
  if (cli_plugin_count()) return cli_usage("put --plugin after the verb of study: choir study run ... --plugin FILE");
  int status = cli_ranks_join(NULL);
  if (!status && choir_ranks_size(cli_ranks()) == 1) /* choir study has its own options, and becomes another program */
    return cli_study.run(count, (const char *const *)words);
  return cli_parse(&cli_study, count, words);
}

static int dispatch(int count, char **words) {
  int used = 0, status = take_first_plugins(&count, &words);
  if (status) return status;
  const cli_verb *verb = find_verb(count, words, &used);
  if (verb == &cli_study) return study(count - used, words + used);
  count -= used;
  status = load_routers(verb, &count, words + used);
  if (status) return status;
  if (verb) return cli_parse(verb, count, words + used);
  status = cli_ranks_join(NULL);
  if (!status) status = cli_ranks_help(count ? words[0] : "none");
  if (!status) status = say(count, words);
  cli_ranks_leave();
  return status;
}

/* Threads that wait for each other spin first, and libgomp's default of milliseconds makes a step ten times slower
 * if other processes use the same cores. libgomp reads its settings before main, so the program starts itself a second
 * time. */
static void wait_politely(char **argv) {
  if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || setenv("GOMP_SPINCOUNT", "1000", 1)) return;
  char path[4096]; /* the link's target: with the link itself the process would be called "exe" */
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  execv(path, argv);
}

int main(int argc, char **argv) {
  int status = cli_start();
  if (status) return status;
  wait_politely(argv);
  status = dispatch(argc - 1, argv + 1);
  /* A failed write to standard output must give an error status. */
  if (fflush(stdout) || ferror(stdout)) {
    fprintf(stderr, "choir: standard output could not be written\n");
    return status ? status : CLI_FAILED;
  }
  return status;
}
