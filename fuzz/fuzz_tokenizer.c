/* Files of tokenizers: any file is loaded or refused; one that is loaded gives back every text, or says that it cannot.
 */
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "  Ab \xE2\x96\x81 c\xC3\xA9\t\n qu\xEF\xAC\x81z";
  choir_tokenizer *t;
  if (!choir_tokenizer_load(input_file(data, size), &t)) input_tokenizer(t, text, sizeof text - 1);
  return 0;
}
