#include "study/study_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "file/json.h"

const char *ch_text_at(const json_t *object, const char *key) {
  const char *value = json_string_value(json_object_get(object, key));
  return value ? value : "";
}

static char *ring(size_t *size) {
  static _Thread_local char buffers[16][112];
  static _Thread_local int next;
  *size = sizeof buffers[0];
  return buffers[next++ % 16];
}

const char *ch_number_text(const char *format, double value) {
  size_t size;
  char *out = ring(&size);
  if (!isfinite(value)) return "-";
  snprintf(out, size, format, value);
  return out;
}

const char *ch_interval_text(const char *format, const json_t *estimate) {
  size_t size;
  char *out = ring(&size), part[3][28];
  static const char *const keys[] = {"mean", "low", "high"};
  for (int i = 0; i < 3; i++) {
    double value = ch_number_at(estimate, keys[i]);
    snprintf(part[i], sizeof part[i], isfinite(value) ? format : "-", value);
  }
  if (strcmp(part[1], "-"))
    snprintf(out, size, "%s (%s to %s)", part[0], part[1], part[2]);
  else
    snprintf(out, size, "%s", part[0]);
  return out;
}

json_t *ch_estimate_json(const ch_estimate *e, int exponential) {
  double v[5] = {e->mean, e->low, e->high, e->low80, e->high80};
  for (int i = 0; exponential && i < 5; i++) v[i] = exp(v[i]);
  return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "count", e->count, "mean", ch_json_number(v[0]), "deviation",
                   ch_json_number(e->deviation), "low", ch_json_number(v[1]), "high", ch_json_number(v[2]), "low80",
                   ch_json_number(v[3]), "high80", ch_json_number(v[4]));
}
