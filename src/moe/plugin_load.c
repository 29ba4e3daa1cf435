/* Routers in shared libraries. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/enter.h"
#include "file/file.h"
#include "moe/plugin.h"

/* What dlopen says of a text is "invalid ELF header". */
static int refuse_library(const char *path, const char *why) {
  static const char magic[] = "\177ELF";
  const void *bytes;
  size_t size;
  if (ch_file_map(path, &bytes, &size)) return ch_error(CHOIR_ERROR_IO, "plug-in %s: %s", path, why);
  int is_library = size >= 4 && !memcmp(bytes, magic, 4);
  ch_file_unmap(bytes, size);
  const char *dot = strrchr(path, '.');
  int stem = dot ? (int)(dot - path) : (int)strlen(path);
  if (is_library) return ch_error(CHOIR_ERROR_IO, "plug-in %s: %s", path, why);
  if (dot && !strcmp(dot, ".c"))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "plug-in %s: is a source, and must be compiled: cc -shared -fPIC -O2 %s -o %.*s.so; then take "
                    "%.*s.so",
                    path, path, stem, path, stem, path);
  if (dot && !strcmp(dot, ".py"))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "plug-in %s: is Python, which --plugin of the program and choir.load_plugin take", path);
  return ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: is no shared library (FILE.so), and no Python (FILE.py)", path);
}

/* What the library that is being loaded did: routers that it added, and the last error that it was given. */
static _Thread_local int added, refused;

static int add(const choir_plugin_router *router) {
  refused = choir_router_register(router);
  added += !refused;
  return refused;
}

int choir_plugin_load(const char *path) {
  CH_ENTER(path);
  char local[4096]; /* a name without a slash would be looked for in the system's directories */
  snprintf(local, sizeof local, "%s%s", strchr(path, '/') ? "" : "./", path);
  void *file = dlopen(local, RTLD_NOW | RTLD_LOCAL);
  if (!file) return refuse_library(path, dlerror());
  int (*plugin)(choir_plugin_add add);
  *(void **)&plugin = dlsym(file, "choir_plugin");
  if (!plugin) {
    dlclose(file);
    return ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: has no function choir_plugin (choir/plugin.h)", path);
  }
  ch_plugin_file = path;
  added = refused = 0;
  int code = plugin(add); /* its code is needed from now on */
  ch_plugin_file = NULL;
  if (code && code != refused)
    return ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: its choir_plugin gave %d: must be what add gave, or 0", path,
                    code);
  if (!code && !added)
    return ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: its choir_plugin added no router: give each to add", path);
  return code;
}
