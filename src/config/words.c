/* The words that fields of a config may be, in the order of their enums. */
#include "config/config.h"

const char *const ch_router_pools[] = {"batch", "sequence", "position", "group", NULL};
const char *const ch_router_solvers[] = {"exact", "dykstra", NULL};
const char *const ch_router_scores[] = {"softmax", "sigmoid", NULL};
const char *const ch_router_schedules[] = {"constant", "linear", "linear-reverse", "gaussian", NULL};
const char *const ch_router_scopes[] = {"batch", "sequence", NULL};
const char *const ch_router_priorities[] = {"order", "score", NULL};
const char *const ch_router_gate_places[] = {"output", "input", NULL};
const char *const ch_attentions[] = {"causal", "bidirectional", NULL};
const char *const ch_positions[] = {"relative", "rope", NULL};
const char *const ch_activation_names[] = {[CH_GELU] = "gelu", [CH_GEGLU] = "geglu", [CH_SWIGLU] = "swiglu", NULL};
const char *const ch_rate_schedules[] = {"inverse_sqrt", "cosine", NULL};
const char *const ch_objectives[] = {"next_token", "masked_diffusion", "masked_lm", NULL};
const char *const ch_mask_schedules[] = {"linear", "cosine", NULL};
