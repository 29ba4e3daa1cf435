/* An index of several safetensors files: whatever it says, it brings all tensors of the files that it names, or is
 * refused. There are two small files of choir, and one of another program. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file/file.h"
#include "file/json.h"
#include "file/tensors_set.h"

enum { FILES = 3 };
static const char *const names[FILES] = {"a.safetensors", "b.safetensors", "c.safetensors"};
static char *bytes[FILES];
static size_t sizes[FILES];

/* A file of choir with two tensors: its bytes. */
static void make_file(int f, const char *first, const char *second) {
  static const unsigned char data[4] = {1, 2, 3, 4};
  choir_tensor t[2] = {{.dtype = CHOIR_U8, .dims = 1, .shape = {3}, .data = data, .bytes = 3},
                       {.dtype = CHOIR_U8, .dims = 0, .data = data, .bytes = 1}};
  char path[] = "/tmp/choir-fuzz-XXXXXX";
  int fd = mkstemp(path);
  strcpy(t[0].name, first);
  strcpy(t[1].name, second);
  if (fd < 0 || close(fd) || choir_tensors_write(path, t, 2, NULL) || ch_file_read(path, 4096, &bytes[f], &sizes[f]))
    abort();
  unlink(path);
}

static void make_files(void) {
  static const char foreign[] =
      "\x38\0\0\0\0\0\0\0{\"e\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}        xy";
  make_file(0, "w", "x");
  make_file(1, "y", "z");
  bytes[2] = malloc(sizeof foreign);
  if (!bytes[2]) abort();
  memcpy(bytes[2], foreign, sizes[2] = sizeof foreign - 1);
}

static int open_one(void *context, const char *file, choir_tensors **tensors) {
  (void)context;
  for (int f = 0; f < FILES; f++)
    if (!strcmp(file, names[f])) return ch_tensors_parse(bytes[f], sizes[f], file, 1, tensors);
  if (strchr(file, '/')) abort();
  return ch_error(CHOIR_ERROR_IO, "%s: not there", file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_tensors *tensors;
  json_t *root;
  if (!bytes[0]) make_files();
  if (ch_json_parse((const char *)data, size, "index", &root)) return 0;
  if (!ch_tensors_set_join(root, "index", open_one, NULL, &tensors)) {
    if ((size_t)choir_tensors_count(tensors) != json_object_size(json_object_get(root, "weight_map"))) abort();
    for (int i = 0; i < choir_tensors_count(tensors); i++)
      if (choir_tensors_find(tensors, choir_tensors_at(tensors, i)->name) != choir_tensors_at(tensors, i)) abort();
    choir_tensors_free(tensors);
  }
  json_decref(root);
  return 0;
}
