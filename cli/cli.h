/* The verbs of the program share these: option tables, help, progress, numbers for people and for JSON. */
#ifndef CHOIR_CLI_H
#define CHOIR_CLI_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buffer.h"
#include "base/text.h"
#include "choir/choir.h"

/* Exit statuses beside 0. INTERRUPTED: and saved; SILENT: another process of several was not heard from. */
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
  CLI_NEW,    /* const char *, a directory to make */
  CLI_INPUT,  /* const char *, a file that is read; "-": standard input */
  CLI_SMALL,  /* the same, of CLI_SMALL_BYTES at most: JSON that people write */
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
  const char *argument; /* its name in help; NULL for a flag */
  cli_kind kind;
  void *target;
  const char *fallback; /* the default, as the user would type it; NULL: none */
  const char *help;     /* starts in lower case, no full stop */
  int required;
} cli_option;

typedef struct cli_verb {
  const char *name;     /* "train", or two words: "data build" */
  const char *operands; /* as help shows them: "[FILE...]"; "" for none */
  int min, max;         /* operands; most -1: any number */
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
extern const cli_verb cli_study;          /* takes its words as they are */

/* options.c */
/* What stands at words[0]: an operand; "--", behind which all are operands; --help; an option, whose value is the rest
 * of the word or the next one; or a dash that begins no option. */
typedef enum { CLI_WORD_OPERAND, CLI_WORD_END, CLI_WORD_HELP, CLI_WORD_OPTION, CLI_WORD_UNKNOWN } cli_word_kind;
typedef struct cli_word {
  cli_word_kind kind;
  int words;                /* that it takes */
  const char *name;         /* of an option, without dashes, `length` bytes */
  size_t length;            /* the value is not in it */
  const cli_option *option; /* its name is NULL: the verb has no such option */
  const char *value;        /* NULL: none */
} cli_word;
cli_word cli_read_word(const cli_verb *verb, char **words, int left); /* the one reader of words */
int cli_parse(const cli_verb *verb, int count, char **words); /* fills targets, runs the verb, gives its exit status */

/* say.c */
void cli_say_for(const cli_verb *verb);                                       /* later messages start with its name */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2))); /* says what is wrong; CLI_USAGE */
void cli_be_silent(void);                  /* from here on: of several ranks one speaks */
const char *cli_said(void);                /* the last message, also of a silent one */
void cli_print_notices(const char *lines); /* on standard error, each after the verb's name */
int cli_fail(void);                        /* prints the library's message; CLI_FAILED */
int cli_fail_with(const char *format, ...) __attribute__((format(printf, 1, 2))); /* prints its own; CLI_FAILED */
/* Text from files or models: a terminal shows it and does not obey it. */
void cli_show_as(const char *path, const char *name); /* a path of ours for what the user named so; both must stay */
void cli_put_text(FILE *out, const char *text, size_t size); /* lines and tabs stay */
const char *cli_shown(const char *name);                     /* a name, for standard output; good for a few calls */
size_t cli_json_flags(void);                                 /* of jansson, for standard output */

/* ranks.c: of several processes that mpirun or srun started */
const choir_ranks *cli_ranks(void);        /* this one's; NULL: alone */
int cli_ranks_speak(void);                 /* nonzero: what it prints is seen */
int cli_ranks_first(void);                 /* nonzero: it speaks, and writes what is to be written */
int cli_ranks_agree(int status);           /* the worst of all, which the first one says */
int cli_ranks_join(const cli_verb *verb);  /* which may be NULL; an exit status */
int cli_ranks_check(const cli_verb *verb); /* refuses to run a single-process verb on several ranks */
int cli_ranks_help(const char *what);      /* whether all want this help, which the first prints; an exit status */
void cli_ranks_leave(void);
extern int cli_verbose_ranks;                         /* --verbose-ranks */
extern double cli_rank_timeout;                       /* seconds; --rank-timeout */
extern int cli_replicas, cli_hidden, cli_shard_dense; /* --replicas, --hidden, --shard-dense */
/* Checks these options, if the words before were right; all ranks hear it; exit status. */
int cli_ranks_take_options(const cli_verb *verb, int status);
int cli_ranks_no_pipe(const char *path); /* refuses "-" where there are several; an exit status */

/* files.c: what inputs name. Zeros begin an empty list. */
typedef struct cli_files {
  const char **names; /* runs that end in NULL */
  ch_buffer list;     /* of which they are made */
} cli_files;
/* A file, or the files below a directory whose names match `pattern` (NULL: all), in the order of their names; an exit
 * status. */
int cli_files_add(cli_files *files, const char *path, const char *pattern);
int cli_files_end(cli_files *files); /* ends a run */
void cli_files_free(cli_files *files);
#define CLI_PATTERN(target) \
  { "pattern", "GLOB", CLI_TEXT, target, NULL, "in directories, read only files whose names match, such as '*.txt'", 0 }

/* start.c */
int cli_start(void); /* makes the process fit to work in; an exit status, 0: it is */

/* plugin.c: --plugin, an option of every verb. Its files are loaded before the verb joins other ranks, and before any
 * config is read. */
extern const cli_option cli_plugin_option;
int cli_add_plugin(const char *file);  /* a value of it, NULL: it has none; an exit status */
int cli_plugin_count(void);            /* values that were added */
int cli_load_plugins(void);            /* loads these files; an exit status */
const char *cli_plugins_shown(void);   /* " --plugin FILE" of each, for commands to go on with */
int cli_load_python(const char *file); /* plugin_python.c: routers of a file of Python; an exit status */

/* python.c: becomes Python with a module of the package; what: the command, for messages; needed: modules, by commas.
 * It returns, with an exit status, where it fails. */
int cli_python(const char *what, const char *module, const char *needed, int count, const char *const *words);

/* help.c */
extern const char cli_statuses[]; /* what exit statuses mean */
void cli_help(FILE *out);         /* all verbs */
void cli_help_verb(FILE *out, const cli_verb *verb);
void cli_help_usage(FILE *out, const cli_verb *verb);
void cli_help_family(FILE *out, const char *family); /* "data": its verbs */
void cli_help_routers(FILE *out);                    /* all routers and their options */
void cli_help_router(FILE *out, const char *name);
void cli_help_config(FILE *out, const char *name);

/* completion.c */
int cli_completion(const char *shell); /* prints a script for "bash" or "zsh" */

/* manual.c */
int cli_manual(const char *directory); /* writes choir.1 and choir-VERB.1 for every verb */

/* layout.c: what verbs print fits the terminal: COLUMNS columns where that is set, otherwise the terminal's, or 80. */
int cli_columns(FILE *out);
int cli_wraps(FILE *out); /* nonzero: lines of messages wrap; zero for a file or a pipe, without COLUMNS */
#define CLI_TIE "\x1F"    /* a blank at which no line breaks */
int cli_width(const char *text, size_t size); /* columns that it takes */
/* Wraps text; its first line starts at column `at`, the others at `indent`. cli_wrap ends the line. */
void cli_wrap(FILE *out, const char *text, int at, int indent);
void cli_wrap_at(FILE *out, const char *text, int at, int indent, int columns);
/* Text in which no line breaks, such as a command to copy; good for a few calls. */
const char *cli_whole(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A paragraph on standard output: lines after the first start at `indent`, the first where its own blanks say. */
void cli_print(int indent, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* table.c: a table on standard output. Columns with nothing but dashes are left out, and the last one wraps if it is
 * text. */
enum { CLI_TABLE_COLUMNS = 16 };
typedef struct cli_table {
  int indent, columns, cells, last_text, lost;
  char right[CLI_TABLE_COLUMNS];
  ch_buffer text;
} cli_table;
void cli_table_begin(cli_table *table, int indent, const char *heads); /* "name|loss>": > aligns to the right */
void cli_cell(cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3))); /* row by row */
int cli_table_end(cli_table *table); /* prints and frees it; an exit status */

/* text.c: numbers in a ring of buffers, good for a few calls within one printf. */
const char *cli_count(double number);               /* 548M, 1.9B, 12.3k */
const char *cli_bytes(double bytes);                /* 7.4 GiB */
const char *cli_memory(const choir_memory *memory); /* "weights 22.6 MiB, gradients ...", by purpose; for one call */
json_t *cli_json_memory(const choir_memory *memory);
const char *cli_grouped(int64_t number); /* 1,234,567 */
/* A text with gaps, or a prompt and `length` gaps after it; each gap of an --infill has so many tokens. */
typedef struct {
  choir_fill_options fill;
  const char *prompt, *infill;
  int length, json;
} cli_fill_request;
int cli_fill(choir_model *model, const choir_tokenizer *tokenizer, const cli_fill_request *request);

/* What to call a loss of that objective: "loss", "bound", "masked loss". */
const char *cli_measure(const char *objective);
int cli_is_masked(const char *objective);
/* "held-out loss: 1.88 bits per byte (unigram baseline: 2.63), threshold routing", or of a text; bits: per byte, of one
 * nat per token; gzip: bits per byte, or NaN. */
void cli_print_outcome(const char *objective, int of_text, double bits, double loss, const char *routing,
                       double unigram_loss, double gzip);
const char *cli_duration(double seconds); /* 2:31, 1:02:03 */
char *cli_unescape(const char *text);     /* \f \n \t \\; malloc'd; NULL where the escape is unknown */
void cli_json_watch(void);            /* from now on an object that lacks something for want of memory is not printed */
int cli_json_print(json_t *object);   /* to standard output, and releases it */
int cli_json_line(json_t *object);    /* the same on one line */
json_t *cli_json_real(double number); /* null where JSON has no such number */
json_t *cli_json_stats(const choir_route_stats *stats); /* NULL: no memory */
json_t *cli_json_layers(const choir_model *model);      /* statistics of every MoE layer; NULL: the library's error */
void cli_print_certificate(const choir_certificate *certificate);        /* one line, where a solver assigned */
void cli_print_histogram(const choir_route_stats *stats);                /* tokens held by 0, 1, ... experts */
void cli_print_load(const char *before, const choir_route_stats *stats); /* after these words or blanks */

/* progress.c: one line about long work on standard error, redrawn on a terminal, every ten seconds elsewhere. */
typedef struct cli_progress {
  int terminal, stands; /* a line is on the terminal */
  int waiting;          /* for room on the disk, and it has been said */
  double started, shown;
  double seconds, cpu; /* of steps since cli_note_busy looked last: how long they took, CPU time that a thread had */
  double lost;         /* share of the CPU time that others took, by its last note; 0: no note yet */
  FILE *out;
  const char *routing; /* that cli_progress_count names; NULL: none */
} cli_progress;
void cli_progress_begin(cli_progress *progress, FILE *out);
int cli_progress_due(cli_progress *progress); /* nonzero: time for another line */
void cli_progress_line(cli_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_clear(cli_progress *progress);                 /* before anything else is printed, and at the end */
int cli_progress_count(void *progress, const choir_progress *p); /* for the library's progress options */
int cli_progress_share(void *progress, const char *what, double share); /* the same, of export and import */
/* Shows the events that are the same in training and fine-tuning: memory, notices, waiting. 0: another one. */
int cli_show_event(cli_progress *progress, const choir_event *event);
/* Notes, after each step, that other programs take the cores: once, and again if they take much more. */
void cli_note_busy(cli_progress *progress, const choir_step_speed *step);
/* choir_eval or choir_calibrate, with progress; exit status. */
int cli_evaluate(choir_model *model, const choir_tokenizer *tokenizer, choir_eval_options options, int calibrate,
                 choir_eval_result *result);
double cli_seconds(void);

/* signals.c */
void cli_catch_signals(void);       /* that ask to stop, once: cli_stop_requested; a second one kills */
void cli_catch_closed_output(void); /* SIGPIPE too: nobody reads on, but what was done must be saved */
int cli_stop_requested(void);

/* pipes.c: operands and options of kind CLI_INPUT, CLI_SMALL and CLI_OUTPUT go through these. */
enum { CLI_SMALL_BYTES = 16 << 20 };                /* what the library takes of a JSON file */
const char *cli_input(const char *path, int small); /* a path to read as often as one likes; NULL: reported */
const char *cli_output(const char *path); /* a path to write to, while stdout is standard error; NULL: reported */
int cli_pipes_end(int status);            /* writes what goes to standard output; the exit status */

/* outputs.c: an exit status, before any work. */
int cli_check_file(const char *path); /* an output file */
/* Refuses an output that is there and is an operand, the value of an option that names inputs, or a file of one of
 * these directories that the verb reads. */
int cli_is_output(const cli_option *option);
int cli_check_not_input(const cli_verb *verb, const char *path, int count, const char *const *operands);
/* Refuses an output that an option before it in the verb's table names, too. */
int cli_check_apart(const cli_verb *verb, const cli_option *output);
int cli_check_new(const char *path); /* an output directory, which may exist if it is empty */

/* input.c */
char *cli_read_file(const char *path,
                    size_t *size); /* whole, malloc'd, a NUL after it; "-": standard input; NULL: reported */
/* The object of a line of JSON lines; NULL and 0 where the line is empty, NULL and an exit status where it is none. */
int cli_json_read(const char *path, int64_t number, const ch_value *line, json_t **object);
/* Rows of how a model is run: choices of this call, no part of what it computes. */
/* clang-format off */
#define CLI_THREADS(target) {"threads", "N", CLI_INT, target, "0", "number of threads; 0: OMP_NUM_THREADS, or all CPUs that the process may use; results do not depend on it", 0}
#define CLI_COMPUTE(target)                                                                                            \
  {"compute", "fp32|bf16|q8_0", CLI_CHOICE, target, NULL,                                                               \
   "type of matrix products; q8_0 keeps weights in 8 bits, which takes a quarter of the memory; default: the config's", 0}
#define CLI_EMULATE_BF16(target)                                                                                       \
  {"emulate-bf16", NULL, CLI_FLAG, target, NULL, "allow bf16 on a CPU without bf16 instructions; it saves memory, not time", 0}
#define CLI_RANKS_OPTIONS                                                                                              \
  {"replicas", "R", CLI_INT, &cli_replicas, "0",                                                                       \
   "data parallelism: number of replicas of the experts (MPI); 0: training chooses it, other commands use 1", 0}, \
  {"hidden", "H", CLI_INT, &cli_hidden, "0",                                                                           \
   "tensor parallelism: number of shards into which each expert's hidden width is cut (MPI); 0: training chooses it, other commands use 1", 0},                        \
  {"shard-dense", NULL, CLI_FLAG, &cli_shard_dense, NULL,                                                              \
   "keep each dense matrix on one rank and prefetch it on the others, as ZeRO-3 does (MPI); it saves memory", 0},      \
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
/* CONFIG itself, or the config.json of a checkpoint or run directory, with settings; an exit status. */
int cli_load_config(const char *path, const cli_list *settings, choir_config **config);
/* The value of a field that there is: as a text, until a few calls later, and as an integer. Whether the model is
 * trained by masking. */
const char *cli_field(const choir_config *config, const char *key);
int cli_count_of(const choir_config *config, const char *key);
int cli_predicts_masked(const choir_model *model);
/* Sets the vocabulary where it is given, or where the config leaves it to the data: then 32,000, and nonzero. */
int cli_vocabulary(choir_config *config, int given);
/* clang-format off */
#define CLI_VOCABULARY(target)                                                                                         \
  {"vocab-size", "V", CLI_INT, target, NULL, "vocabulary size, if the config leaves it to the data", 0}
/* clang-format on */
int cli_apply_settings(choir_config *config, const cli_list *settings);
int cli_apply_router_settings(choir_config *config, const cli_list *settings); /* options of the router alone */

/* clang-format off */
/* Rows for verbs that load a checkpoint, with these choir_model_options. */
#define CLI_UNCHECKED(run)                                                                                             \
  {"unchecked", NULL, CLI_FLAG, &run.unchecked, NULL,                                                                  \
   "also load weights that are not finite, and a config or tokenizer that was edited", 0}
#define CLI_MODEL_OPTIONS(run)                                                                                         \
  CLI_COMPUTE(&run.compute), CLI_UNCHECKED(run), CLI_BACKEND(&run.backend), CLI_THREADS(&run.threads)
/* clang-format on */

/* score_requests.c, score_task.c: the two things that choir score does. */
typedef struct cli_score_options {
  choir_model_options run;
  choir_task_options of_task;
  choir_score_options scoring; /* of the task, or of requests */
  const char *requests, *task, *routing;
  int tokens, json;
} cli_score_options;
int cli_score_requests(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer);
int cli_score_task(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer);

/* checkpoint.c */
/* Opens a checkpoint, or the newest one of a run, uses the model and closes it; an exit status. routing: NULL, its own.
 * Without `tokenizer_too` the checkpoint need not have a tokenizer, and the use gets NULL. */
int cli_with_model(const char *checkpoint, choir_model_options *run, const char *routing, int tokenizer_too,
                   int (*use)(choir_model *model, const choir_tokenizer *tokenizer));
/* Whether the options ask for weights of 8 bits, which are for inference only. */
int cli_rounds_weights(const choir_model_options *run);
/* *data: what a run, or a checkpoint in one, was trained on, malloc'd; an exit status. */
int cli_data_of_run(const char *path, const char **data);

#endif
