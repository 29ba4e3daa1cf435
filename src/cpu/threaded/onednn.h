/* What oneDNN 2 and 3 write differently, of the little that product_matmul.c needs: descriptors of memory, that of a
 * matmul, and its epilogue. Debian 12 has 2.6, distributions after it have 3. Nonzero: it could not be made. */
#ifndef CH_CPU_THREADED_ONEDNN_H
#define CH_CPU_THREADED_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t ch_onednn_desc; /* a pointer */
typedef const_dnnl_memory_desc_t ch_onednn_view;

static inline ch_onednn_view ch_onednn_see(const ch_onednn_desc *desc) { return *desc; }

/* A matrix by its strides. To be forgotten, also where it could not be made. */
static inline int ch_onednn_describe(ch_onednn_desc *desc, dnnl_data_type_t type, const dnnl_dims_t size,
                                     const dnnl_dims_t step) {
  return dnnl_memory_desc_create_with_strides(desc, 2, size, type, step) != dnnl_success;
}

static inline void ch_onednn_forget(const ch_onednn_desc *desc) {
  if (*desc) dnnl_memory_desc_destroy(*desc);
}

static inline int ch_onednn_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ch_onednn_view a,
                                   ch_onednn_view b, ch_onednn_view c, const_dnnl_primitive_attr_t attributes) {
  return dnnl_matmul_primitive_desc_create(made, engine, a, b, NULL, c, attributes) != dnnl_success;
}

/* C = alpha A B, or C += alpha A B. */
static inline int ch_onednn_epilogue(dnnl_primitive_attr_t attributes, float alpha, int accumulate) {
  dnnl_post_ops_t ops;
  if (dnnl_post_ops_create(&ops)) return 1;
  int failed = (alpha != 1 && dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, alpha, 0)) ||
               (accumulate && dnnl_post_ops_append_sum(ops, 1, 0, dnnl_f32)) ||
               dnnl_primitive_attr_set_post_ops(attributes, ops);
  dnnl_post_ops_destroy(ops);
  return failed;
}

#else

typedef dnnl_memory_desc_t ch_onednn_desc; /* a struct */
typedef const dnnl_memory_desc_t *ch_onednn_view;

static inline ch_onednn_view ch_onednn_see(const ch_onednn_desc *desc) { return desc; }

static inline int ch_onednn_describe(ch_onednn_desc *desc, dnnl_data_type_t type, const dnnl_dims_t size,
                                     const dnnl_dims_t step) {
  return dnnl_memory_desc_init_by_strides(desc, 2, size, type, step) != dnnl_success;
}

static inline void ch_onednn_forget(const ch_onednn_desc *desc) { (void)desc; }

static inline int ch_onednn_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ch_onednn_view a,
                                   ch_onednn_view b, ch_onednn_view c, const_dnnl_primitive_attr_t attributes) {
  dnnl_matmul_desc_t desc;
  return dnnl_matmul_desc_init(&desc, a, b, NULL, c) ||
         dnnl_primitive_desc_create(made, &desc, attributes, engine, NULL);
}

static inline int ch_onednn_epilogue(dnnl_primitive_attr_t attributes, float alpha, int accumulate) {
  dnnl_post_ops_t ops;
  if (dnnl_post_ops_create(&ops)) return 1;
  int failed = (alpha != 1 && dnnl_primitive_attr_set_output_scales(attributes, 1, 0, &alpha)) ||
               (accumulate && dnnl_post_ops_append_sum(ops, 1)) || dnnl_primitive_attr_set_post_ops(attributes, ops);
  dnnl_post_ops_destroy(ops);
  return failed;
}

#endif
#endif
