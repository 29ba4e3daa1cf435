/* Help texts and manual pages, both from the option tables. */
#include <ctype.h>
#include <string.h>

#include "cli.h"

enum { WIDTH = 80, MARGIN = 26 };

/* Prints text wrapped at WIDTH; the first line starts at column `at`, the others at `indent`. */
static void wrapped(FILE *out, const char *text, int at, int indent) {
  int column = at;
  while (*text) {
    size_t word = strcspn(text, " \n");
    if (column > indent && column + 1 + (int)word > WIDTH) {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    } else if (column > indent && text[-1] != '\n') {
      fputc(' ', out);
      column++;
    }
    fwrite(text, 1, word, out);
    column += (int)word;
    text += word;
    for (; *text == '\n'; text++) { /* every line end of the text is kept */
      fputc('\n', out);
      column = indent;
    }
    if (*text == ' ') text++;
  }
  fputc('\n', out);
}

static void usage(FILE *out, const cli_verb *verb) {
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
  fprintf(out, "choir %s: %s\n\nUsage: ", verb->name, verb->summary);
  usage(out, verb);
  if (verb->details) {
    fputc('\n', out);
    wrapped(out, verb->details, 0, 0);
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
    wrapped(out, text, MARGIN, MARGIN);
  }
  fprintf(out, "  %-*s%s\n", MARGIN - 2, "--help", "this text");
}

void cli_help_family(FILE *out, const char *family) {
  size_t length = strlen(family);
  for (int i = 0; cli_verbs[i]; i++)
    if (!strncmp(cli_verbs[i]->name, family, length) && cli_verbs[i]->name[length] == ' ')
      fprintf(out, "  choir %-18s %s\n", cli_verbs[i]->name, cli_verbs[i]->summary);
  fprintf(out, "\nMore about each: choir help %s ...\n", family);
}

void cli_help(FILE *out) {
  fprintf(out,
          "choir trains Transformer language models with Mixture-of-Experts layers routed by\n"
          "expert choice, and lets you look inside.\n\n");
  for (int i = 0; cli_verbs[i]; i++) fprintf(out, "  choir %-18s %s\n", cli_verbs[i]->name, cli_verbs[i]->summary);
  fprintf(out, "  choir %-18s %s\n", "help COMMAND", "explain a command and its options");
  fprintf(out, "  choir %-18s %s\n\n", "--version", "print the version");
  fprintf(out, "Exit status: 0 success, 1 failure, 2 wrong usage.\n");
}

/* Text for roff: escapes what it would interpret. */
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
      fputs("\n.PP", out);
    else
      fputc(*text, out);
  }
}

/* A manual page's name: "choir-data-build". */
static void page_name(FILE *out, const cli_verb *verb, int upper) {
  fputs(upper ? "CHOIR" : "choir", out);
  if (!verb) return;
  fputs("\\-", out);
  for (const char *c = verb->name; *c; c++) {
    if (*c == ' ')
      fputs("\\-", out);
    else
      fputc(upper ? toupper((unsigned char)*c) : *c, out);
  }
}

static void manual_head(FILE *out, const cli_verb *verb, const char *summary) {
  fputs(".TH ", out);
  page_name(out, verb, 1);
  fprintf(out, " 1 \"\" \"choir %s\" \"User commands\"\n.SH NAME\n", choir_version());
  page_name(out, verb, 0);
  fputs(" \\- ", out);
  roff(out, summary);
}

static void manual_program(FILE *out) {
  manual_head(out, NULL, "train and study language models with expert-choice routing");
  fputs("\n.SH SYNOPSIS\n.B choir\n.I command\n[options] [operands]\n.SH COMMANDS\n", out);
  for (int i = 0; cli_verbs[i]; i++) {
    fputs(".TP\n.BR ", out);
    page_name(out, cli_verbs[i], 0);
    fputs(" (1)\n", out);
    roff(out, cli_verbs[i]->summary);
    fputc('\n', out);
  }
  fputs(".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage.\n", out);
  fputs(".SH ENVIRONMENT\n.TP\n.B CHOIR_ISA\ngeneric, avx2 or avx512: use no wider vectors than these.\n", out);
}

void cli_manual(FILE *out, const cli_verb *verb) {
  if (!verb) {
    manual_program(out);
    return;
  }
  manual_head(out, verb, verb->summary);
  fputs("\n.SH SYNOPSIS\n", out);
  usage(out, verb);
  if (verb->details) {
    fputs(".SH DESCRIPTION\n", out);
    roff(out, verb->details);
    fputc('\n', out);
  }
  fputs(".SH OPTIONS\n", out);
  for (const cli_option *o = verb->options; o->name; o++) {
    fputs(".TP\n.BR \\-\\-", out);
    roff(out, o->name);
    if (o->argument) fprintf(out, " \\  \\fI%s\\fR", o->argument);
    fputc('\n', out);
    roff(out, o->help);
    if (o->fallback) {
      fputs(" (default: ", out);
      roff(out, o->fallback);
      fputc(')', out);
    }
    fputs(o->required ? " (required)\n" : o->kind == CLI_LIST ? "; may be repeated\n" : "\n", out);
  }
  fputs(".SH SEE ALSO\n.BR choir (1)\n", out);
}
