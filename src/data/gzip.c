#include "data/gzip.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { PIECE = 1 << 17, GZIP_WINDOW = 15 + 16 /* zlib's way to ask for gzip headers */ };

struct ch_gzip {
  int fd, inside; /* inside a member */
  z_stream z;
  uint64_t consumed; /* bytes handed to zlib */
  unsigned char in[PIECE], out[2 * PIECE];
};

/* Reads up to a piece of the file; 0 bytes: its end. */
static int fill(ch_gzip *g) {
  ssize_t n = read(g->fd, g->in, sizeof g->in);
  if (n < 0) return ch_error_errno("cannot be read");
  g->z.next_in = g->in, g->z.avail_in = (unsigned)n;
  g->consumed += (uint64_t)n;
  return CHOIR_OK;
}

int ch_gzip_open(const char *path, ch_gzip **gzip) {
  *gzip = NULL;
  ch_gzip *g = calloc(1, sizeof *g);
  if (!g) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory to read %s", path);
  g->fd = open(path, O_RDONLY | O_CLOEXEC);
  int code = g->fd < 0 ? ch_error_errno("%s", path) : fill(g);
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

/* Reads what zlib needs next. Between members the file may end, also after zeros (as tapes add them); anything else
 * must be a member. */
static int feed(ch_gzip *g, int *ended) {
  do {
    if (!g->z.avail_in) CH_TRY(fill(g));
    *ended = !g->z.avail_in;
    if (*ended) return g->inside ? ch_error(CHOIR_ERROR_FORMAT, "the file ends too early") : CHOIR_OK;
    while (!g->inside && g->z.avail_in && !*g->z.next_in) g->z.next_in++, g->z.avail_in--;
  } while (!g->z.avail_in);
  if (!g->inside) inflateReset(&g->z);
  g->inside = 1;
  return CHOIR_OK;
}

int ch_gzip_read(ch_gzip *g, const void **data, size_t *size) {
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

uint64_t ch_gzip_consumed(const ch_gzip *g) { return g->consumed - g->z.avail_in; }

void ch_gzip_close(ch_gzip *g) {
  inflateEnd(&g->z);
  close(g->fd);
  free(g);
}
