/* The fields of a config that each stock architecture can express. All others must have their default: a field that
 * is added to choir is refused by name until this table lists it. */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "export/plan.h"
#include "moe/router.h"

/* Fields without effect on a trained model: names, files, settings of training, and those of routing in training
 * (the exported model uses thresholds, or unlimited capacity). */
#define NOT_READ                                                                                                    \
  "model.name model.rel_buckets model.rel_max_distance model.layer_capacity model.router.capacity_factor "          \
  "model.router.eval_capacity_factor model.router.capacity_start model.router.capacity_schedule model.router.pool " \
  "model.router.group_size model.router.priority model.router.aux_loss_weight model.router.aux_scope "              \
  "model.router.z_loss_weight model.router.consistency_weight model.router.jitter model.router.random_second "      \
  "model.router.solver model.router.solver_lambda model.router.solver_iterations model.router.solver_stages "       \
  "model.router.estimator model.router.decay model.router.threshold_after model.router.bias_rate "                  \
  "train.batch_sequences train.grad_chunks train.accumulate train.steps train.optimizer train.learning_rate "       \
  "train.warmup_steps train.constant_steps train.schedule_start train.schedule train.cooldown_steps "               \
  "train.cooldown_to train.mask_schedule train.freeze train.beta1 train.beta2 train.weight_decay train.clip_norm "  \
  "train.dropout train.seed train.compute train.eval_every train.eval_sequences train.checkpoint_every "            \
  "train.keep_checkpoints train.expert_copies train.file_bytes parallel.dispatch_dtype "
/* Fields that every architecture expresses, some only with the value that choose.c requires. */
#define ANY                                                                                                       \
  NOT_READ                                                                                                        \
  "model.vocab_size model.layers model.d_model model.d_hidden model.heads model.d_head model.kv_heads "           \
  "model.moe_every model.position model.rope_theta model.tied model.embed_scale model.head_scale model.norm_eps " \
  "model.activation train.sequence_length "
#define MOE                                                                                        \
  ANY "model.experts model.d_expert model.expert_activation model.router.name model.router.score " \
      "model.router.experts_per_token model.router.normalize_gates model.router.cap "
#define BOTH_WAYS "model.attention train.objective "
/* Without an MoE layer the fields of experts have no effect. */
#define DENSE ANY "model.experts model.d_expert model.expert_activation model.shared_experts model.dense_layers "

static const char *const carried[CH_KINDS] = {
    [CH_KIND_LLAMA] = DENSE BOTH_WAYS,
    [CH_KIND_MISTRAL] = DENSE,
    [CH_KIND_QWEN3] = DENSE "model.qk_norm ",
    [CH_KIND_MIXTRAL] = MOE,
    [CH_KIND_OLMOE] = MOE "model.qk_norm model.qk_norm_whole ",
    [CH_KIND_QWEN3_MOE] = MOE BOTH_WAYS "model.qk_norm model.dense_layers ",
    [CH_KIND_GLM4_MOE] = MOE "model.qk_norm model.dense_layers model.shared_experts model.rope_fraction ",
    [CH_KIND_EXAONE_MOE] = MOE "model.qk_norm model.dense_layers model.shared_experts "};

static int is_carried(const ch_export_plan *plan, const ch_field *f) {
  if (!plan->moe_layers && !strncmp(f->path, "model.router.", 13)) return 1;
  return ch_has_word(carried[plan->kind], f->path);
}

int ch_export_check_fields(const ch_export_plan *plan, const char *architecture) {
  choir_config defaults;
  char value[CHOIR_VALUE_BYTES], other[CHOIR_VALUE_BYTES];
  ch_config_default(&defaults);
  defaults.model.router = ch_router_default(plan->config.model.router.kind);
  for (int i = 0; i < CH_FIELDS; i++) {
    const ch_field *f = &ch_fields[i];
    if (is_carried(plan, f) || ch_field_same(&plan->config, &defaults, f)) continue;
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s is %s: %s cannot express it; train with %s", f->path,
                    ch_field_text(&plan->config, f, value, sizeof value), architecture,
                    ch_field_text(&defaults, f, other, sizeof other));
  }
  return CHOIR_OK;
}
