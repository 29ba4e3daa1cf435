/* What the parameters of a model are called elsewhere. */
#ifndef CH_EXPORT_NAMES_H
#define CH_EXPORT_NAMES_H

typedef enum { CH_ROLE_PLAIN, CH_ROLE_ROTATED, CH_ROLE_ROUTER, CH_ROLE_BIAS, CH_ROLE_EXPERTS } ch_export_role;

/* Names behind "layers.L." here, "model.layers.L." and "blk.L." there; those of experts one by one have "%d" for the
 * number. */
typedef struct ch_export_row {
  const char *from, *hf, *gguf;
  ch_export_role role;
  int turned; /* the last two dimensions change places */
} ch_export_row;

/* Of a parameter, in a layer or outside; NULL: unknown. */
const ch_export_row *ch_export_find(int in_layer, const char *name);

#endif
