#include "data/input.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/gzip.h"

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

static int failed(ch_input *input, const char *doing) {
  const char *why = archive_error_string(input->archive);
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %s at byte %llu: %s", input->path, doing,
                  (unsigned long long)ch_input_consumed(input), why ? why : "unknown failure");
}

int ch_input_open(ch_input *input, const char *path) {
  *input = (ch_input){.path = path};
  CH_TRY(ch_input_check(path, &input->size));
  CH_TRY(ch_gzip_open(path, &input->gzip));
  if (input->gzip) return CHOIR_OK;
  struct archive *a = input->archive = archive_read_new();
  if (!a) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory to read %s", path);
  /* These only: libarchive also knows filters (uuencode, ...) that plain text can look like. */
  archive_read_support_filter_xz(a);
  archive_read_support_filter_zstd(a);
  archive_read_support_filter_bzip2(a);
  archive_read_support_format_raw(a);
  archive_read_support_format_empty(a);
  struct archive_entry *entry;
  int rc = archive_read_open_filename(a, path, READ_BYTES);
  if (rc == ARCHIVE_OK) rc = archive_read_next_header(a, &entry);
  input->ended = rc == ARCHIVE_EOF;
  if (rc == ARCHIVE_OK || rc == ARCHIVE_EOF) return CHOIR_OK;
  int code = failed(input, "cannot be read");
  ch_input_close(input);
  return code;
}

/* Where libarchive ends: its bzip2 takes whatever is no stream behind one for the end of the file. */
static int whole(const ch_input *input) {
  uint64_t consumed = ch_input_consumed(input);
  if (consumed >= input->size) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: damaged at byte %llu: %llu bytes behind it are no compressed data",
                  input->path, (unsigned long long)consumed, (unsigned long long)(input->size - consumed));
}

int ch_input_read(ch_input *input, const void **data, size_t *size) {
  *size = 0;
  if (input->gzip) {
    int code = ch_gzip_read(input->gzip, data, size);
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
  if (input->gzip) return ch_gzip_consumed(input->gzip);
  la_int64_t bytes = input->archive ? archive_filter_bytes(input->archive, -1) : 0;
  return bytes > 0 ? (uint64_t)bytes : 0;
}

void ch_input_close(ch_input *input) {
  if (input->gzip) ch_gzip_close(input->gzip);
  if (input->archive) archive_read_free(input->archive);
  input->gzip = NULL, input->archive = NULL;
}
