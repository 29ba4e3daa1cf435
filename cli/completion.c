/* choir help --completion bash | zsh: shell completion scripts, generated from the option tables. */
#include <string.h>

#include "cli.h"

/* Whether the option's value is a file; otherwise it may be a name that choir knows. */
static int takes_files(const cli_option *o) { return o->argument && o->kind != CLI_CHOICE; }
static const char *const *names_of(const cli_option *o) {
  return !strcmp(o->name, "config") ? choir_config_names() : !strcmp(o->name, "router") ? choir_router_names() : NULL;
}

static void print_names(const char *const *names) {
  for (; *names; names++) printf(" %s", *names);
}

static void print_choices(const char *choices) {
  for (; *choices; choices++) putchar(*choices == '|' ? ' ' : *choices);
}

/* first: prints the second word of every verb such as "data build" with that first word. NULL: prints all first
 * words. */
static void print_words(const char *first) {
  const char *before = "";
  for (int i = 0; cli_verbs[i]; i++) {
    const char *name = cli_verbs[i]->name, *space = strchr(name, ' ');
    size_t length = space ? (size_t)(space - name) : strlen(name);
    if (first) {
      if (space && !strncmp(name, first, length) && !first[length]) printf(" %s", space + 1);
      continue;
    }
    if (strlen(before) < length || strncmp(before, name, length)) printf(" %.*s", (int)length, name);
    before = name;
  }
}

/* "train.steps" without "train."; NULL: the short name is ambiguous. */
static const char *short_key(const choir_field *f) {
  choir_field same;
  const char *key = strchr(f->key, '.') + 1;
  return choir_config_describe(key, &same) ? NULL : key;
}

/* Completes keys after --set, and after a key and "=" (at which bash splits words) the values of its field. */
static void print_fields(void) {
  choir_field f;
  printf("  if [ \"$previous\" = --set ]; then\n    files= words='");
  for (int i = 0; !choir_config_field_at(i, &f); i++)
    if (short_key(&f)) printf(" %s=", short_key(&f));
  printf(
      "'\n    compopt -o nospace +o filenames 2>/dev/null\n"
      "  elif [ \"$previous\" = = ]; then\n    case ${COMP_WORDS[COMP_CWORD-2]} in\n");
  for (int i = 0; !choir_config_field_at(i, &f); i++) {
    if (!short_key(&f) || (!f.words && f.kind != CHOIR_FIELD_FLAG)) continue;
    const char *end = strrchr(short_key(&f), '.'), *name = end && strcmp(end, ".name") ? end + 1 : short_key(&f);
    printf("      %s | *.%s) words='", name, name);
    f.words ? print_names(f.words) : (void)printf("true false");
    printf("' ;;\n");
  }
  printf("    esac\n  fi\n");
}

static void print_verb(const cli_verb *verb) {
  printf("    '%s')\n      options='--help --plugin", verb->name);
  for (const cli_option *o = verb->options; o->name; o++) printf(" --%s", o->name);
  printf("'\n      case $previous in\n");
  for (const cli_option *o = verb->options; o->name; o++) {
    if (o->kind == CLI_CHOICE) {
      printf("        --%s) words='", o->name);
      print_choices(o->argument);
      printf("' ;;\n");
    } else if (takes_files(o)) {
      printf("        --%s) files=1", o->name);
      if (names_of(o)) printf(" words='"), print_names(names_of(o)), printf("'");
      printf(" ;;\n");
    }
  }
  printf("      esac ;;\n");
}

int cli_completion(const char *shell) {
  int zsh = !strcmp(shell, "zsh");
  if (!zsh && strcmp(shell, "bash")) return cli_usage("help --completion %s: must be bash or zsh", shell);
  if (zsh) printf("#compdef choir\nautoload -U +X bashcompinit && bashcompinit\n");
  printf("# Completion for choir %s; choir help --completion %s makes it.\n_choir() {\n", choir_version(), shell);
  printf(
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}\n"
      "  local options= words= files=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" = 1 ]; then\n    COMPREPLY=($(compgen -W 'help");
  print_words(NULL);
  printf("' -- \"$word\"))\n    return\n  elif [ \"$COMP_CWORD\" = 2 ] && [ \"$verb\" = help ]; then\n");
  printf("    COMPREPLY=($(compgen -W 'routers");
  print_words(NULL);
  print_names(choir_router_names());
  print_names(choir_config_names());
  printf("' -- \"$word\"))\n    return\n  elif [ \"$verb\" = help ]; then\n    verb=${COMP_WORDS[2]}\n");
  printf("    [ \"$COMP_CWORD\" = 3 ] || return\n    COMP_CWORD=2 COMP_WORDS=(choir \"$verb\" \"$word\")\n  fi\n");
  printf("  case $verb in\n");
  const char *last = "";
  for (int i = 0; cli_verbs[i]; i++) {
    char family[32];
    const char *space = strchr(cli_verbs[i]->name, ' ');
    if (!space) continue;
    snprintf(family, sizeof family, "%.*s", (int)(space - cli_verbs[i]->name), cli_verbs[i]->name);
    if (!strncmp(last, cli_verbs[i]->name, strlen(family) + 1)) continue;
    last = cli_verbs[i]->name;
    printf("    %s)\n      if [ \"$COMP_CWORD\" = 2 ]; then\n        COMPREPLY=($(compgen -W '", family);
    print_words(family);
    printf("' -- \"$word\"))\n        return\n      fi\n      verb=\"$verb ${COMP_WORDS[2]}\" ;;\n");
  }
  printf("  esac\n  case $verb in\n");
  for (int i = 0; cli_verbs[i]; i++) print_verb(cli_verbs[i]);
  printf("  esac\n");
  print_fields();
  printf(
      "  if [ -n \"$words\" ]; then\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "    [ -z \"$files\" ] || COMPREPLY+=($(compgen -f -- \"$word\"))\n"
      "  elif [ -z \"$files\" ] && [ \"${word#-}\" != \"$word\" ]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
      "  else\n    COMPREPLY=($(compgen -f -- \"$word\"))\n  fi\n}\n"
      "complete -o filenames -F _choir choir\n");
  /* zsh loads the file at the first completion, instead of completing */
  if (zsh) printf("[ \"${funcstack[1]}\" != _choir ] || _bash_complete -o filenames -F _choir\n");
  return 0;
}
