#include "export/names.h"

#include <string.h>

static const ch_export_row
    outer[] = {{"embed.weight", "model.embed_tokens.weight", "token_embd.weight", CH_ROLE_PLAIN, 0},
               {"head.weight", "lm_head.weight", "output.weight", CH_ROLE_PLAIN, 0},
               {"final_norm.weight", "model.norm.weight", "output_norm.weight", CH_ROLE_PLAIN, 0},
               {0}},
    inner[] = {
        {"attn_norm.weight", "input_layernorm.weight", "attn_norm.weight", CH_ROLE_PLAIN, 0},
        {"attn.q.weight", "self_attn.q_proj.weight", "attn_q.weight", CH_ROLE_ROTATED, 0},
        {"attn.k.weight", "self_attn.k_proj.weight", "attn_k.weight", CH_ROLE_ROTATED, 0},
        {"attn.v.weight", "self_attn.v_proj.weight", "attn_v.weight", CH_ROLE_PLAIN, 0},
        {"attn.o.weight", "self_attn.o_proj.weight", "attn_output.weight", CH_ROLE_PLAIN, 0},
        {"attn.q_norm.weight", "self_attn.q_norm.weight", "attn_q_norm.weight", CH_ROLE_PLAIN, 0},
        {"attn.k_norm.weight", "self_attn.k_norm.weight", "attn_k_norm.weight", CH_ROLE_PLAIN, 0},
        {"ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight", CH_ROLE_PLAIN, 0},
        {"ffn.gate.weight", "mlp.gate_proj.weight", "ffn_gate.weight", CH_ROLE_PLAIN, 0},
        {"ffn.up.weight", "mlp.up_proj.weight", "ffn_up.weight", CH_ROLE_PLAIN, 0},
        {"ffn.down.weight", "mlp.down_proj.weight", "ffn_down.weight", CH_ROLE_PLAIN, 0},
        {"moe.router.weight", "mlp.gate.weight", "ffn_gate_inp.weight", CH_ROLE_ROUTER, 1},
        {"moe.thresholds", "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", CH_ROLE_BIAS, 0},
        {"moe.experts.w1", "mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight", CH_ROLE_EXPERTS, 1},
        {"moe.experts.w3", "mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight", CH_ROLE_EXPERTS, 1},
        {"moe.experts.w2", "mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight", CH_ROLE_EXPERTS, 0},
        {"moe.shared.gate.weight", "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", CH_ROLE_PLAIN, 0},
        {"moe.shared.up.weight", "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", CH_ROLE_PLAIN, 0},
        {"moe.shared.down.weight", "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", CH_ROLE_PLAIN, 0},
        {0}};

const ch_export_row *ch_export_find(int in_layer, const char *name) {
  const ch_export_row *row = in_layer ? inner : outer;
  while (row->from && strcmp(row->from, name)) row++;
  return row->from ? row : NULL;
}
