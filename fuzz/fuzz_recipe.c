/* Recipes of studies and scales (behind a byte 0; none: pico's): any JSON becomes a plan or is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "study/study.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ch_study study; /* too large for a stack */
  const char *cut = size ? memchr(data, 0, size) : NULL;
  size_t first = cut ? (size_t)(cut - (const char *)data) : size;
  study = (ch_study){.vocab_size = 1024, .seeds = 2};
  if (ch_json_parse((const char *)data, first, "recipe", &study.recipe)) return 0;
  if (ch_recipe_check("recipe", study.recipe) ||
      (cut ? ch_json_parse(cut + 1, size - first - 1, "scale", &study.scale) : ch_scale_load("pico", &study.scale))) {
    json_decref(study.recipe);
    return 0;
  }
  snprintf(study.name, sizeof study.name, "%s", json_string_value(json_object_get(study.recipe, "name")));
  snprintf(study.scale_name, sizeof study.scale_name, "scale");
  if (!ch_study_plan(&study, 0) && (study.arms < 1 || study.steps < 1)) abort();
  ch_study_free(&study);
  return 0;
}
