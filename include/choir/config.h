/* Every hyperparameter of a model and its training, as one plain struct and one JSON file.
 *
 *   choir_config c;
 *   if (choir_config_load("configs/nano.json", &c)) puts(choir_error_message());
 *
 * Unknown or misspelt keys, wrong types and impossible sizes are refused by file, key and value. */
#ifndef CHOIR_CONFIG_H
#define CHOIR_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

enum { CHOIR_NAME_BYTES = 32 };

/* How tokens meet experts; JSON object "router". An option that the router does not take (choir_router_option_at) is
 * refused unless it has the value that choir_router_options_default gives it. */
typedef struct choir_router_options {
  char name[CHOIR_NAME_BYTES];   /* "name": one of choir_router_names(), as expert_choice; docs/routers.md */
  double capacity_factor;        /* "capacity_factor": c of expert_choice; where tokens choose, of an expert's room in
                                    even shares, 0: room for all */
  double eval_capacity_factor;   /* "eval_capacity_factor": the same while evaluating; 0: as in training */
  char pool[CHOIR_NAME_BYTES];   /* "pool": tokens that experts choose among: batch, sequence, position, group */
  double aux_loss_weight;        /* "aux_loss_weight": of the load-balancing loss (topk, gshard_top2, switch_top1) */
  double jitter;                 /* "jitter": training multiplies the router's input by U[1-j, 1+j] (switch_top1) */
  int random_second;             /* "random_second": gshard_top2 keeps the second expert with probability 2 g2 */
  int group_size;                /* "group_size": tokens of pool "group" */
  int cap;                       /* "cap": b, experts that one token may have; 0: any number */
  int experts_per_token;         /* "experts_per_token": K of topk, quantile_balanced, bias_balanced and random */
  char solver[CHOIR_NAME_BYTES]; /* "solver": of capped_expert_choice, exact or dykstra */
  double solver_lambda;          /* "solver_lambda": weight of dykstra's entropy */
  int solver_iterations;         /* "solver_iterations": of dykstra, at most */
  int null_experts;              /* "null_experts": experts beside the model's that compute nothing (topk) */
  double consistency_weight;     /* "consistency_weight": of random's consistency loss */
  double decay;                  /* "decay": of the running means that a router keeps: cut-offs, centroids */
  int64_t threshold_after;       /* "threshold_after": steps after which experts take by thresholds; 0: never */
  int normalize_gates;           /* "normalize_gates": a token's gates are scaled to sum 1, as upcycling wants them */
  char score[CHOIR_NAME_BYTES];  /* "score": what logits X Wg become: softmax over experts, or sigmoid of each */
  double bias_rate;              /* "bias_rate": step of bias_balanced's prices; 0: plain top-K */
  int solver_stages;             /* "solver_stages": of dykstra, from a large weight of the entropy down to its own */
  /* "capacity_schedule": of models trained by masking, how c of a sequence goes with its share of masked tokens:
   * constant, linear, linear-reverse, gaussian */
  char capacity_schedule[CHOIR_NAME_BYTES];
  double z_loss_weight;  /* "z_loss_weight": of the mean square of log sum exp of a token's logits */
  char aux_scope[10];    /* "aux_scope": loads are balanced over: batch, or sequence, each by itself */
  char priority[6];      /* "priority": who comes first where room is short: order of tokens, or score */
  char gate_on[8];       /* "gate_on": what the gate scales, an expert's output or its input */
  double capacity_start; /* "capacity_start": capacity_factor at the first step of training, from where it goes to its
                            own linearly; 0: it stays the same */
  double own[8];         /* of a router of your own, by the number of the option in its definition (plugin.h) */
  int64_t reserved[1];
} choir_router_options;

typedef struct choir_model_config { /* JSON object "model" */
  char name[CHOIR_NAME_BYTES];      /* "name": for people; "0.1B/16E" */
  int vocab_size;                   /* V */
  int layers;                       /* L */
  int d_model;                      /* d */
  int d_hidden;                     /* h, of the dense layers and, unless d_expert says otherwise, of one expert */
  int d_expert;                     /* hidden width of one expert; 0: d_hidden */
  int heads;                        /* H */
  int d_head;                       /* 0: d/H */
  int experts;                      /* e of the MoE layers */
  int moe_every;                    /* layers moe_every-1, 2 moe_every-1, ... are MoE; 2: every second; 0: none */
  int rel_buckets;                  /* 32 */
  int rel_max_distance;             /* 128 */
  double norm_eps;                  /* 1e-6 */
  choir_router_options router;
  char position[CHOIR_NAME_BYTES];          /* "position": relative, a learned bias by distance; or rope, rotary */
  double rope_theta;                        /* 10000 */
  double rope_fraction;                     /* share of a head's width that is turned, from its front: 1 */
  int kv_heads;                             /* heads of keys and values, shared evenly by the heads; 0: `heads` */
  int qk_norm;                              /* each head's q and k go through an RMSNorm of their own */
  int tied;                                 /* the head's weight is the embedding's: 1 */
  double embed_scale;                       /* factor of the embedding: 1 */
  double head_scale;                        /* factor of the logits; 0: 1/sqrt(d) */
  char activation[CHOIR_NAME_BYTES];        /* of dense layers: geglu, gelu, swiglu */
  char expert_activation[CHOIR_NAME_BYTES]; /* of experts, shared ones too */
  int shared_experts; /* width, in experts, of a dense layer whose output is added to the experts'; 0: none */
  int dense_layers;   /* number of dense layers in front; moe_every counts from there */
  int qk_norm_whole;  /* qk_norm is over all heads together, a weight for each column: OLMoE's */
  char attention[CHOIR_NAME_BYTES]; /* "attention": causal, or bidirectional: every position sees all of its sequence */
  char layer_capacity[64]; /* "layer_capacity": weights of capacity_factor by MoE layer, as "1,2,3"; "": all alike */
  int64_t reserved[3];
} choir_model_config;

typedef struct choir_train_config { /* JSON object "train" */
  int sequence_length;              /* T */
  int batch_sequences;              /* B of one micro-batch, of all processes: the pool of routing is B*T tokens */
  int shards;                       /* parts of a micro-batch whose gradients are summed in a fixed tree; divides B */
  int accumulate;                   /* micro-batches per step */
  int64_t steps;
  char optimizer[CHOIR_NAME_BYTES];  /* adafactor, adamw */
  double rate;                       /* adafactor: relative (parameter scaling); adamw: absolute */
  double warmup_steps;               /* linear from 0; below 1: a share of `steps`; 0: none */
  int64_t constant_steps;            /* then inverse square root: rate * sqrt(constant_steps / step) */
  int64_t schedule_start;            /* steps that the schedule counts as done before: goes on with an earlier one */
  char freeze[256];                  /* names of weights that are not trained: "*.attn.*,*.ffn.*" */
  double beta1, beta2, weight_decay; /* adamw; adafactor takes beta2 only */
  double clip_norm;                  /* global gradient norm; 0: none */
  double dropout;                    /* of the embedding and of what each half of a layer adds to the stream; 0: none */
  uint64_t seed;
  char compute[CHOIR_NAME_BYTES];  /* fp32, bf16 */
  int64_t eval_every;              /* steps; 0: only at the end */
  int64_t eval_sequences;          /* held-out sequences per evaluation; 0: all */
  int64_t checkpoint_every;        /* steps; 0: only at the end */
  int keep_checkpoints;            /* newest that stay; 0: all */
  int expert_copies;               /* bf16: rounded copies of experts' weights; else they are rounded by each product */
  int64_t file_bytes;              /* of tensors in one file of a checkpoint, at most; 0: any */
  char schedule[CHOIR_NAME_BYTES]; /* of the rate after warmup: inverse_sqrt (see constant_steps), cosine over all steps
                                    */
  double cooldown_steps; /* last steps, over which the rate falls linearly; below 1: a share of `steps`; 0: none */
  double cooldown_to;    /* share of the rate that is left at the last step, of a cooldown and of cosine */
  char objective[CHOIR_NAME_BYTES];     /* "objective": next_token, masked_diffusion, masked_lm (docs/diffusion.md) */
  char mask_schedule[CHOIR_NAME_BYTES]; /* "mask_schedule": of masked_diffusion, how mask ratios are drawn: linear,
                                           cosine */
  int64_t reserved[1];
} choir_train_config;

typedef struct choir_parallel_config { /* JSON object "parallel" */
  char wire[CHOIR_NAME_BYTES]; /* fp32, bf16: what rows between tokens and experts are rounded to, on one process too */
  int64_t reserved[2];
} choir_parallel_config;

typedef struct choir_config {
  choir_model_config model;
  choir_train_config train;
  choir_parallel_config parallel;
  int64_t reserved[2];
} choir_config;

/* The defaults of every field: design values for optimiser, norms and buckets, 0 for sizes that must be given. */
CHOIR_API void choir_config_default(choir_config *config);

/* Reads and checks a JSON file, or the built-in config of that name if there is no such file. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT (message: file, key, value, nearest known key). */
CHOIR_API int choir_config_load(const char *path, choir_config *config);
/* The names of the configs that the library has built in, those of configs/; NULL-terminated. */
CHOIR_API const char *const *choir_config_names(void);

/* Checks, then writes every field, so that the file says what every default was. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO.
 */
CHOIR_API int choir_config_save(const choir_config *config, const char *path);

/* Sets one field by its dotted JSON path, as `--set router.capacity_factor=1`; "model." and "train." may be left out
 * if the rest is unambiguous. CHOIR_ERROR_ARGUMENT: unknown or ambiguous key, impossible value. How values go
 * together choir_config_check says. */
CHOIR_API int choir_config_set(choir_config *config, const char *key, const char *value);

/* CHOIR_ERROR_ARGUMENT names an impossible value (d not divisible by H, k of 0, e > n, ...), or an option that the
 * chosen router or optimizer does not take. vocab_size 0 passes:
 * training takes it from the data. */
CHOIR_API int choir_config_check(const choir_config *config);

/* The token that stands for a masked one: the last of the vocabulary, which no tokenizer gives. -1: the objective masks
 * nothing, or vocab_size is still the data's. */
CHOIR_API int choir_config_mask_token(const choir_config *config);

/* Memory of a training process in bytes, by purpose. Nothing but `process` is estimated: the step itself is counted. */
typedef struct choir_memory {
  int64_t weights, gradients, optimizer, activations;
  int64_t scratch; /* of whatever runs at the time */
  int64_t process; /* the program, its libraries and what these ask for */
  int64_t data;    /* files of tokens, mapped: the system may take these pages back. 0 if no data is known */
  int64_t total;
  int64_t reserved[8];
} choir_memory;

/* The costs of a config. FLOPs count multiplications and additions of matrix products, attention over
 * the positions that are seen, logits included; training is three times forward. "Active": parameters that one token
 * uses on average (c expert FFNs). Bytes are counted by a dry run of the step itself. Errors as choir_config_check. */
typedef struct choir_config_costs {
  int64_t parameters, active_parameters, embedding_parameters, expert_parameters;
  double forward_flops_per_token, train_flops_per_token;
  choir_memory train_memory; /* of one process, without data */
  int64_t train_bytes;       /* its total */
  int64_t serve_bytes;       /* fp32 weights and one sequence's KV cache */
  int64_t reserved[8];
} choir_config_costs;
CHOIR_API int choir_config_get_costs(const choir_config *config, choir_config_costs *costs);

CHOIR_C_END
#endif
