#include "export/gguf.h"

#include <endian.h>
#include <string.h>

enum { ALIGNMENT = 32, VERSION = 3, ARRAY = 9 };

static const char padding[ALIGNMENT];

static uint64_t padded(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static void append_bytes(ch_gguf *g, ch_buffer *to, const void *data, size_t bytes) {
  if (!g->error) g->error = ch_buffer_append(to, data, bytes);
}

static void append_u32(ch_gguf *g, ch_buffer *to, uint32_t value) {
  value = htole32(value);
  append_bytes(g, to, &value, sizeof value);
}

static void append_u64(ch_gguf *g, ch_buffer *to, uint64_t value) {
  value = htole64(value);
  append_bytes(g, to, &value, sizeof value);
}

static void append_text(ch_gguf *g, ch_buffer *to, const char *text, size_t size) {
  append_u64(g, to, size);
  append_bytes(g, to, text, size);
}

static void begin_key(ch_gguf *g, const char *key, uint32_t type) {
  append_text(g, &g->keys, key, strlen(key));
  append_u32(g, &g->keys, type);
  g->key_count++;
}

void ch_gguf_put_text(ch_gguf *g, const char *key, const char *text) {
  begin_key(g, key, CH_GGUF_TEXT);
  append_text(g, &g->keys, text, strlen(text));
}

void ch_gguf_put_u32(ch_gguf *g, const char *key, uint32_t value) {
  begin_key(g, key, CH_GGUF_U32);
  append_u32(g, &g->keys, value);
}

void ch_gguf_put_f32(ch_gguf *g, const char *key, float value) {
  begin_key(g, key, CH_GGUF_F32);
  ch_gguf_add(g, &value);
}

void ch_gguf_put_flag(ch_gguf *g, const char *key, int value) {
  char byte = value ? 1 : 0;
  begin_key(g, key, CH_GGUF_BOOL);
  append_bytes(g, &g->keys, &byte, 1);
}

void ch_gguf_put_array(ch_gguf *g, const char *key, ch_gguf_value of, uint64_t count) {
  begin_key(g, key, ARRAY);
  append_u32(g, &g->keys, of);
  append_u64(g, &g->keys, count);
}

void ch_gguf_add(ch_gguf *g, const void *four_bytes) {
  uint32_t bits;
  memcpy(&bits, four_bytes, sizeof bits);
  append_u32(g, &g->keys, bits);
}

void ch_gguf_add_text(ch_gguf *g, const char *text, size_t size) { append_text(g, &g->keys, text, size); }

void ch_gguf_add_tensor(ch_gguf *g, const char *name, int dims, const int64_t *shape, uint32_t type, uint64_t bytes) {
  append_text(g, &g->tensors, name, strlen(name));
  append_u32(g, &g->tensors, (uint32_t)dims);
  for (int i = dims; i-- > 0;) append_u64(g, &g->tensors, (uint64_t)shape[i]);
  append_u32(g, &g->tensors, type);
  append_u64(g, &g->tensors, g->data_bytes);
  g->tensor_count++;
  g->data_bytes += padded(bytes);
}

/* Writes zeros up to the next multiple of the alignment. */
static void pad(ch_gguf *g) { ch_file_write(&g->file, padding, (size_t)(padded(g->file.bytes) - g->file.bytes)); }

int ch_gguf_start(ch_gguf *g, const char *path) {
  ch_buffer head = {0};
  append_bytes(g, &head, "GGUF", 4);
  append_u32(g, &head, VERSION);
  append_u64(g, &head, g->tensor_count);
  append_u64(g, &head, g->key_count);
  int code = g->error ? g->error : ch_file_begin(&g->file, path);
  if (!code) {
    g->open = 1;
    g->file.needed = padded(head.size + g->keys.size + g->tensors.size) + g->data_bytes;
    ch_file_write(&g->file, head.data, head.size);
    ch_file_write(&g->file, g->keys.data, g->keys.size);
    ch_file_write(&g->file, g->tensors.data, g->tensors.size);
    pad(g);
  }
  free(head.data);
  return code;
}

void ch_gguf_write(ch_gguf *g, const void *data, size_t bytes) { ch_file_write(&g->file, data, bytes); }

void ch_gguf_end_tensor(ch_gguf *g) { pad(g); }

int ch_gguf_close(ch_gguf *g, int code) {
  if (g->open && code) ch_file_abandon(&g->file);
  if (g->open && !code) code = ch_file_commit(&g->file);
  free(g->keys.data);
  free(g->tensors.data);
  return code;
}
