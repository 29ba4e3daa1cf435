/* Which parts of a source are kept for evaluation. */
#ifndef CH_DATA_HOLDOUT_H
#define CH_DATA_HOLDOUT_H

#include "data/text.h"

enum { CH_HOLDOUT_DOCUMENTS = 200, CH_HOLDOUT_BLOCK = 1 << 16 };

/* How a source is divided: by documents, or, where it has too few of them, by blocks of text. */
typedef struct ch_holdout {
  uint64_t seed;
  uint32_t source;
  double share; /* of the units; with very little text more than was asked for, so that both sides get some */
  int by_blocks;
  size_t block_bytes; /* of a unit when by_blocks, else just of the reader's blocks */
} ch_holdout;

/* Looks at the source's text, only as far as needed to see that it has documents enough. `goes_on` is asked after every
 * block and may end it with an error. CHOIR_ERROR_FORMAT: no text at all. */
int ch_holdout_plan(const ch_text_options *text, uint64_t seed, int source, double share, int (*goes_on)(void *context),
                    void *context, ch_holdout *holdout);

/* Whether unit number `unit` is held out: exactly one, drawn by the counter-based generator, of each run of 1/share
 * units. */
int ch_held_out(const ch_holdout *holdout, uint64_t unit);

#endif
