/* SentencePiece models: any file is loaded or refused; one that is loaded gives back every text, or says that it
 * cannot.
 */
#include <string.h>

#include "choir/tokenizer.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "  Ab \xE2\x96\x81 c\xC3\xA9\t\n qu\xEF\xAC\x81z";
  choir_tokenizer *t;
  int32_t *ids;
  char *back;
  size_t count, length;
  if (choir_tokenizer_load(input_file(data, size), &t)) return 0;
  for (int i = 0; i < choir_tokenizer_vocab_size(t); i++)
    if (!choir_tokenizer_piece(t, i)) abort();
  if (!choir_tokenizer_encode(t, text, sizeof text - 1, &ids, &count)) {
    if (choir_tokenizer_decode(t, ids, count, &back, &length)) abort();
    if (length != sizeof text - 1 || memcmp(text, back, length)) abort();
    free(back);
    free(ids);
  }
  choir_tokenizer_free(t);
  return 0;
}
