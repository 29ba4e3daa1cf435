#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/text.h"
#include "model/config.h"
#include "model/param.h"
#include "moe/router.h"
#include "optim/optim.h"

/* The largest integer of a field: JSON readers use doubles for all numbers, which are not exact for integers above
 * 2^53. */
#define BIG (0x1p53 - 1)
/* clang-format off */
#define AT(of, section, name) \
  .path = #section "." #name, .kind = CH_FIELD_##of, .offset = offsetof(choir_config, section.name)
#define RANGE(of, section, name, otherwise, min, max, text) \
  { AT(of, section, name), .value = otherwise, .low = min, .high = max, .help = text },
#define ROW_INTEGER(...) RANGE(INTEGER, __VA_ARGS__)
#define ROW_LONG(...) RANGE(LONG, __VA_ARGS__)
#define ROW_SEED(...) RANGE(SEED, __VA_ARGS__)
#define ROW_STEPS(...) RANGE(STEPS, __VA_ARGS__)
#define ROW_NUMBER(...) RANGE(NUMBER, __VA_ARGS__)
#define ROW_ABOVE(section, name, otherwise, min, max, text) \
  { AT(NUMBER, section, name), .value = otherwise, .low = min, .high = max, .open = 1, .help = text },
#define ROW_FLAG(section, name, otherwise, text) RANGE(FLAG, section, name, otherwise, 0, 1, text)
#define ROW_WORD(section, name, otherwise, choices, text) \
  { AT(WORD, section, name), .value = otherwise, .words = choices, .help = text },
#define ROW_TEXT(section, name, max, text) { AT(TEXT, section, name), .high = (max) - 1, .help = text },
#define ROW_ROUTER(section, member, text) \
  { .path = #section ".name", .kind = CH_FIELD_ROUTER, .offset = offsetof(choir_config, section.member), \
    .words = ch_router_names, .help = text },
const ch_field ch_fields[] = {
#define FIELD(kind, ...) ROW_##kind(model, __VA_ARGS__)
#include "config/model.def"
#undef FIELD
    ROW_ROUTER(model.router, kind, "which router; brings its own defaults for the rest of the object")
#define FIELD(kind, ...) ROW_##kind(model.router, __VA_ARGS__)
#include "config/router.def"
#undef FIELD
#define FIELD(kind, ...) ROW_##kind(train, __VA_ARGS__)
#include "config/train.def"
#undef FIELD
#define FIELD(kind, ...) ROW_##kind(parallel, __VA_ARGS__)
#include "config/parallel.def"
#undef FIELD
};
/* clang-format on */
_Static_assert(sizeof ch_fields / sizeof *ch_fields == CH_FIELDS, "every line of *.def is counted");

int64_t ch_config_steps(double steps, int64_t of) { return llround(steps < 1 ? steps * (double)of : steps); }

static double number_of(const choir_config *config, const ch_field *f) {
  const void *from = (const char *)config + f->offset;
  switch (f->kind) {
    case CH_FIELD_LONG:
      return (double)*(const int64_t *)from;
    case CH_FIELD_SEED:
      return (double)*(const uint64_t *)from;
    case CH_FIELD_NUMBER:
    case CH_FIELD_STEPS:
      return *(const double *)from;
    default:
      return *(const int *)from;
  }
}

static const char *word_of(const choir_config *config, const ch_field *f) {
  const void *from = (const char *)config + f->offset;
  if (f->kind == CH_FIELD_TEXT) return from;
  if (f->kind == CH_FIELD_ROUTER) return (*(const ch_router *const *)from)->name;
  return f->words[*(const int *)from];
}

static int is_text(const ch_field *f) { return f->kind >= CH_FIELD_WORD; }

/* Requires a value within the field's limits, so that the conversion is exact. */
static void set_number(choir_config *config, const ch_field *f, double value) {
  void *to = (char *)config + f->offset;
  switch (f->kind) {
    case CH_FIELD_LONG:
      *(int64_t *)to = (int64_t)value;
      break;
    case CH_FIELD_SEED:
      *(uint64_t *)to = (uint64_t)value;
      break;
    case CH_FIELD_NUMBER:
    case CH_FIELD_STEPS:
      *(double *)to = value;
      break;
    default:
      *(int *)to = (int)value;
  }
}

/* Requires one of the field's words, or a text that fits its array. */
static void set_word(choir_config *config, const ch_field *f, const char *word) {
  void *to = (char *)config + f->offset;
  if (f->kind == CH_FIELD_ROUTER)
    config->model.router = ch_router_default(ch_router_find(word));
  else if (f->kind == CH_FIELD_WORD)
    *(int *)to = ch_word_number(f->words, word);
  else
    memcpy(memset(to, 0, (size_t)f->high + 1), word, strlen(word));
}

const char *ch_field_wanted(const ch_field *f, char *text, size_t size) {
  char list[256];
  if (f->kind == CH_FIELD_FLAG)
    snprintf(text, size, "true or false");
  else if (f->kind == CH_FIELD_NUMBER)
    ch_format(text, size, f->open ? "a number above %.10g, at most %.10g" : "a number from %.10g to %.10g", f->low,
              f->high);
  else if (f->kind == CH_FIELD_STEPS)
    snprintf(text, size, "a share below 1, or an integer to 2^53 - 1");
  else if (f->words)
    snprintf(text, size, "one of: %s", ch_word_list(list, sizeof list, f->words));
  else if (f->kind == CH_FIELD_TEXT)
    snprintf(text, size, "text of at most %d bytes", (int)f->high);
  else if (f->high == BIG)
    ch_format(text, size, "an integer from %.0f to 2^53 - 1", f->low);
  else
    ch_format(text, size, "an integer from %.0f to %.0f", f->low, f->high);
  return text;
}

static int refuse_value(const ch_field *f, const char *value, const char *suggestion) {
  char text[400];
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s: must be %s%s", f->path, value, ch_field_wanted(f, text, sizeof text),
                  suggestion);
}

static int number_fits(const ch_field *f, double value) {
  if (!(value >= f->low && value <= f->high) || (f->open && value <= f->low)) return 0;
  return f->kind == CH_FIELD_NUMBER || (f->kind == CH_FIELD_STEPS && value < 1) || value == floor(value);
}

static int check_word(const ch_field *f, const char *word) {
  char value[64], suggestion[160] = "";
  if (f->words ? ch_word_number(f->words, word) >= 0 : strlen(word) <= (size_t)f->high) return CHOIR_OK;
  snprintf(value, sizeof value, "\"%.40s\"", word);
  if (f->words) ch_did_you_mean(suggestion, 100, word, f->words);
  if (f->kind == CH_FIELD_ROUTER) strcat(suggestion, " (one of your own comes with --plugin FILE)");
  return refuse_value(f, value, suggestion);
}

void ch_field_default(choir_config *config, const ch_field *f) {
  if (f->kind == CH_FIELD_ROUTER) return; /* also sets other fields: ch_config_default */
  if (f->kind == CH_FIELD_TEXT)
    set_word(config, f, "");
  else
    set_number(config, f, f->value);
}

void ch_config_default(choir_config *config) {
  memset(config, 0, sizeof *config);
  for (int i = 0; i < CH_FIELDS; i++) ch_field_default(config, &ch_fields[i]);
  config->model.router = ch_router_default(ch_routers[0]);
}

int ch_field_set(choir_config *config, const ch_field *f, const json_t *value) {
  char text[80];
  if (is_text(f) && json_is_string(value)) {
    const char *word = json_string_value(value);
    CH_TRY(check_word(f, word));
    /* Setting the current router again keeps its options. */
    if (f->kind != CH_FIELD_ROUTER || strcmp(word, word_of(config, f))) set_word(config, f, word);
    return CHOIR_OK;
  }
  /* JSON does not distinguish integers and reals: 1e4 is a valid integer. */
  int right = f->kind == CH_FIELD_FLAG ? json_is_boolean(value) : !is_text(f) && json_is_number(value);
  double number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
  if (!right || !number_fits(f, number)) return refuse_value(f, ch_json_show(value, text, sizeof text), "");
  set_number(config, f, number);
  return CHOIR_OK;
}

int ch_field_check(const choir_config *config, const ch_field *f) {
  char text[100];
  if (is_text(f)) return CHOIR_OK; /* an unknown word was never set */
  double value = number_of(config, f);
  if (number_fits(f, value)) return CHOIR_OK;
  if (value == 0 && f->value == 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is missing: %s (%s)", f->path, ch_field_wanted(f, text, sizeof text),
                    f->help);
  ch_format(text, sizeof text, "%.17g", value);
  return refuse_value(f, text, "");
}

const char *ch_field_text(const choir_config *config, const ch_field *f, char *text, size_t size) {
  if (is_text(f))
    snprintf(text, size, "%s", word_of(config, f));
  else if (f->kind == CH_FIELD_FLAG)
    snprintf(text, size, "%s", number_of(config, f) != 0 ? "true" : "false");
  else
    ch_format_exact(text, size, number_of(config, f));
  return text;
}

double ch_field_number(const choir_config *config, const ch_field *f) {
  return is_text(f) ? (double)NAN : number_of(config, f);
}

int ch_field_same(const choir_config *a, const choir_config *b, const ch_field *f) {
  return is_text(f) ? !strcmp(word_of(a, f), word_of(b, f)) : number_of(a, f) == number_of(b, f);
}

json_t *ch_field_json(const choir_config *config, const ch_field *f) {
  double number = is_text(f) ? 0 : number_of(config, f);
  switch (f->kind) {
    case CH_FIELD_WORD:
    case CH_FIELD_TEXT:
    case CH_FIELD_ROUTER:
      return json_string(word_of(config, f));
    case CH_FIELD_FLAG:
      return json_boolean(number != 0);
    case CH_FIELD_NUMBER:
      return json_real(number);
    default: /* probabilities are below 1 */
      return number == floor(number) ? json_integer((json_int_t)number) : json_real(number);
  }
}
