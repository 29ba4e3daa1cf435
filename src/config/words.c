#include "config/config.h"

#define WORD(number, word) [number] = word,
#define WORDS(list, type, words) const char *const list[] = {words NULL};
#include "config/words.def"

const char *const ch_activation_names[] = {[CH_GELU] = "gelu", [CH_GEGLU] = "geglu", [CH_SWIGLU] = "swiglu", NULL};
