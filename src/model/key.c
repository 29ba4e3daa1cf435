/* Lookup of fields by key, and their accepted values, for the public interface. */
#include <stdio.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "model/config.h"

static int unknown_path(const char *key) {
  enum { PARTS = 3 }; /* max components of a path */
  const char *known[PARTS * CH_FIELDS + 1];
  char suggestion[100];
  int count = 0;
  for (int i = 0; i < CH_FIELDS; i++)
    for (const char *end = ch_fields[i].path; end; end = strchr(end, '.') ? strchr(end, '.') + 1 : NULL)
      known[count++] = end;
  known[count] = NULL;
  return ch_error(CHOIR_ERROR_ARGUMENT, "unknown key '%.80s'%s", key,
                  ch_field_did_you_mean(suggestion, sizeof suggestion, key, known));
}

int ch_field_find(const char *key, const ch_field **found) {
  *found = NULL;
  for (int i = 0; i < CH_FIELDS; i++) {
    if (!ch_path_ends(ch_fields[i].path, key)) continue;
    if (*found)
      return ch_error(CHOIR_ERROR_ARGUMENT, "key '%s' may be %s or %s: write one of them", key, (*found)->path,
                      ch_fields[i].path);
    *found = &ch_fields[i];
  }
  const char *now = *found ? NULL : ch_field_renamed(key);
  if (!now) return *found ? CHOIR_OK : unknown_path(key);
  ch_notice("'%s' is called %s now", key, now);
  return ch_field_find(now, found);
}

const ch_field *ch_field_former(const char *section, const char *key) {
  char path[256];
  snprintf(path, sizeof path, "%s.%.100s", section, key);
  const char *now = ch_field_renamed(path);
  for (int i = 0; now && i < CH_FIELDS; i++)
    if (!strcmp(ch_fields[i].path, now)) return &ch_fields[i];
  return NULL;
}

void ch_field_describe(const ch_field *f, const choir_config *defaults, choir_field *field) {
  static const choir_field_kind kinds[] = {
      [CH_FIELD_INTEGER] = CHOIR_FIELD_INTEGER, [CH_FIELD_LONG] = CHOIR_FIELD_INTEGER,
      [CH_FIELD_SEED] = CHOIR_FIELD_INTEGER,    [CH_FIELD_NUMBER] = CHOIR_FIELD_NUMBER,
      [CH_FIELD_STEPS] = CHOIR_FIELD_STEPS,     [CH_FIELD_FLAG] = CHOIR_FIELD_FLAG,
      [CH_FIELD_WORD] = CHOIR_FIELD_WORD,       [CH_FIELD_TEXT] = CHOIR_FIELD_TEXT,
      [CH_FIELD_ROUTER] = CHOIR_FIELD_WORD};
  *field = (choir_field){
      .kind = kinds[f->kind], .low = f->low, .high = f->high, .above = f->open, .words = f->words, .help = f->help};
  snprintf(field->key, sizeof field->key, "%s", f->path);
  ch_field_text(defaults, f, field->value, sizeof field->value);
}

int choir_config_field_count(void) { return CH_FIELDS; }

int choir_config_field_at(int index, choir_field *field) {
  CH_ENTER(field);
  if (index < 0 || index >= CH_FIELDS)
    return ch_error(CHOIR_ERROR_ARGUMENT, "there is no field number %d: a config has %d", index, CH_FIELDS);
  choir_config defaults;
  ch_config_default(&defaults);
  ch_field_describe(&ch_fields[index], &defaults, field);
  return CHOIR_OK;
}

int choir_config_describe(const char *key, choir_field *field) {
  CH_ENTER(key, field);
  const ch_field *f;
  CH_TRY(ch_field_find(key, &f));
  return choir_config_field_at((int)(f - ch_fields), field);
}
