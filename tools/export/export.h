/* A checkpoint as others load it: a folder for Hugging Face's transformers, or a GGUF file for llama.cpp. */
#ifndef CH_EXPORT_EXPORT_H
#define CH_EXPORT_EXPORT_H

#include "config/config.h"

typedef struct choir_export_options {
  const char *checkpoint; /* or a run's newest */
  const char *format;     /* "hf", "gguf" */
  const char *out;        /* a folder that is made; a file */
  const char *dtype;      /* "f32", "bf16", "q8_0" (gguf only) */
  int experts_per_token;  /* K for expert choice; 0: chosen by `cut` */
  double cut;             /* 0: K is the most that a token can have, which is exact; else the least K that cuts at most
                             this share of tokens */
  const char *data;       /* held-out text by which `cut` chooses K and on which losses are measured; NULL: neither */
  int64_t sequences;      /* of it, at most */
  int threads;
  int (*progress)(void *context, const char *what, double share); /* or NULL; nonzero: CHOIR_ERROR_INTERRUPTED */
  void *context;
} choir_export_options;

typedef struct choir_export_result {
  char checkpoint[4096];            /* that was exported */
  const char *architecture;         /* as transformers, or llama.cpp, calls it */
  int experts_per_token;            /* 0: no MoE layers */
  int null_experts;                 /* added beside the model's own */
  int measured;                     /* nonzero: what follows was */
  char objective[CHOIR_NAME_BYTES]; /* of the losses, as in choir_eval_result; empty where nothing was measured */
  double cut;                       /* share of tokens, over all MoE layers, that have more experts than K */
  int twentieth;                    /* the least K that cuts one token in twenty at most */
  double loss, loss_cut;            /* by thresholds, and with K at most */
  double loss_written;              /* the same with weights rounded to dtype; NaN: f32, not rounded */
  int64_t tokens;                   /* that this was measured on */
  int64_t bytes;                    /* of tensors written */
} choir_export_result;

/* Errors name the field of the config that has no counterpart there: CHOIR_ERROR_UNSUPPORTED. CHOIR_ERROR_ARGUMENT,
 * CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_NUMERIC (a weight that is not finite), CHOIR_ERROR_MEMORY. Nothing
 * stands at `out` then. */
int choir_export(const choir_export_options *options, choir_export_result *result);

#endif
