/* Values out of JSON objects, and as text. */
#ifndef CH_STUDY_VALUES_H
#define CH_STUDY_VALUES_H

#include "study/study_statistics.h"

const char *ch_text_at(const json_t *object, const char *key); /* "" where there is none */

/* {mean, deviation, low, high, count, ...}; exponentials of them where asked for. */
json_t *ch_estimate_json(const ch_estimate *estimate, int exponential);

/* "4.5123", or "-" where there is none; in one of a ring of buffers. */
const char *ch_number_text(const char *format, double value);
/* "0.031 (0.012 to 0.050)" of {mean, low, high}. */
const char *ch_interval_text(const char *format, const json_t *estimate);

#endif
