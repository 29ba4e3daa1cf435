/* Writes manual pages from the option tables. */
#include <ctype.h>
#include <string.h>

#include "cli.h"

/* Text for roff, with its special characters escaped. */
static void roff(FILE *out, const char *text) {
  int line_start = 1;
  for (; *text; text++) {
    if (line_start && (*text == '.' || *text == '\'')) fputs("\\&", out);
    line_start = *text == '\n';
    if (*text == '\\')
      fputs("\\e", out);
    else if (*text == '-')
      fputs("\\-", out);
    else if (*text == '\n' && text[1] == '\n')
      fputs("\n.PP\n", out), text++;
    else if (*text == '\n')
      fputs("\n.br\n", out);
    else
      fputc(*text, out);
  }
}

/* The name of a manual page, "choir-data-build", valid until the next call. */
static char *page_name(const cli_verb *verb) {
  static char name[64];
  snprintf(name, sizeof name, "choir%s%s", verb ? "-" : "", verb ? verb->name : "");
  for (char *space = name; (space = strchr(space, ' '));) *space = '-';
  return name;
}

static void manual_head(FILE *out, const cli_verb *verb, const char *summary) {
  char *title = page_name(verb);
  for (char *c = title; *c; c++) *c = (char)toupper((unsigned char)*c);
  fputs(".TH ", out);
  roff(out, title);
  fprintf(out, " 1 \"\" \"choir %s\" \"User commands\"\n.SH NAME\n", choir_version());
  roff(out, page_name(verb));
  fputs(" \\- ", out);
  roff(out, summary);
}

/* Describes a router and its options. */
static void manual_router(FILE *out, const char *name) {
  choir_field option;
  fprintf(out, ".TP\n.B %s\n", name);
  roff(out, choir_router_summary(name));
  for (int i = 0; i < choir_router_option_count(name); i++) {
    choir_router_option_at(name, i, &option);
    fputs(i ? ", " : ". Options: ", out);
    roff(out, strrchr(option.key, '.') + 1);
    fputc('=', out);
    roff(out, option.value);
  }
  fputc('\n', out);
}

static void manual_program(FILE *out) {
  manual_head(out, NULL, "train, serve and compare Mixture-of-Experts language models");
  fputs("\n.SH SYNOPSIS\n.B choir\n.I command\n[options] [operands]\n.SH COMMANDS\n", out);
  for (int i = 0; cli_verbs[i]; i++) {
    fputs(".TP\n.BR ", out);
    roff(out, page_name(cli_verbs[i]));
    fputs(" (1)\n", out);
    roff(out, cli_verbs[i]->summary);
    fputc('\n', out);
  }
  fputs(".SH ROUTERS\n", out);
  for (const char *const *name = choir_router_names(); *name; name++) manual_router(out, *name);
  fputs(".SH EXIT STATUS\n", out);
  roff(out, cli_statuses);
  fputs(
      "\n.SH ENVIRONMENT\n.TP\n.B CHOIR_ISA\ngeneric, avx2 or avx512: use nothing wider than these, nor AMX; on arm64 "
      "generic: without bfdot.\n",
      out);
}

static void manual_verb(FILE *out, const cli_verb *verb) {
  manual_head(out, verb, verb->summary);
  fputs("\n.SH SYNOPSIS\n.nh\n", out);
  cli_help_usage(out, verb);
  if (verb->details) {
    fputs(".SH DESCRIPTION\n", out);
    roff(out, verb->details);
    fputc('\n', out);
  }
  fputs(".SH OPTIONS\n", out);
  for (const cli_option *o = verb->options; o->name; o++) {
    fputs(".TP\n\\fB\\-\\-", out);
    roff(out, o->name);
    fprintf(out, "\\fR%s\\fI%s\\fR\n", o->argument ? " " : "", o->argument ? o->argument : "");
    roff(out, o->help);
    if (o->fallback) {
      fputs(" (default: ", out);
      roff(out, o->fallback);
      fputc(')', out);
    }
    fputs(o->required ? " (required)\n" : o->kind == CLI_LIST ? "; may be repeated\n" : "\n", out);
  }
  fputs(".TP\n\\fB\\-\\-plugin\\fR \\fIFILE\\fR\n", out);
  roff(out, cli_plugin_option.help);
  fputc('\n', out);
  fputs(".SH SEE ALSO\n.BR choir (1)\n", out);
}

static int manual_page(const char *directory, const cli_verb *verb) {
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/%s.1", directory, page_name(verb));
  FILE *out = length < (int)sizeof path ? fopen(path, "w") : NULL;
  if (!out) return cli_fail_with("%s: cannot be written", path);
  if (verb)
    manual_verb(out, verb);
  else
    manual_program(out);
  return fclose(out) ? cli_fail_with("%s: cannot be written", path) : 0;
}

int cli_manual(const char *directory) {
  int status = manual_page(directory, NULL);
  for (int i = 0; cli_verbs[i] && !status; i++) status = manual_page(directory, cli_verbs[i]);
  return status;
}
