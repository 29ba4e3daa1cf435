/* Source files that are embedded in the library and found by name; CMake generates the tables (cmake/embed.cmake). */
#ifndef CH_BASE_EMBEDDED_H
#define CH_BASE_EMBEDDED_H

typedef struct ch_embedded {
  const char *name, *text;
} ch_embedded;

extern const ch_embedded ch_tasks[], ch_configs[]; /* terminated by a row of NULLs */

#endif
