#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/alloc.h"
#include "data/text.h"

/* ---- gzip files (also dictzip, and several members in a row) ----
 * With zlib: libarchive reads them, too, but does not check checksums. */

enum { PIECE = 1 << 17, GZIP_WINDOW = 15 + 16 /* GZIP_WINDOW: zlib's code for gzip headers */ };

typedef struct ch_gzip {
  int fd, inside; /* inside: within a member */
  z_stream z;
  uint64_t consumed; /* compressed bytes passed to zlib */
  unsigned char in[PIECE], out[2 * PIECE];
} ch_gzip;

/* Reads the next bytes of the file; 0 bytes: its end. */
static int fill_input(ch_gzip *g) {
  ssize_t n = read(g->fd, g->in, sizeof g->in);
  if (n < 0) return ch_error_errno("cannot be read");
  g->z.next_in = g->in, g->z.avail_in = (unsigned)n;
  g->consumed += (uint64_t)n;
  return CHOIR_OK;
}

/* *gzip NULL without an error: the file is not a gzip file. */
static int gzip_open(const char *path, ch_gzip **gzip) {
  *gzip = NULL;
  ch_gzip *g;
  CH_TRY(CH_ALLOC(&g, 1, "what is read of %s", path));
  g->fd = open(path, O_RDONLY | O_CLOEXEC);
  int code = g->fd < 0 ? ch_error_errno("%s", path) : fill_input(g);
  if (!code && g->z.avail_in >= 3 && !memcmp(g->in, "\x1F\x8B\x08", 3)) {
    if (inflateInit2(&g->z, GZIP_WINDOW) == Z_OK)
      *gzip = g;
    else
      code = ch_error(CHOIR_ERROR_MEMORY, "not enough memory to read %s", path);
  }
  if (!*gzip) {
    if (g->fd >= 0) close(g->fd);
    free(g);
  }
  return code;
}

/* Reads the bytes that zlib needs next. Between members the file may end, also after zeros (which tapes add);
 * anything else must be a member. */
static int feed(ch_gzip *g, int *ended) {
  do {
    if (!g->z.avail_in) CH_TRY(fill_input(g));
    *ended = !g->z.avail_in;
    if (*ended) return g->inside ? ch_error(CHOIR_ERROR_FORMAT, "the file ends too early") : CHOIR_OK;
    while (!g->inside && g->z.avail_in && !*g->z.next_in) g->z.next_in++, g->z.avail_in--;
  } while (!g->z.avail_in);
  if (!g->inside) inflateReset(&g->z);
  g->inside = 1;
  return CHOIR_OK;
}

/* ch_input_read for a gzip file. Messages do not name the file: the caller adds its name. */
static int gzip_read(ch_gzip *g, const void **data, size_t *size) {
  g->z.next_out = g->out, g->z.avail_out = sizeof g->out;
  while (g->z.avail_out == sizeof g->out) {
    int ended;
    CH_TRY(feed(g, &ended));
    if (ended) break;
    int rc = inflate(&g->z, Z_NO_FLUSH);
    if (rc == Z_STREAM_END)
      g->inside = 0;
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
      return ch_error(CHOIR_ERROR_FORMAT, "%s", g->z.msg ? g->z.msg : "not gzip data");
  }
  *data = g->out;
  *size = sizeof g->out - g->z.avail_out;
  return CHOIR_OK;
}

static void gzip_close(ch_gzip *g) {
  inflateEnd(&g->z);
  close(g->fd);
  free(g);
}

/* ---- any input ---- */

enum { READ_BYTES = 1 << 18 };

int ch_input_check(const char *path, uint64_t *bytes) {
  struct stat st;
  if (stat(path, &st)) return ch_error_errno("%s", path);
  if (S_ISDIR(st.st_mode)) return ch_error(CHOIR_ERROR_IO, "%s: is a directory; name the files in it", path);
  if (!S_ISREG(st.st_mode)) return ch_error(CHOIR_ERROR_IO, "%s: not a regular file", path);
  if (access(path, R_OK)) return ch_error_errno("%s", path);
  *bytes = (uint64_t)st.st_size;
  return CHOIR_OK;
}

static int has_ending(const char *path) {
  static const char *const endings[] = {".gz", ".xz", ".bz2", ".zst", ".tgz", ".zip", ".7z", ".lz4", ".pdf"};
  size_t length = strlen(path);
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    size_t size = strlen(endings[i]);
    if (length > size && !strcasecmp(path + length - size, endings[i])) return 1;
  }
  return 0;
}

/* Refuses a file in no known compressed format whose name ends like a compressed file's; ch_detect_non_text checks its
 * bytes. */
static int check_ending(const char *path, size_t size) {
  if (!size || !has_ending(path)) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_FORMAT,
      "%s: its name ends like that of a compressed file, and it cannot be read as one: it is damaged, or of a kind "
      "that choir does not read (unpack it first), or text (give it another name)",
      path);
}

static int failed(ch_input *input, const char *doing) {
  const char *why = archive_error_string(input->archive);
  int window = why && strstr(why, "too much memory"); /* libarchive supports zstd windows of up to 128 MiB */
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %s at byte %llu: %s%s", input->path, doing,
                  (unsigned long long)ch_input_consumed(input), why ? why : "unknown failure",
                  window ? "; unpack it first: zstd -dc --long=31 FILE >TEXT" : "");
}

int ch_input_open(ch_input *input, const char *path) {
  *input = (ch_input){.path = path};
  CH_TRY(ch_input_check(path, &input->size));
  CH_TRY(gzip_open(path, &input->gzip));
  if (input->gzip) return CHOIR_OK;
  struct archive *a = input->archive = archive_read_new();
  if (!a) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory to read %s", path);
  /* Only these filters: libarchive's others (uuencode, ...) may match plain text. */
  archive_read_support_filter_xz(a);
  archive_read_support_filter_zstd(a);
  archive_read_support_filter_bzip2(a);
  archive_read_support_format_raw(a);
  archive_read_support_format_empty(a);
  struct archive_entry *entry;
  int rc = archive_read_open_filename(a, path, READ_BYTES);
  if (rc == ARCHIVE_OK) rc = archive_read_next_header(a, &entry);
  input->ended = rc == ARCHIVE_EOF;
  int code = rc == ARCHIVE_OK || rc == ARCHIVE_EOF ? CHOIR_OK : failed(input, "cannot be read");
  if (!code && archive_filter_code(a, 0) == ARCHIVE_FILTER_NONE) code = check_ending(path, input->size);
  if (!code) return CHOIR_OK;
  ch_input_close(input);
  return code;
}

/* Checks that the whole file was read: libarchive's bzip2 filter treats anything but a stream as the end of the
 * file. */
static int whole(const ch_input *input) {
  uint64_t consumed = ch_input_consumed(input);
  if (consumed >= input->size) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: damaged at byte %llu: the %llu bytes after it are no compressed data",
                  input->path, (unsigned long long)consumed, (unsigned long long)(input->size - consumed));
}

int ch_input_read(ch_input *input, const void **data, size_t *size) {
  *size = 0;
  if (input->gzip) {
    int code = gzip_read(input->gzip, data, size);
    input->ended = !*size;
    return code ? ch_error_in(code, "%s: damaged or truncated at byte %llu", input->path,
                              (unsigned long long)ch_input_consumed(input))
                : CHOIR_OK;
  }
  while (!input->ended && !*size) {
    la_int64_t offset;
    int rc = archive_read_data_block(input->archive, data, size, &offset);
    if (rc == ARCHIVE_EOF) {
      input->ended = 1;
      *size = 0;
      return whole(input);
    } else if (rc != ARCHIVE_OK) {
      return failed(input, "damaged or truncated");
    }
  }
  return CHOIR_OK;
}

uint64_t ch_input_consumed(const ch_input *input) {
  if (input->gzip) return input->gzip->consumed - input->gzip->z.avail_in;
  la_int64_t bytes = input->archive ? archive_filter_bytes(input->archive, -1) : 0;
  return bytes > 0 ? (uint64_t)bytes : 0;
}

void ch_input_close(ch_input *input) {
  if (input->gzip) gzip_close(input->gzip);
  if (input->archive) archive_read_free(input->archive);
  input->gzip = NULL, input->archive = NULL;
}
