/* Words that an earlier version accepted and this one does not. */
#ifndef CH_BASE_REMOVED_H
#define CH_BASE_REMOVED_H

/* CHOIR_ERROR_ARGUMENT, with the last version that has it, if `word` was a value of `kind` ("routing", "backend"). Text
 * from a colon on (a device number) is ignored. Otherwise CHOIR_OK. */
int ch_check_removed(const char *kind, const char *word);

#endif
