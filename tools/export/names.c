#include "export/names.h"

#include <stdio.h>
#include <string.h>

const ch_kind_name ch_kind_names[] = {
    [CH_KIND_LLAMA] = {"llama", {"LlamaForCausalLM", "llama"}, NULL, NULL},
    [CH_KIND_MISTRAL] = {"mistral", {"MistralForCausalLM", "llama"}, NULL, NULL},
    [CH_KIND_QWEN3] = {"qwen3", {"Qwen3ForCausalLM", "qwen3"}, NULL, NULL},
    [CH_KIND_MIXTRAL] = {"mixtral", {"MixtralForCausalLM", "llama"}, "num_local_experts", NULL},
    [CH_KIND_OLMOE] = {"olmoe", {"OlmoeForCausalLM", "olmoe"}, "num_experts", NULL},
    [CH_KIND_QWEN3_MOE] = {"qwen3_moe", {"Qwen3MoeForCausalLM", "qwen3moe"}, "num_experts", NULL},
    [CH_KIND_GLM4_MOE] = {"glm4_moe", {"Glm4MoeForCausalLM", "glm4moe"}, "n_routed_experts", "n_shared_experts"},
    [CH_KIND_EXAONE_MOE] = {"exaone_moe", {"ExaoneMoeForCausalLM", "hy_v3"}, "num_experts", "num_shared_experts"}};

static const ch_export_row
    outer[] = {{"embed.weight", {"model.embed_tokens.weight", "token_embd.weight"}, CH_ROLE_PLAIN, 0},
               {"head.weight", {"lm_head.weight", "output.weight"}, CH_ROLE_PLAIN, 0},
               {"final_norm.weight", {"model.norm.weight", "output_norm.weight"}, CH_ROLE_PLAIN, 0},
               {0}},
    inner[] = {
        {"attn_norm.weight", {"input_layernorm.weight", "attn_norm.weight"}, CH_ROLE_PLAIN, 0},
        {"attn.q.weight", {"self_attn.q_proj.weight", "attn_q.weight"}, CH_ROLE_ROTATED, 0},
        {"attn.k.weight", {"self_attn.k_proj.weight", "attn_k.weight"}, CH_ROLE_ROTATED, 0},
        {"attn.v.weight", {"self_attn.v_proj.weight", "attn_v.weight"}, CH_ROLE_PLAIN, 0},
        {"attn.o.weight", {"self_attn.o_proj.weight", "attn_output.weight"}, CH_ROLE_PLAIN, 0},
        {"attn.q_norm.weight", {"self_attn.q_norm.weight", "attn_q_norm.weight"}, CH_ROLE_PLAIN, 0},
        {"attn.k_norm.weight", {"self_attn.k_norm.weight", "attn_k_norm.weight"}, CH_ROLE_PLAIN, 0},
        {"ffn_norm.weight", {"post_attention_layernorm.weight", "ffn_norm.weight"}, CH_ROLE_PLAIN, 0},
        {"ffn.gate.weight", {"mlp.gate_proj.weight", "ffn_gate.weight"}, CH_ROLE_PLAIN, 0},
        {"ffn.up.weight", {"mlp.up_proj.weight", "ffn_up.weight"}, CH_ROLE_PLAIN, 0},
        {"ffn.down.weight", {"mlp.down_proj.weight", "ffn_down.weight"}, CH_ROLE_PLAIN, 0},
        {"moe.router.weight", {"mlp.gate.weight", "ffn_gate_inp.weight"}, CH_ROLE_ROUTER, 1},
        {"moe.thresholds", {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"}, CH_ROLE_BIAS, 0},
        {"moe.experts.w1", {"mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight"}, CH_ROLE_EXPERTS, 1},
        {"moe.experts.w3", {"mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight"}, CH_ROLE_EXPERTS, 1},
        {"moe.experts.w2", {"mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight"}, CH_ROLE_EXPERTS, 0},
        {"moe.shared.gate.weight", {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"}, CH_ROLE_PLAIN, 0},
        {"moe.shared.up.weight", {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"}, CH_ROLE_PLAIN, 0},
        {"moe.shared.down.weight", {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"}, CH_ROLE_PLAIN, 0},
        {0}};

/* Parameters whose name depends on the architecture. */
static const struct {
  ch_kind kind;
  ch_export_format format;
  const char *from, *there;
} special[] = {{CH_KIND_EXAONE_MOE, CH_EXPORT_HF, "moe.thresholds", "mlp.e_score_correction_bias"},
               {CH_KIND_EXAONE_MOE, CH_EXPORT_GGUF, "moe.thresholds", "exp_probs_b"},
               {CH_KIND_GLM4_MOE, CH_EXPORT_GGUF, "ffn_norm.weight", "post_attention_norm.weight"},
               {CH_KIND_MIXTRAL, CH_EXPORT_HF, "moe.router.weight", "block_sparse_moe.gate.weight"},
               {CH_KIND_MIXTRAL, CH_EXPORT_HF, "moe.experts.w1", "block_sparse_moe.experts.%d.w1.weight"},
               {CH_KIND_MIXTRAL, CH_EXPORT_HF, "moe.experts.w3", "block_sparse_moe.experts.%d.w3.weight"},
               {CH_KIND_MIXTRAL, CH_EXPORT_HF, "moe.experts.w2", "block_sparse_moe.experts.%d.w2.weight"}};

const ch_export_row *ch_export_find(const char *parameter) {
  int layer, behind = 0;
  if (sscanf(parameter, "layers.%d.%n", &layer, &behind) != 1) behind = 0;
  const ch_export_row *row = behind ? inner : outer;
  while (row->from && strcmp(row->from, parameter + behind)) row++;
  return row->from ? row : NULL;
}

int ch_export_is_interleaved(ch_kind kind, ch_export_format format) {
  return format == CH_EXPORT_GGUF && !strcmp(ch_kind_names[kind].architecture[format], "llama");
}

void ch_export_name(ch_kind kind, ch_export_format format, const ch_export_row *row, int layer, int expert,
                    char out[128]) {
  const char *name = row->there[format];
  char inside[96], number[16];
  for (size_t i = 0; i < sizeof special / sizeof *special; i++)
    if (special[i].kind == kind && special[i].format == format && !strcmp(special[i].from, row->from))
      name = special[i].there;
  const char *place = strstr(name, "%d"); /* expert number, or NULL */
  snprintf(number, sizeof number, "%d", expert);
  snprintf(inside, sizeof inside, "%.*s%s%s", place ? (int)(place - name) : 0, name, place ? number : "",
           place ? place + 2 : name);
  if (layer < 0)
    snprintf(out, 128, "%s", inside);
  else
    snprintf(out, 128, "%s.%d.%s", format == CH_EXPORT_HF ? "model.layers" : "blk", layer, inside);
}
