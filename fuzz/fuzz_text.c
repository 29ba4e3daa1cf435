/* Text and JSON lines, compressed or not: any file gives documents or is refused. The first byte says how it is read.
 */
#include <string.h>

#include "base/text.h"
#include "data/text.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { MAX = 1 << 22 }; /* what a few bytes may unpack to is no matter here */
  if (!size) return 0;
  const char *inputs[] = {input_file(data + 1, size - 1), NULL};
  ch_text_options o = {.inputs = inputs,
                       .field = data[0] & 1 ? "text" : NULL,
                       .separator = (data[0] & 3) == 2 ? "\f" : NULL,
                       .replace_invalid = (data[0] >> 2) & 1,
                       .block_bytes = data[0] & 8 ? 8 : 4096};
  ch_text *text;
  ch_block block;
  size_t total = 0;
  int more = 1, last = 1, code = 0;
  if (ch_text_open(&o, &text)) return 0;
  while (total < MAX && !(code = ch_text_next(text, &block, &more)) && more) {
    if (ch_utf8_valid(block.text, block.size) < block.size) abort();
    if (block.size > 3 * o.block_bytes + 8 || (!block.size && !block.last)) abort();
    total += block.size + 1;
    last = block.last;
  }
  if (!code && !more && !last) abort(); /* a document has an end */
  ch_text_close(text);
  return 0;
}
