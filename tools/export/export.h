/* Exports a checkpoint to other programs: a folder for Hugging Face's transformers, or a GGUF file for llama.cpp. */
#ifndef CH_EXPORT_EXPORT_H
#define CH_EXPORT_EXPORT_H

#include "config/config.h"

typedef struct choir_export_options {
  const char *checkpoint; /* or a run directory: its newest checkpoint */
  const char *format;     /* "hf", "gguf" */
  const char *out;        /* the folder or file to create */
  const char *dtype;      /* "f32", "bf16", "q8_0" (gguf only) */
  int experts_per_token;  /* K for expert choice; 0: determined by `cut` */
  double cut; /* 0: K is the maximum number of experts of a token, which is exact; otherwise the smallest K for which at
                 most this share of tokens has more experts */
  const char *data;  /* held-out data for choosing K by `cut` and for measuring losses; NULL: neither */
  int64_t sequences; /* maximum number of its sequences */
  int threads;
  int (*progress)(void *context, const char *what, double share); /* or NULL; nonzero: CHOIR_ERROR_INTERRUPTED */
  void *context;
} choir_export_options;

typedef struct choir_export_result {
  char checkpoint[4096];    /* path of the exported checkpoint */
  const char *architecture; /* name in transformers or llama.cpp */
  int experts_per_token;    /* 0: no MoE layers */
  int null_experts;         /* number of null experts added to the model's own */
  int measured;             /* nonzero: the following fields were measured */
  char
      objective[CHOIR_NAME_BYTES]; /* objective of the losses, as in choir_eval_result; empty if nothing was measured */
  double cut;                      /* share of tokens, over all MoE layers, that have more experts than K */
  int twentieth;                   /* the smallest K for which at most one token in twenty has more experts */
  double loss, loss_cut;           /* with threshold routing, and with at most K experts */
  double loss_written;             /* the same with weights rounded to dtype; NaN: f32, not rounded */
  int64_t tokens;                  /* number of tokens of the measurements */
  int64_t bytes;                   /* bytes of all tensors written */
} choir_export_result;

/* CHOIR_ERROR_UNSUPPORTED names a field of the config that the format cannot express. CHOIR_ERROR_ARGUMENT,
 * CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_NUMERIC (a weight that is not finite), CHOIR_ERROR_MEMORY. After an
 * error `out` does not exist. */
int choir_export(const choir_export_options *options, choir_export_result *result);

#endif
