/* A plan as one HTML page. */
#include "choir/version.h"
#include "file/json.h"
#include "pages/page.h"
#include "plan/plan.h"

int ch_plan_page(const ch_plan *plan, const char *output) {
  const ch_page page = {.title = plan->cluster.name, .script = {ch_plan_js}};
  json_t *data = json_object(), *layouts = json_array();
  for (int i = 0; i < plan->count; i++) ch_json_add(layouts, ch_plan_layout_json(plan, &plan->layout[i]));
  ch_json_put(data, "version", json_string(choir_version()));
  ch_json_put(data, "plan", ch_plan_about_json(plan));
  ch_json_put(data, "layouts", layouts);
  return ch_page_save(&page, data, output);
}
