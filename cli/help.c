/* Help texts from the option tables. */
#include <string.h>

#include "cli.h"

enum { MARGIN = 26 };

/* Prints a name in the margin and text next to it. */
static void entry(FILE *out, const char *name, const char *text) {
  fprintf(out, "  %-*s", MARGIN - 2, name);
  cli_wrap(out, text, MARGIN, MARGIN);
}

void cli_help_usage(FILE *out, const cli_verb *verb) {
  fprintf(out, "choir %s", verb->name);
  for (const cli_option *o = verb->options; o->name; o++)
    if (o->required) fprintf(out, " --%s %s", o->name, o->argument);
  for (const cli_option *o = verb->options; o->name; o++)
    if (!o->required) {
      fprintf(out, " [options]");
      break;
    }
  fprintf(out, "%s%s\n", *verb->operands ? " " : "", verb->operands);
}

void cli_help_verb(FILE *out, const cli_verb *verb) {
  int at = fprintf(out, "choir %s: ", verb->name);
  cli_wrap(out, verb->summary, at, 0);
  fprintf(out, "\nUsage: ");
  cli_help_usage(out, verb);
  if (verb->details) {
    fputc('\n', out);
    cli_wrap(out, verb->details, 0, 0);
  }
  fprintf(out, "\nOptions:\n");
  for (const cli_option *o = verb->options; o->name; o++) {
    char text[512];
    int at = fprintf(out, "  --%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
    if (at >= MARGIN - 1) {
      fputc('\n', out);
      at = 0;
    }
    fprintf(out, "%*s", MARGIN - at, "");
    snprintf(text, sizeof text, "%s%s%s%s%s%s", o->help, o->fallback ? " [" : "", o->fallback ? o->fallback : "",
             o->fallback ? "]" : "", o->required ? " (required)" : "", o->kind == CLI_LIST ? "; may be repeated" : "");
    cli_wrap(out, text, MARGIN, MARGIN);
  }
  entry(out, "--plugin FILE", cli_plugin_option.help);
  entry(out, "--help", "this text");
}

static void verb_entry(FILE *out, const char *name, const char *summary) {
  cli_wrap(out, summary, fprintf(out, "  choir %-18s ", name), MARGIN + 1);
}

void cli_help_family(FILE *out, const char *family) {
  size_t length = strlen(family);
  for (int i = 0; cli_verbs[i]; i++)
    if (!strncmp(cli_verbs[i]->name, family, length) && cli_verbs[i]->name[length] == ' ')
      verb_entry(out, cli_verbs[i]->name, cli_verbs[i]->summary);
  fprintf(out, "\nOptions of each: choir help %s ...\n", family);
}

enum { MAX_OPTIONS = 64 };

/* Adds an option to `seen`, unless it is there already. */
static void remember(choir_field *seen, int *count, const choir_field *option) {
  for (int i = 0; i < *count; i++)
    if (!strcmp(seen[i].key, option->key)) return;
  if (*count < MAX_OPTIONS) seen[(*count)++] = *option;
}

/* "cap" of "model.router.cap" */
static const char *last_name(const choir_field *field) { return strrchr(field->key, '.') + 1; }

static void help_router(FILE *out, const char *name, choir_field *seen, int *count) {
  choir_field option;
  char text[1024];
  size_t used = 0;
  entry(out, name, cli_shown(choir_router_summary(name))); /* a plug-in may contain any text */
  for (int i = 0; i < choir_router_option_count(name) && used < sizeof text; i++) {
    choir_router_option_at(name, i, &option);
    used +=
        (size_t)snprintf(text + used, sizeof text - used, "%s%s=%s", i ? " " : "", last_name(&option), option.value);
    remember(seen, count, &option);
  }
  entry(out, "", used ? text : "(no options)");
}

void cli_help_routers(FILE *out) {
  choir_field seen[MAX_OPTIONS];
  int count = 0;
  fprintf(out, "Routers, with the options of each and their defaults:\n\n");
  for (const char *const *name = choir_router_names(); *name; name++) help_router(out, *name, seen, &count);
  fprintf(out, "\nSet options in \"router\" of a config, or by --set router.NAME=VALUE:\n\n");
  for (int i = 0; i < count; i++) entry(out, last_name(&seen[i]), cli_shown(seen[i].help));
  fprintf(out, "\nA router refuses options that it does not have.\n");
}

void cli_help_router(FILE *out, const char *name) {
  choir_field seen[MAX_OPTIONS];
  int count = 0;
  fprintf(out, "A router. Select it by --set router.name=%s or in \"router\" of a config:\n\n", name);
  help_router(out, name, seen, &count);
  fprintf(out, "\n");
  for (int i = 0; i < count; i++) entry(out, last_name(&seen[i]), cli_shown(seen[i].help));
  fprintf(out, "\nMore: docs/routers.md; all of them: choir help routers\n");
}

void cli_help_config(FILE *out, const char *name) {
  fprintf(out,
          "%s is a built-in config. Train it: choir train --config %s ...\n"
          "Show its size and cost: choir info %s\n"
          "List all configs: choir configs. docs/formats.md explains every field.\n",
          name, name, name);
}

const char cli_statuses[] =
    "0 success, 1 failure, 2 wrong usage, 3 a signal stopped the run, which is saved and can be resumed, 4 another "
    "rank stopped responding (--rank-timeout).";

void cli_help(FILE *out) {
  fprintf(out,
          "choir trains, serves and compares Mixture-of-Experts language models, built\n"
          "around expert choice: routing in which every expert selects its tokens.\n\n");
  for (int i = 0; cli_verbs[i]; i++) verb_entry(out, cli_verbs[i]->name, cli_verbs[i]->summary);
  verb_entry(out, "help COMMAND", "show a command and its options");
  verb_entry(out, "help routers", "list the routers and their options");
  verb_entry(out, "help NAME", "show a router or a config");
  verb_entry(out, "--plugin FILE", "for any command: add your own routers, in Python or C");
  verb_entry(out, "--version", "print the version");
  cli_wrap(out, cli_statuses, fprintf(out, "\nExit status: ") - 1, 0);
}
