/* tokenizer.json: whatever it says, it becomes a SentencePiece model that is loaded and gives back every text, or is
 * refused by name. */
#include <stdlib.h>
#include <string.h>

#include "data/encoder.h"
#include "export/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "  Ab a b abab \xE2\x96\x81 c\xC3\xA9\t\n <0x41></s>";
  choir_tokenizer *t;
  ch_buffer model = {0};
  json_t *root;
  int32_t *ids;
  char *back;
  size_t count, length;
  if (ch_json_parse((const char *)data, size, "tokenizer.json", &root)) return 0;
  int code = ch_import_tokenizer(root, "tokenizer.json", -1, &model);
  json_decref(root);
  if (code) {
    if (!*choir_error_message()) abort();
    free(model.data);
    return 0;
  }
  if (ch_tokenizer_of(model.data, model.size, "tokenizer.json", &t)) return 0;
  if (choir_tokenizer_encode(t, text, sizeof text - 1, &ids, &count)) abort();
  if (choir_tokenizer_decode(t, ids, count, &back, &length)) abort();
  if (length != sizeof text - 1 || memcmp(text, back, length)) abort();
  free(back);
  free(ids);
  choir_tokenizer_free(t);
  return 0;
}
