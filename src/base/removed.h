/* Words that an earlier version took and this one does not. */
#ifndef CH_BASE_REMOVED_H
#define CH_BASE_REMOVED_H

/* CHOIR_ERROR_ARGUMENT, with the last version that has it, if `word` was a value of `kind` ("routing", "backend"); what
 * follows a colon, as the number of a device, does not count. Else CHOIR_OK. */
int ch_check_removed(const char *kind, const char *word);

#endif
