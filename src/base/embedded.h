/* Files of the source that the library knows by name; CMake makes the tables (cmake/embed.cmake). */
#ifndef CH_BASE_EMBEDDED_H
#define CH_BASE_EMBEDDED_H

typedef struct ch_embedded {
  const char *name, *text;
} ch_embedded;

extern const ch_embedded ch_tasks[], ch_configs[]; /* after the last a row of NULLs */

#endif
