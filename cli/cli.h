/* Shared by the program's verbs: option tables, help, progress, numbers as text and as JSON. */
#ifndef CHOIR_CLI_H
#define CHOIR_CLI_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buffer.h"
#include "base/text.h"
#include "choir/choir.h"

/* Exit statuses other than 0. INTERRUPTED: stopped on request, and saved; SILENT: another rank did not respond. */
enum { CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 3, CLI_SILENT = 4 };

/* An option that may be given several times. `at` counts the operands before each occurrence, so that
 * `--source A x y --source B z` assigns x and y to A, and z to B. */
enum { CLI_LIST_MAX = 64 };
typedef struct cli_list {
  int count;
  const char *values[CLI_LIST_MAX];
  int at[CLI_LIST_MAX];
} cli_list;

typedef enum {
  CLI_FLAG,   /* int: 1 when given */
  CLI_TEXT,   /* const char * */
  CLI_PATH,   /* const char *, a directory, or a file that is no pipe */
  CLI_NEW,    /* const char *, a directory to create */
  CLI_INPUT,  /* const char *, a file that is read; "-": standard input */
  CLI_SMALL,  /* as CLI_INPUT, at most CLI_SMALL_BYTES: JSON that people write */
  CLI_OUTPUT, /* const char *, a file that is written; "-": standard output */
  CLI_CHOICE, /* const char *; the argument's name lists the choices, "fp32|bf16" */
  CLI_INT,    /* int, not negative */
  CLI_INT64,  /* int64_t, not negative */
  CLI_REAL,   /* double, finite */
  CLI_LIST    /* cli_list */
} cli_kind;

/* One row drives parsing, help and the manual page. */
typedef struct cli_option {
  const char *name;     /* without the dashes; NULL ends a table */
  const char *argument; /* name of the value in help; NULL for a flag */
  cli_kind kind;
  void *target;
  const char *fallback; /* the default, as the user would type it; NULL: none */
  const char *help;     /* starts in lower case, no full stop */
  int required;
} cli_option;

typedef struct cli_verb {
  const char *name;     /* "train", or two words: "data build" */
  const char *operands; /* as help shows them: "[FILE...]"; "" for none */
  int min, max;         /* number of operands; max -1: no limit */
  const char *summary;  /* one line */
  const char *details;  /* paragraphs, separated by an empty line */
  const cli_option *options;
  int (*run)(int count, const char *const *operands); /* an exit status */
} cli_verb;

/* Defines the only verb of a file, with the file's `options` and run_ID. */
#define CLI_VERB(id, name, operands, min, max, summary, details) \
  CLI_VERB_OF(id, name, operands, min, max, summary, details, options, run_##id)
/* Defines one of several verbs of a file. */
#define CLI_VERB_OF(id, name, operands, min, max, summary, details, options, run) \
  const cli_verb cli_##id = {name, operands, min, max, summary, details, options, run}

/* verbs.c */
extern const cli_verb *const cli_verbs[]; /* NULL-terminated */
extern const cli_verb cli_study;          /* parses its own words */

/* options.c */
/* The kind of words[0]: an operand; "--", after which all words are operands; --help; an option, whose value is the
 * rest of the word or the next word; or an unknown word beginning with a dash. */
typedef enum { CLI_WORD_OPERAND, CLI_WORD_END, CLI_WORD_HELP, CLI_WORD_OPTION, CLI_WORD_UNKNOWN } cli_word_kind;
typedef struct cli_word {
  cli_word_kind kind;
  int words;                /* number of words that it consumes */
  const char *name;         /* option name without dashes, `length` bytes */
  size_t length;            /* the length excludes the value */
  const cli_option *option; /* name NULL: the verb has no such option */
  const char *value;        /* NULL: no value */
} cli_word;
cli_word cli_read_word(const cli_verb *verb, char **words, int left); /* the only parser of words */
int cli_parse(const cli_verb *verb, int count,
              char **words); /* sets the options' targets, runs the verb, returns its exit status */

/* say.c */
void cli_say_for(const cli_verb *verb); /* later messages start with the verb's name */
int cli_usage(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* prints a usage error; returns CLI_USAGE */
void cli_be_silent(void);                  /* no further output: of several ranks only one prints */
const char *cli_said(void);                /* the last message, also if it was not printed */
void cli_print_notices(const char *lines); /* on standard error, each after the verb's name */
int cli_fail(void);                        /* prints the library's error message; returns CLI_FAILED */
int cli_fail_with(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* prints the given message; returns CLI_FAILED */
/* Text from files or models: escaped, so that a terminal shows control characters and does not execute them. */
void cli_show_as(
    const char *path,
    const char *name); /* show `path`, a temporary path, as `name`, which the user gave; both strings must stay valid */
void cli_put_text(FILE *out, const char *text, size_t size); /* keeps line ends and tabs */
const char *cli_shown(const char *name);                     /* a name, for standard output; valid for a few calls */
size_t cli_json_flags(void);                                 /* flags of json_dumps for standard output */

/* ranks.c: several processes started by mpirun or srun */
const choir_ranks *cli_ranks(void);        /* of this process; NULL: a single process */
int cli_ranks_speak(void);                 /* nonzero: output of this rank is printed */
int cli_ranks_first(void);                 /* nonzero: the first rank, which prints and writes files */
int cli_ranks_agree(int status);           /* the worst status of all ranks; the first rank prints its error */
int cli_ranks_join(const cli_verb *verb);  /* verb may be NULL; returns an exit status */
int cli_ranks_check(const cli_verb *verb); /* refuses to run a single-process verb on several ranks */
int cli_ranks_help(const char *what); /* checks that all ranks request the same help; the first one prints it; returns
                                         an exit status */
void cli_ranks_leave(void);
extern int cli_verbose_ranks;                         /* --verbose-ranks */
extern double cli_rank_timeout;                       /* seconds; --rank-timeout */
extern int cli_replicas, cli_hidden, cli_shard_dense; /* --replicas, --hidden, --shard-dense */
/* Checks these options if the preceding words were valid; all ranks learn the result; returns an exit status. */
int cli_ranks_take_options(const cli_verb *verb, int status);
int cli_ranks_no_pipe(const char *path); /* refuses "-" if there are several ranks; returns an exit status */

/* files.c: the files that inputs name. Initialize with zeros. */
typedef struct cli_files {
  const char **names; /* NULL-terminated lists, one after the other */
  ch_buffer list;     /* memory of the lists */
} cli_files;
/* Adds a file, or the files below a directory whose names match `pattern` (NULL: all), sorted by name; returns an
 * exit status. */
int cli_files_add(cli_files *files, const char *path, const char *pattern);
int cli_files_end(cli_files *files); /* ends a list */
void cli_files_free(cli_files *files);
#define CLI_PATTERN(target) \
  { "pattern", "GLOB", CLI_TEXT, target, NULL, "in directories, read only files whose names match, such as '*.txt'", 0 }

/* start.c */
int cli_start(void); /* prepares the process (streams, signals); returns an exit status, 0: ready */

/* plugin.c: --plugin, an option of every verb. Plug-ins are loaded before the verb joins other ranks and before any
 * config is read. */
extern const cli_option cli_plugin_option;
int cli_add_plugin(const char *file); /* a value of --plugin, NULL: missing; returns an exit status */
int cli_plugin_count(void);           /* number of values added */
int cli_load_plugins(void);           /* loads these plug-ins; returns an exit status */
const char *cli_plugins_shown(void);  /* " --plugin FILE" for each, to append to suggested commands */
int cli_load_python(
    const char *file); /* plugin_python.c: loads routers defined in a Python file; returns an exit status */

/* python.c: replaces this process by Python running a module of the package; what: the command, for messages;
 * needed: required modules, separated by commas. Returns an exit status only on failure. */
int cli_python(const char *what, const char *module, const char *needed, int count, const char *const *words);

/* help.c */
extern const char cli_statuses[]; /* what exit statuses mean */
void cli_help(FILE *out);         /* all verbs */
void cli_help_verb(FILE *out, const cli_verb *verb);
void cli_help_usage(FILE *out, const cli_verb *verb);
void cli_help_family(FILE *out, const char *family); /* "data": its verbs */
void cli_help_routers(FILE *out);                    /* all routers with their options */
void cli_help_router(FILE *out, const char *name);
void cli_help_config(FILE *out, const char *name);

/* completion.c */
int cli_completion(const char *shell); /* prints a script for "bash" or "zsh" */

/* manual.c */
int cli_manual(const char *directory); /* writes choir.1 and choir-VERB.1 for every verb */

/* layout.c: output fits the terminal: the number of columns in COLUMNS if set, otherwise the terminal's, or 80. */
int cli_columns(FILE *out);
int cli_wraps(FILE *out); /* nonzero: lines of messages wrap; zero for a file or a pipe, unless COLUMNS is set */
#define CLI_TIE "\x1F"    /* a space at which lines do not break */
int cli_width(const char *text, size_t size); /* width in columns */
/* Wraps text; its first line starts at column `at`, the others at `indent`. cli_wrap ends the last line. */
void cli_wrap(FILE *out, const char *text, int at, int indent);
void cli_wrap_at(FILE *out, const char *text, int at, int indent, int columns);
/* Text whose lines do not break, such as a command to copy; valid for a few calls. */
const char *cli_whole(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A paragraph on standard output: lines after the first start at `indent`, the first after its own leading spaces. */
void cli_print(int indent, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* table.c: a table on standard output. Columns that contain only dashes are omitted, and the last one wraps if it is
 * text. */
enum { CLI_TABLE_COLUMNS = 16 };
typedef struct cli_table {
  int indent, columns, cells, last_text, lost;
  char right[CLI_TABLE_COLUMNS];
  ch_buffer text;
} cli_table;
void cli_table_begin(cli_table *table, int indent, const char *heads); /* "name|loss>": > aligns to the right */
void cli_cell(cli_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* adds the next cell, row by row */
int cli_table_end(cli_table *table);       /* prints and frees the table; returns an exit status */

/* text.c: numbers as text in a ring of buffers, valid for a few calls within one printf. */
const char *cli_count(double number);               /* 548M, 1.9B, 12.3k */
const char *cli_bytes(double bytes);                /* 7.4 GiB */
const char *cli_memory(const choir_memory *memory); /* "weights 22.6 MiB, gradients ..."; valid until the next call */
json_t *cli_json_memory(const choir_memory *memory);
const char *cli_grouped(int64_t number); /* 1,234,567 */
/* A text with gaps, or a prompt followed by a gap of `length` tokens; each gap of an --infill has the given number
 * of tokens. */
typedef struct {
  choir_fill_options fill;
  const char *prompt, *infill;
  int length, json;
} cli_fill_request;
int cli_fill(choir_model *model, const choir_tokenizer *tokenizer, const cli_fill_request *request);

/* The name of a loss of that objective: "loss", "bound", "masked loss". */
const char *cli_measure(const char *objective);
int cli_is_masked(const char *objective);
/* Prints "held-out loss: 1.88 bits per byte (unigram baseline: 2.63), threshold routing", or the same for a text;
 * bits: bits per byte of one nat per token; gzip: bits per byte, or NaN. */
void cli_print_outcome(const char *objective, int of_text, double bits, double loss, const char *routing,
                       double unigram_loss, double gzip);
const char *cli_duration(double seconds); /* 2:31, 1:02:03 */
char *cli_unescape(const char *text);     /* replaces \f \n \t \\; malloc'd; NULL for an unknown escape */
void cli_json_watch(void);          /* from now on an object that is incomplete because memory ran out is not printed */
int cli_json_print(json_t *object); /* prints to standard output, and releases the object */
int cli_json_line(json_t *object);  /* the same on one line */
json_t *cli_json_real(double number);                   /* null if JSON cannot represent the number */
json_t *cli_json_stats(const choir_route_stats *stats); /* NULL: no memory */
json_t *cli_json_layers(const choir_model *model);      /* statistics of every MoE layer; NULL: the library's error */
void cli_print_certificate(const choir_certificate *certificate);        /* one line, if a solver made the assignment */
void cli_print_histogram(const choir_route_stats *stats);                /* tokens with 0, 1, ... experts */
void cli_print_load(const char *before, const choir_route_stats *stats); /* after the text `before` */

/* progress.c: one line of progress on standard error, redrawn on a terminal, printed every ten seconds elsewhere. */
typedef struct cli_progress {
  int terminal, stands; /* stands: a progress line is on the terminal */
  int waiting;          /* waiting for disk space has been reported */
  double started, shown;
  double seconds, cpu; /* sums over the steps since cli_note_busy's last check: wall time, CPU time per thread */
  double lost;         /* share of the CPU time that other programs used, in its last note; 0: no note yet */
  FILE *out;
  const char *routing; /* shown by cli_progress_count; NULL: none */
} cli_progress;
void cli_progress_begin(cli_progress *progress, FILE *out);
int cli_progress_due(cli_progress *progress); /* nonzero: the line should be updated */
void cli_progress_line(cli_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_clear(cli_progress *progress); /* erases the line before other output, and at the end */
int cli_progress_count(void *progress, const choir_progress *p); /* callback for the library's progress options */
int cli_progress_share(void *progress, const char *what, double share); /* the same for export and import */
/* Shows the events common to training and fine-tuning: memory, notices, waiting. Returns 0 for any other event. */
int cli_show_event(cli_progress *progress, const choir_event *event);
/* Called after each step: notes once that other programs use the cores, and again if their share grows much. */
void cli_note_busy(cli_progress *progress, const choir_step_speed *step);
/* Runs choir_eval or choir_calibrate with progress; returns an exit status. */
int cli_evaluate(choir_model *model, const choir_tokenizer *tokenizer, choir_eval_options options, int calibrate,
                 choir_eval_result *result);
double cli_seconds(void);

/* signals.c */
void cli_catch_signals(void);       /* stop signals: the first sets cli_stop_requested, the second kills */
void cli_catch_closed_output(void); /* SIGPIPE, too: the output is closed, but the work done must be saved */
int cli_stop_requested(void);

/* pipes.c: operands and options of kind CLI_INPUT, CLI_SMALL and CLI_OUTPUT go through these. */
enum { CLI_SMALL_BYTES = 16 << 20 }; /* the library's limit for a JSON file */
const char *cli_input(const char *path,
                      int small);         /* a path that can be read repeatedly; NULL: the error was reported */
const char *cli_output(const char *path); /* a path to write to; until cli_pipes_end, stdout is standard error; NULL:
                                             the error was reported */
int cli_pipes_end(int status);            /* copies the result to standard output; returns the exit status */

/* outputs.c: checks before any work; each returns an exit status. */
int cli_check_file(const char *path); /* checks an output file */
/* Refuses an existing output that the verb also reads: an operand, the value of an option that names inputs, or, where
 * one of these is a directory, a file in it. */
int cli_is_output(const cli_option *option);
int cli_check_not_input(const cli_verb *verb, const char *path, int count, const char *const *operands);
/* Refuses an output that an earlier option in the verb's table names already. */
int cli_check_apart(const cli_verb *verb, const cli_option *output);
int cli_check_new(const char *path); /* checks an output directory, which may exist if it is empty */

/* input.c */
char *cli_read_file(
    const char *path,
    size_t *size); /* whole file, malloc'd, NUL-terminated; "-": standard input; NULL: the error was reported */
/* Parses the object in a line of JSON lines. Returns NULL and status 0 for an empty line, NULL and an exit status
 * for an invalid one. */
int cli_json_read(const char *path, int64_t number, const ch_value *line, json_t **object);
/* Option rows for how a model is run; they do not change what it computes. */
/* clang-format off */
#define CLI_THREADS(target) {"threads", "N", CLI_INT, target, "0", "number of threads; 0: OMP_NUM_THREADS, or all CPUs that the process may use; results do not depend on it", 0}
#define CLI_COMPUTE(target)                                                                                            \
  {"compute", "fp32|bf16|q8_0", CLI_CHOICE, target, NULL,                                                               \
   "type of matrix products; q8_0 keeps weights in 8 bits, which takes a quarter of the memory; default: the config's", 0}
#define CLI_EMULATE_BF16(target)                                                                                       \
  {"emulate-bf16", NULL, CLI_FLAG, target, NULL, "allow bf16 on a CPU without bf16 instructions; it saves memory, not time", 0}
#define CLI_RANKS_OPTIONS                                                                                              \
  {"replicas", "R", CLI_INT, &cli_replicas, "0",                                                                       \
   "MPI, data parallelism: number of copies of the experts; 0: chosen for training, 1 in other commands", 0},           \
  {"hidden", "H", CLI_INT, &cli_hidden, "0",                                                                           \
   "MPI, tensor parallelism: number of parts into which each expert's hidden layer is split; 0: chosen for "            \
   "training, 1 in other commands", 0},                                                                                \
  {"shard-dense", NULL, CLI_FLAG, &cli_shard_dense, NULL,                                                              \
   "MPI: keep each matrix outside of the experts on one rank, and prefetch it on the others, as ZeRO-3 does; it "       \
   "saves memory", 0},                                                                                                 \
  {"rank-timeout", "S", CLI_REAL, &cli_rank_timeout, "600",                                                            \
   "exit with status 4 when another rank has been silent for S seconds (MPI); 0: never", 0},              \
  {"verbose-ranks", NULL, CLI_FLAG, &cli_verbose_ranks, NULL,                                                          \
   "let every rank print; ranks above 0 print to standard error, with their rank before each line (MPI)", 0}
#define CLI_SHARDS(target)                                                                                             \
  {"shards", "N", CLI_INT64, target, "0",                                                                              \
   "number of shards in which each batch is computed, a multiple of the number of processes; 0: train.grad_chunks of the checkpoint", 0}
#define CLI_BACKEND(target)                                                                                            \
  {"backend", "NAME", CLI_TEXT, target, "cpu", "cpu, reference (plain C, slow) or cuda; cuda:1 is the second device ('choir devices' lists them)", 0}
/* clang-format on */

/* settings.c */
/* Loads CONFIG, or config.json of a checkpoint or run directory, and applies settings; returns an exit status. */
int cli_load_config(const char *path, const cli_list *settings, choir_config **config);
/* The value of an existing field: as text, valid for a few calls, and as an integer. And whether the model is
 * trained by masking. */
const char *cli_field(const choir_config *config, const char *key);
int cli_count_of(const choir_config *config, const char *key);
int cli_predicts_masked(const choir_model *model);
/* Sets model.vocab_size to `given`, if that is not 0. If model.vocab_size is still 0, sets it to 32,000 and returns
 * nonzero. */
int cli_vocabulary(choir_config *config, int given);
/* clang-format off */
#define CLI_VOCABULARY(target)                                                                                         \
  {"vocab-size", "V", CLI_INT, target, NULL, "vocabulary size, if the config leaves it to the data", 0}
/* clang-format on */
int cli_apply_settings(choir_config *config, const cli_list *settings);
int cli_apply_router_settings(choir_config *config, const cli_list *settings); /* accepts only options of the router */

/* clang-format off */
/* Option rows for verbs that load a checkpoint, stored in these choir_model_options. */
#define CLI_UNCHECKED(run)                                                                                             \
  {"unchecked", NULL, CLI_FLAG, &run.unchecked, NULL,                                                                  \
   "also load weights that are not finite, and a config or tokenizer that was edited", 0}
#define CLI_MODEL_OPTIONS(run)                                                                                         \
  CLI_COMPUTE(&run.compute), CLI_UNCHECKED(run), CLI_BACKEND(&run.backend), CLI_THREADS(&run.threads)
/* clang-format on */

/* score_requests.c, score_task.c: the two modes of choir score. */
typedef struct cli_score_options {
  choir_model_options run;
  choir_task_options of_task;
  choir_score_options scoring; /* for both modes */
  const char *requests, *task, *routing;
  int tokens, json;
} cli_score_options;
int cli_score_requests(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer);
int cli_score_task(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer);

/* checkpoint.c */
/* Opens a checkpoint, or the best one of a run (else the newest), calls `use` with the model and closes it; returns an
 * exit status. routing: NULL for the model's own. Without `tokenizer_too` the checkpoint need not have a tokenizer, and
 * `use` gets NULL. */
int cli_with_model(const char *checkpoint, choir_model_options *run, const char *routing, int tokenizer_too,
                   int (*use)(choir_model *model, const choir_tokenizer *tokenizer));
/* Whether the options request 8-bit weights, which are for inference only. */
int cli_rounds_weights(const choir_model_options *run);
/* *data: the data directory that a run, or the run of a checkpoint, was trained on, malloc'd; returns an exit
 * status. remedy: the options to give where it is not known, for the error. */
int cli_data_of_run(const char *path, const char *remedy, const char **data);

#endif
