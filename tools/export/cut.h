/* Measures what it costs to have at most K experts a token, and weights of fewer bits. */
#ifndef CH_EXPORT_CUT_H
#define CH_EXPORT_CUT_H

#include "choir/model.h"
#include "export/plan.h"

/* plan->K and plan->nulls. Where experts choose and `model` is not NULL the options' K, or one chosen, is measured on
 * held-out text. CHOIR_ERROR_ARGUMENT: a K that the router rules out, or none where nothing is measured. */
int ch_export_cut(ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                  choir_export_result *result);

/* result->loss_written. The model's weights are then those of the file. */
int ch_export_measure_written(const ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                              choir_export_result *result);

#endif
