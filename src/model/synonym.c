/* The names that other programs have for the fields of a config. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "model/config.h"

static const struct {
  const char *theirs, *ours;
} synonyms[] = {
    {"lr", "train.rate"},
    {"learning_rate", "train.rate"},
    {"max_lr", "train.rate"},
    {"max_steps", "train.steps"},
    {"max_iters", "train.steps"},
    {"num_steps", "train.steps"},
    {"batch_size", "train.batch_sequences"},
    {"micro_batch_size", "train.batch_sequences"},
    {"gradient_accumulation_steps", "train.accumulate"},
    {"grad_accum", "train.accumulate"},
    {"block_size", "train.sequence_length"},
    {"context_length", "train.sequence_length"},
    {"seq_len", "train.sequence_length"},
    {"max_seq_len", "train.sequence_length"},
    {"warmup", "train.warmup_steps"},
    {"warmup_iters", "train.warmup_steps"},
    {"grad_clip", "train.clip_norm"},
    {"max_grad_norm", "train.clip_norm"},
    {"dtype", "train.compute"},
    {"precision", "train.compute"},
    {"eval_interval", "train.eval_every"},
    {"eval_iters", "train.eval_sequences"},
    {"save_every", "train.checkpoint_every"},
    {"save_steps", "train.checkpoint_every"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_embd", "model.d_model"},
    {"hidden_size", "model.d_model"},
    {"dim", "model.d_model"},
    {"intermediate_size", "model.d_hidden"},
    {"ffn_dim", "model.d_hidden"},
    {"moe_intermediate_size", "model.d_expert"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"head_dim", "model.d_head"},
    {"num_key_value_heads", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"partial_rotary_factor", "model.rope_fraction"},
    {"use_qk_norm", "model.qk_norm"},
    {"tie_word_embeddings", "model.tied"},
    {"scoring_func", "model.router.score"},
    {"n_experts", "model.experts"},
    {"num_experts", "model.experts"},
    {"num_local_experts", "model.experts"},
    {"top_k", "model.router.experts_per_token"},
    {"num_experts_per_tok", "model.router.experts_per_token"},
};

const char *ch_field_did_you_mean(char *text, size_t size, const char *key, const char *const *known) {
  const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key;
  for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
    if (!strcmp(name, synonyms[i].theirs)) {
      snprintf(text, size, ", did you mean '%s'?", synonyms[i].ours);
      return text;
    }
  return ch_did_you_mean(text, size, key, known);
}
