/* The page of choir inspect: static HTML, style and script from the files beside this one, and the data as JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/model.h"
#include "base/error.h"
#include "base/format.h"
#include "base/text.h"
#include "choir/version.h"
#include "data/encoder.h"
#include "file/file.h"
#include "file/json.h"
#include "pages/inspect.h"
#include "pages/page.h"

/* A page of more tokens than this a browser would not like. */
enum { MOST_TOKENS = 65536 };

/* For each layer JSON, written while the layers run: for each token its experts and gates in ten-thousandths, in turn.
 */
typedef struct routes {
  int layers;
  FILE **file;
  char **text;
  size_t *size;
} routes;

static void routes_free(routes *r) {
  for (int i = 0; i < r->layers; i++) {
    if (r->file && r->file[i]) fclose(r->file[i]);
    if (r->text) free(r->text[i]);
  }
  free(r->file);
  free(r->text);
  free(r->size);
}

static int routes_begin(int layers, routes *r) {
  size_t count = (size_t)layers;
  *r = (routes){.layers = layers,
                .file = calloc(count + 1, sizeof *r->file),
                .text = calloc(count + 1, sizeof *r->text),
                .size = calloc(count + 1, sizeof *r->size)};
  int failed = !r->file || !r->text || !r->size;
  for (int i = 0; i < layers && !failed; i++) failed = !(r->file[i] = open_memstream(&r->text[i], &r->size[i]));
  return failed ? ch_error(CHOIR_ERROR_MEMORY, "no memory for the page") : CHOIR_OK;
}

static void write_routes(void *context, const choir_routing *r) {
  FILE *out = ((routes *)context)->file[r->moe];
  for (int t = 0; t < r->tokens; t++) {
    if (r->valid && !r->valid[t]) continue;
    fputs(ftell(out) ? ",[" : "[", out);
    for (int at = r->token_begin[t]; at < r->token_begin[t + 1]; at++) {
      int slot = r->token_slot[at];
      fprintf(out, "%s%d,%ld", at > r->token_begin[t] ? "," : "", choir_routing_expert(r, slot),
              lrint(1e4 * (double)r->slot_gate[slot]));
    }
    fputc(']', out);
  }
}

/* Closes the files; their texts stay. */
static int routes_end(routes *r) {
  int failed = 0;
  for (int i = 0; i < r->layers; i++) {
    failed |= ferror(r->file[i]) | fclose(r->file[i]);
    r->file[i] = NULL;
  }
  return failed ? ch_error(CHOIR_ERROR_MEMORY, "no memory for the page") : CHOIR_OK;
}

/* The bytes of a token: a string, or where they are no UTF-8 an array of their numbers. */
static json_t *piece_json(const choir_tokenizer *t, int32_t id) {
  ch_surface s = t->surface[id];
  if (!s.size) return json_string(choir_tokenizer_piece(t, id)); /* a control piece */
  if (ch_utf8_valid(s.text, s.size) == s.size) return json_stringn(s.text, s.size);
  json_t *bytes = json_array();
  for (size_t i = 0; i < s.size; i++) ch_json_add(bytes, json_integer((unsigned char)s.text[i]));
  return bytes;
}

/* "pieces": every token of the vocabulary that the text has, "ids": their numbers, "text": places in "pieces". */
static void write_text(FILE *out, const choir_tokenizer *t, const int32_t *ids, int64_t count, int32_t *place) {
  json_t *pieces = json_array(), *numbers = json_array();
  for (int i = 0; i < t->vocab; i++) place[i] = -1;
  fputs("\"text\":[", out);
  for (int64_t i = 0; i < count; i++) {
    if (place[ids[i]] < 0) {
      place[ids[i]] = (int32_t)json_array_size(pieces);
      json_t *piece = piece_json(t, ids[i]);
      ch_json_add(pieces, piece ? piece : json_string("?"));
      ch_json_add(numbers, json_integer(ids[i]));
    }
    fprintf(out, "%s%d", i ? "," : "", place[ids[i]]);
  }
  fputs("],\n\"pieces\":", out);
  ch_html_json(out, pieces);
  fputs(",\n\"ids\":", out);
  ch_html_json(out, numbers);
  json_decref(pieces);
  json_decref(numbers);
}

static void write_page(FILE *out, json_t *inspection, const choir_tokenizer *t, const ch_text_tokens *text,
                       const ch_inspection *shown, const routes *r, int32_t *place) {
  int64_t tokens = shown->eval.tokens;
  const char *name = json_string_value(json_object_get(inspection, "text"));
  ch_page_begin(out, name ? name : "inspect", ch_inspect_css, 1);
  fputs(ch_inspect_html, out);
  fprintf(out, "<script type=\"application/json\" id=data>\n{\"version\":\"%s\",\n\"inspection\":", choir_version());
  ch_html_json(out, inspection);
  fputs(",\n", out);
  write_text(out, t, text->ids, tokens, place);
  fputs(",\n\"losses\":[null", out); /* nothing predicts the first */
  for (int64_t t = 1; t < tokens; t++) ch_print(out, ",%.3f", (double)shown->token_loss[t]);
  fputs("],\n\"routes\":[", out);
  for (int i = 0; i < r->layers; i++) fprintf(out, "%s\n[%s]", i ? "," : "", r->text[i]);
  fprintf(out, "]}\n</script>\n<script>\n%s%s</script>\n</html>\n", ch_inspect_text_js, ch_inspect_js);
}

static int save(const char *output, json_t *inspection, const choir_tokenizer *t, const ch_text_tokens *text,
                const ch_inspection *shown, const routes *r) {
  char *page = NULL;
  size_t bytes = 0;
  int32_t *place = reallocarray(NULL, (size_t)t->vocab, sizeof *place);
  FILE *out = inspection && place ? open_memstream(&page, &bytes) : NULL;
  if (out) write_page(out, inspection, t, text, shown, r, place);
  int failed = !out || ferror(out);
  if (out && fclose(out)) failed = 1;
  int code =
      failed ? ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the page", output) : ch_file_save(output, page, bytes);
  free(page);
  free(place);
  return code;
}

static int inspect(choir_model *model, const choir_tokenizer *t, const ch_inspect_options *o,
                   const ch_text_tokens *text, const char *output) {
  ch_inspection inspection = {0};
  routes r;
  int code = routes_begin(choir_model_moe_layers(model), &r);
  if (!code) code = ch_inspect_tokens(model, text, o, write_routes, &r, &inspection);
  if (!code) code = routes_end(&r);
  if (!code) {
    json_t *json = ch_inspection_json(model, t, o, &inspection);
    code = save(output, json, t, text, &inspection, &r);
    json_decref(json);
  }
  routes_free(&r);
  ch_inspection_free(&inspection);
  return code;
}

int ch_inspect_page(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options,
                    const char *output) {
  ch_text_tokens text;
  size_t most = options->tokens && options->tokens < MOST_TOKENS ? (size_t)options->tokens : MOST_TOKENS;
  CH_TRY(ch_model_alone(model, "ch_inspect_page"));
  CH_TRY(
      ch_text_tokens_read(tokenizer, options->text, most + 1, NULL, NULL, &text)); /* the last one is only predicted */
  int code = inspect(model, tokenizer, options, &text, output);
  free(text.ids);
  return code;
}
