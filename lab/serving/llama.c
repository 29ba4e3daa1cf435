/* Shows check.py what llama.cpp makes of a GGUF file: its tokens of texts, logits of tokens, and greedy text.
 *
 *   probe FILE tokens         texts on standard input, each ended by a NUL -> a line of token ids each
 *   probe FILE logits         a line of token ids each -> float [T,V] each, all positions
 *   probe FILE greedy N       a line of token ids each -> a line of N more */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what) {
  fprintf(stderr, "probe: %s\n", what);
  exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *context) {
  (void)context;
  if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void print_ids(const llama_token *ids, int count) {
  for (int i = 0; i < count; i++) printf("%s%d", i ? " " : "", ids[i]);
  putchar('\n');
}

static int read_ids(llama_token **ids) {
  char *line = NULL, *at, *end;
  size_t capacity = 0;
  int count = 0;
  if (getline(&line, &capacity, stdin) < 0) return -1;
  *ids = malloc((strlen(line) + 1) * sizeof **ids);
  for (at = line; *ids; at = end) {
    long id = strtol(at, &end, 10);
    if (end == at) break;
    (*ids)[count++] = (llama_token)id;
  }
  free(line);
  return count;
}

static void tokens(const struct llama_vocab *vocab) {
  char *text = NULL;
  size_t capacity = 0;
  for (ssize_t size; (size = getdelim(&text, &capacity, 0, stdin)) >= 0;) {
    if (size && !text[size - 1]) size--;
    llama_token *ids = malloc(((size_t)size + 8) * sizeof *ids);
    int count = ids ? llama_tokenize(vocab, text, (int)size, ids, (int)size + 8, 1, 0) : -1;
    if (count < 0) fail("cannot tokenize");
    print_ids(ids, count);
    free(ids);
  }
  free(text);
}

/* Appends ids [count] to a cache of `first` tokens, and asks for logits at each of them. */
static void decode(struct llama_context *context, const llama_token *ids, int first, int count) {
  struct llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int i = 0; i < count; i++) {
    batch.token[i] = ids[i], batch.pos[i] = first + i;
    batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0, batch.logits[i] = 1;
  }
  if (llama_decode(context, batch)) fail("cannot decode");
  llama_batch_free(batch);
}

static llama_token best(const float *logits, int V) {
  int max = 0;
  for (int v = 1; v < V; v++)
    if (logits[v] > logits[max]) max = v;
  return max;
}

/* steps 0: logits of the line; else so many greedy tokens. */
static void run(struct llama_context *context, int V, int steps) {
  llama_token *ids;
  for (int count; (count = read_ids(&ids)) > 0; free(ids)) {
    llama_memory_clear(llama_get_memory(context), 1);
    decode(context, ids, 0, count);
    for (int i = 0; i < count && !steps; i++)
      fwrite(llama_get_logits_ith(context, i), sizeof(float), (size_t)V, stdout);
    for (int i = 0; i < steps; i++) {
      llama_token next = best(llama_get_logits_ith(context, -1), V);
      printf("%s%d", i ? " " : "", next);
      decode(context, &next, count + i, 1);
    }
    if (steps) putchar('\n');
  }
}

int main(int count, char **words) {
  if (count < 3) fail("probe FILE tokens|logits|greedy [N]");
  llama_log_set(quiet, NULL);
  llama_backend_init();
  struct llama_model_params options = llama_model_default_params();
  options.vocab_only = !strcmp(words[2], "tokens");
  struct llama_model *model = llama_model_load_from_file(words[1], options);
  if (!model) fail("cannot load the model");
  const struct llama_vocab *vocab = llama_model_get_vocab(model);
  if (options.vocab_only) return tokens(vocab), 0;
  /* Exact caches: half precision alone moves logits by 0.04. */
  struct llama_context_params c = llama_context_default_params();
  c.n_ctx = c.n_batch = c.n_ubatch = 1024;
  c.type_k = c.type_v = GGML_TYPE_F32;
  c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  struct llama_context *context = llama_init_from_model(model, c);
  if (!context) fail("cannot make a context");
  run(context, llama_vocab_n_tokens(vocab), count > 3 ? atoi(words[3]) : 0);
  return 0;
}
