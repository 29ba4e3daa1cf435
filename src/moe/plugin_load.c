/* Routers in shared libraries. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "file/file.h"
#include "moe/plugin.h"

/* For a text file, dlopen's message is "invalid ELF header". */
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

/* Of the library that is being loaded: number of registered routers, and the last error returned to it. */
static _Thread_local int added, refused;

static int note(int code) {
  refused = code;
  added += !refused;
  return refused;
}

static int add_experts(const choir_experts_choose *router) { return note(choir_router_register_experts(router)); }
static int add_tokens(const choir_tokens_choose *router) { return note(choir_router_register_tokens(router)); }
static int add_earlier(const choir_plugin_router *router) { return note(choir_router_register(router)); }

/* Loaded libraries: dlopen of the same file returns the loaded code even if the file has changed. */
typedef struct loaded {
  void *library;
  uint64_t checksum; /* of the file when it was loaded */
  struct loaded *next;
} loaded;
static loaded *all;

static int check_same(const char *path, void *library, uint64_t checksum) {
  const loaded *l = all;
  while (l && l->library != library) l = l->next;
  if (l && l->checksum != checksum)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "plug-in %s: the file has changed since this process loaded it, and its old code would run: end "
                    "the process and begin anew",
                    path);
  if (l) return CHOIR_OK;
  loaded *made;
  CH_TRY(CH_ALLOC(&made, 1, "a plug-in"));
  *made = (loaded){library, checksum, all};
  all = made;
  return CHOIR_OK;
}

/* The entry function of a file: that of this version, or of 0.4 and 0.5. */
typedef struct {
  int (*routers)(const choir_plugin_registry *registry);
  int (*earlier)(choir_plugin_add add);
} plugin_function;

/* Returns the entry function, and the checksum of the file at the time of loading. */
static int open_library(const char *path, plugin_function *function, uint64_t *checksum) {
  char local[4096]; /* dlopen searches the system's directories for names without a slash */
  uint64_t after;
  snprintf(local, sizeof local, "%s%s", strchr(path, '/') ? "" : "./", path);
  int code = ch_plugin_read(local, checksum);
  void *library = dlopen(local, RTLD_NOW | RTLD_LOCAL);
  if (!library) return refuse_library(path, dlerror());
  if (!code) code = ch_plugin_read(local, &after);
  if (!code && after != *checksum)
    code = ch_error(CHOIR_ERROR_BUSY, "plug-in %s: changed while it was loaded: try again", path);
  *(void **)&function->routers = dlsym(library, "choir_plugin_routers");
  *(void **)&function->earlier = dlsym(library, "choir_plugin");
  if (!code && !function->routers && !function->earlier)
    code = ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: has no function choir_plugin_routers (choir/plugin.h)", path);
  if (!code) code = check_same(path, library, *checksum);
  if (code) dlclose(library);
  return code;
}

int choir_plugin_load(const char *path) {
  CH_ENTER(path);
  static const choir_plugin_registry registry = {
      .size = sizeof registry, .experts_choose = add_experts, .tokens_choose = add_tokens};
  plugin_function plugin;
  ch_plugin_source source = {.path = path};
  CH_TRY(open_library(path, &plugin, &source.checksum));
  ch_plugin_loading = &source;
  added = refused = 0;
  int code = plugin.routers ? plugin.routers(&registry) : plugin.earlier(add_earlier); /* the library stays loaded */
  ch_plugin_loading = NULL;
  if (code && code != refused)
    return ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: its function gave %d: must be what the registry gave, or 0", path,
                    code);
  if (!code && !added)
    return ch_error(CHOIR_ERROR_FORMAT, "plug-in %s: its function added no router: give each to the registry", path);
  return code;
}
