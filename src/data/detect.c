/* Detects files that are not text by their first bytes: libarchive treats every unknown format as plain text, so
 * that an archive, or a compressed file with a damaged beginning, would be read byte by byte, and, with invalid bytes
 * replaced, become part of the corpus. */
#include <string.h>

#include "data/text.h"

static const struct {
  const char *name;
  size_t size;
  const unsigned char magic[10], digit; /* digit: index of a byte that may be any decimal digit; 0: no such byte */
} kinds[] = {{"gzip", 3, {0x1F, 0x8B, 8}, 0},
             {"xz", 6, {0xFD, '7', 'z', 'X', 'Z', 0}, 0},
             {"bzip2", 10, {'B', 'Z', 'h', '9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59}, 3},
             {"zstd", 4, {0x28, 0xB5, 0x2F, 0xFD}, 0},
             {"zip", 4, {'P', 'K', 3, 4}, 0},
             {"7-Zip", 6, {'7', 'z', 0xBC, 0xAF, 0x27, 0x1C}, 0},
             {"lz4", 4, {0x04, 0x22, 0x4D, 0x18}, 0},
             {"PDF", 5, {'%', 'P', 'D', 'F', '-'}, 0},
             {"ar", 8, {'!', '<', 'a', 'r', 'c', 'h', '>', '\n'}, 0},
             {"Parquet", 6, {'P', 'A', 'R', '1', 0x15, 0x04}, 0}};

static int bits_apart(const unsigned char *bytes, int kind) {
  int bits = 0;
  for (size_t i = 0; i < kinds[kind].size; i++)
    if (!kinds[kind].digit || i != kinds[kind].digit)
      bits += __builtin_popcount((unsigned)(bytes[i] ^ kinds[kind].magic[i]));
  return bits;
}

enum { TAR_BLOCK = 512, TAR_SUM = 148, TAR_MAGIC = 257 };

/* A tar archive of texts would be read as one text, including its headers. A header has a checksum of its own bytes,
 * computed with the checksum's eight bytes as spaces; newer headers have a magic number, too. */
static int is_tar(const unsigned char *data, size_t size) {
  if (size < TAR_BLOCK || !data[0]) return 0;
  if (!memcmp(data + TAR_MAGIC, "ustar", 5)) return 1;
  unsigned sum = 0, said = 0;
  int digits = 0;
  for (int i = 0; i < TAR_BLOCK; i++) sum += i >= TAR_SUM && i < TAR_SUM + 8 ? ' ' : data[i];
  for (int i = TAR_SUM; i < TAR_SUM + 8; i++)
    if (data[i] >= '0' && data[i] <= '7') said = said * 8 + (unsigned)(data[i] - '0'), digits++;
  return digits >= 4 && said == sum;
}

/* Whether the file starts with a cpio header, which consists of digits; a list of telephone numbers does not match. */
static int is_cpio(const unsigned char *data, size_t size) {
  enum { CPIO_HEADER = 76 };
  if (size < CPIO_HEADER || memcmp(data, "07070", 5)) return 0;
  for (int i = 0; i < CPIO_HEADER; i++)
    if (!data[i] || !strchr("0123456789abcdefABCDEF", data[i])) return 0;
  return 1;
}

/* Whether the text is UTF-16 or UTF-32: it begins with a byte order mark, or has more zeros than any UTF-8 text. */
static int is_wide(const unsigned char *data, size_t size) {
  size_t zeros = 0, looked = size < CH_DETECT_BYTES ? size : CH_DETECT_BYTES;
  if (size >= 2 && (!memcmp(data, "\xFF\xFE", 2) || !memcmp(data, "\xFE\xFF", 2))) return 1;
  for (size_t i = 0; i < looked; i++) zeros += !data[i];
  return zeros >= 4 && zeros * 4 > looked;
}

int ch_detect_non_text(const char *path, const void *bytes, size_t size) {
  const unsigned char *data = bytes;
  int tar = is_tar(data, size);
  if (tar || is_cpio(data, size))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: is a %s archive; unpack it and name the files in it", path,
                    tar ? "tar" : "cpio");
  for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++)
    if (size >= kinds[kind].size && bits_apart(data, kind) <= 1)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: begins like %s %s file%s, and is no text; unpack or convert it", path,
                      strchr("axl", kinds[kind].name[0]) ? "an" : "a", kinds[kind].name,
                      bits_apart(data, kind) ? " but for one bit: it is damaged" : "");
  if (is_wide(data, size))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: looks like UTF-16 or UTF-32, or is no text; convert it: iconv -f UTF-16 -t UTF-8 FILE >TEXT",
                    path);
  return CHOIR_OK;
}
