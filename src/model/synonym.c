/* Names of config fields in other programs and in earlier versions. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "model/config.h"

/* Synonyms per field. */
static const struct {
  const char *ours, *theirs;
} synonyms[] = {
    {"train.learning_rate", "lr max_lr"},
    {"train.steps", "max_steps max_iters num_steps"},
    {"train.batch_sequences", "batch_size micro_batch_size"},
    {"train.accumulate", "gradient_accumulation_steps grad_accum"},
    {"train.sequence_length", "block_size context_length seq_len max_seq_len"},
    {"train.warmup_steps", "warmup warmup_iters"},
    {"train.clip_norm", "grad_clip max_grad_norm"},
    {"train.compute", "dtype precision"},
    {"train.eval_every", "eval_interval"},
    {"train.eval_sequences", "eval_iters"},
    {"train.checkpoint_every", "save_every save_steps"},
    {"model.layers", "n_layer n_layers num_layers num_hidden_layers"},
    {"model.d_model", "n_embd hidden_size dim"},
    {"model.d_hidden", "intermediate_size ffn_dim"},
    {"model.d_expert", "moe_intermediate_size"},
    {"model.heads", "n_head n_heads num_attention_heads"},
    {"model.d_head", "head_dim"},
    {"model.kv_heads", "num_key_value_heads n_kv_heads"},
    {"model.rope_fraction", "partial_rotary_factor"},
    {"model.qk_norm", "use_qk_norm"},
    {"model.tied", "tie_word_embeddings"},
    {"model.router.score", "scoring_func"},
    {"model.experts", "n_experts num_experts num_local_experts"},
    {"model.router.experts_per_token", "top_k num_experts_per_tok"},
};

const char *ch_field_did_you_mean(char *text, size_t size, const char *key, const char *const *known) {
  const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key;
  for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
    if (*name && ch_has_word(synonyms[i].theirs, name)) {
      snprintf(text, size, ", did you mean '%s'?", synonyms[i].ours);
      return text;
    }
  return ch_did_you_mean(text, size, key, known);
}

int ch_path_ends(const char *path, const char *key) {
  size_t k = strlen(key), p = strlen(path);
  return k == p ? !strcmp(key, path) : k && k < p && path[p - k - 1] == '.' && !strcmp(path + p - k, key);
}

static const struct {
  const char *then, *now;
} renamed[] = {{"train.rate", "train.learning_rate"},
               {"train.shards", "train.grad_chunks"},
               {"parallel.wire", "parallel.dispatch_dtype"}};

const char *ch_field_renamed(const char *key) {
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
    if (ch_path_ends(renamed[i].then, key)) return renamed[i].now;
  return NULL;
}
