/* study.json: what a study is, so that it can be looked at and gone on with. */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "file/json.h"
#include "study/study.h"

int ch_study_save(const ch_study *s) {
  char path[PATH_MAX + 16], hash[24];
  snprintf(path, sizeof path, "%s/study.json", s->own);
  snprintf(hash, sizeof hash, "%016" PRIx64, s->data_hash);
  return ch_json_save(
      json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:I, s:O, s:O, s:o}", "format", "choir-study", "scale_name",
                s->scale_name, "data", s->data, "data_hash", hash, "data_tokens", (json_int_t)s->data_tokens,
                "vocab_size", s->vocab_size, "seeds", s->seeds, "tokens", (json_int_t)(s->steps * s->step_tokens),
                "recipe", s->recipe, "scale", s->scale, "tune", ch_study_tune_json(s)),
      path);
}

static int read_study(const json_t *root, const char *path, ch_study *s) {
  const char *format, *scale, *data, *hash;
  int64_t tokens, vocab, seeds;
  json_t *recipe;
  CH_TRY(ch_json_get_string(root, path, "format", &format));
  if (strcmp(format, "choir-study")) return ch_error(CHOIR_ERROR_FORMAT, "%s: format '%s': not a study", path, format);
  CH_TRY(ch_json_get_string(root, path, "scale_name", &scale));
  CH_TRY(ch_json_get_string(root, path, "data", &data));
  CH_TRY(ch_json_get_string(root, path, "data_hash", &hash));
  CH_TRY(ch_json_get_integer(root, path, "data_tokens", 1, INT64_MAX / 2, &s->data_tokens));
  CH_TRY(ch_json_get_integer(root, path, "vocab_size", 1, 1 << 20, &vocab));
  CH_TRY(ch_json_get_integer(root, path, "seeds", 1, CH_STUDY_SEEDS, &seeds));
  CH_TRY(ch_json_get_integer(root, path, "tokens", 1, INT64_MAX / 2, &tokens));
  CH_TRY(ch_json_get_object(root, path, "recipe", &recipe));
  CH_TRY(ch_recipe_check(path, recipe));
  s->recipe = json_incref(recipe);
  s->scale = json_incref(json_object_get(root, "scale"));
  snprintf(s->name, sizeof s->name, "%s", json_string_value(json_object_get(recipe, "name")));
  snprintf(s->scale_name, sizeof s->scale_name, "%s", scale);
  snprintf(s->data, sizeof s->data, "%s", data);
  s->data_hash = strtoull(hash, NULL, 16);
  s->vocab_size = (int)vocab;
  s->seeds = (int)seeds;
  CH_TRY(ch_study_tune_read(s, json_object_get(root, "tune"), path));
  return ch_study_plan(s, tokens);
}

/* The study that stands in `own`; needs no data. */
static int open_study(const char *directory, const char *own, ch_study *s) {
  char path[PATH_MAX + 16];
  json_t *root;
  *s = (ch_study){0};
  snprintf(s->directory, sizeof s->directory, "%s", directory);
  snprintf(s->own, sizeof s->own, "%s", own);
  snprintf(path, sizeof path, "%s/study.json", own);
  CH_TRY(ch_json_load(path, &root));
  int code = read_study(root, path, s);
  json_decref(root);
  if (code) ch_study_free(s);
  return code;
}

int ch_study_each(const char *directory, int (*each)(void *context, ch_study *study), void *context) {
  struct dirent **entry;
  int found = 0, code = CHOIR_OK, count = scandir(directory, &entry, NULL, alphasort);
  if (count < 0) return ch_error_errno("%s: cannot open", directory);
  for (int i = 0; i < count; i++) {
    char own[PATH_MAX], file[PATH_MAX + 16];
    ch_study study;
    snprintf(own, sizeof own, "%s/%s", directory, entry[i]->d_name);
    snprintf(file, sizeof file, "%s/study.json", own);
    free(entry[i]);
    if (code || access(file, R_OK)) continue;
    found = 1;
    code = open_study(directory, own, &study);
    if (code) continue;
    code = each(context, &study);
    ch_study_free(&study);
  }
  free(entry);
  if (!code && !found)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: holds no study; `choir study run` makes one", directory);
  return code;
}
