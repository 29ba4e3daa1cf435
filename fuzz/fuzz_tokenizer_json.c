/* tokenizer.json: whatever it says, it becomes a tokenizer that gives back every text, or is refused by name. */
#include "export/import.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] =
      "  Ab a b abab \xE2\x96\x81 c\xC3\xA9\t\n <0x41></s> it's 123\r\n\n \xE4\xB8\xAD.!? <|endoftext|>\xCD\xB8";
  choir_tokenizer *t;
  int code = ch_import_tokenizer((const char *)data, size, "tokenizer.json", -1, 0, &t);
  if (code && !*choir_error_message()) abort();
  if (!code) input_tokenizer(t, text, sizeof text - 1);
  return 0;
}
