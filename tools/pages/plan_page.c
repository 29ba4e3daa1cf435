/* A plan as one HTML page. */
#include <math.h>

#include "base/format.h"
#include "choir/version.h"
#include "pages/page.h"
#include "plan/plan.h"

static const char style[] =
    ".bar{background:var(--s0);height:9px;border-radius:2px;min-width:1px}\n.sent .bar{background:var(--s1)}\n"
    "td.wide{width:220px}\ntd{white-space:nowrap}\n";

static const double gib = 0x1p30;

static void cell(FILE *out, const char *text) {
  fputs("<td>", out);
  ch_html_text(out, text);
}

static void name(FILE *out, const ch_plan_layout *l) {
  fprintf(out, "%d x %d x %d%s", l->replicas, l->experts, l->hidden, l->dense_sharded ? ", dense sharded" : "");
  if (l->chosen) fputs(" (taken unless told otherwise)", out);
}

static void head(FILE *out, const ch_plan_about *a) {
  ch_page_begin(out, a->cluster->name, style, 0);
  fputs("<h1>Plan for ", out);
  ch_html_text(out, a->cluster->name);
  ch_print(
      out,
      "</h1><p>%d ranks, %lld tokens a step, train.shards %d; %.0f M parameters, %.0f M active. Estimates by formulas "
      "from a config and a file about the cluster; nothing was measured. choir %s.</p>\n",
      a->ranks, (long long)a->tokens, a->shards, 1e-6 * (double)a->costs.parameters,
      1e-6 * (double)a->costs.active_parameters, choir_version());
  if (*a->cluster->notes)
    fputs("<p>The cluster's file says: ", out), ch_html_text(out, a->cluster->notes), fputs("</p>\n", out);
  if (*a->assumed) fputs("<p>Assumed: ", out), ch_html_text(out, a->assumed), fputs("</p>\n", out);
}

static void cards(FILE *out, const ch_plan_about *a, const ch_plan_layout *l) {
  fputs("<h2>The fastest: ", out);
  name(out, l);
  fputs("</h2><div class=cards>\n", out);
  ch_page_card(out, "a step", "%.4g", l->seconds, " s");
  ch_page_card(out, "a step, traffic hidden behind products", "%.4g", l->overlapped, " s");
  ch_page_card(out, "tokens a second", "%.0f", l->tokens_per_second, "");
  ch_page_card(out, "of the peak of all ranks", "%.1f", 100 * l->share, " %");
  ch_page_card(out, "memory of a rank", "%.1f", (double)l->bytes / gib, " GiB");
  ch_page_card(out, "10^9 tokens", "%.4g ", l->cost > 0 ? l->cost : NAN, a->cluster->currency);
  fputs("</div><p>The longest part: ", out);
  ch_html_text(out, l->bound);
  fputs(".</p>\n", out);
}

static void parts(FILE *out, const ch_plan_about *a, const ch_plan_layout *l) {
  double longest = 0;
  for (int i = 0; i < l->parts; i++) longest = fmax(longest, l->part[i].seconds);
  fputs(
      "<h2>Its step, by part</h2><div class=scroll><table><tr><th>part<th class=n>s<th><th>limit<th class=n>MiB a rank",
      out);
  for (int i = 0; i < a->cluster->levels; i++)
    fputs("<th class=n>on ", out), ch_html_text(out, a->cluster->level[i].name);
  fputs("</tr>\n", out);
  for (int i = 0; i < l->parts; i++) {
    const ch_plan_part *p = &l->part[i];
    if (!(p->seconds > 0)) continue;
    fprintf(out, "<tr%s>", p->sent ? " class=sent" : "");
    cell(out, p->name);
    ch_print(out, "<td class=n>%.4g<td class=wide><div class=bar style=\"width:%.1f%%\"></div>", p->seconds,
             100 * p->seconds / longest);
    cell(out, p->limit);
    if (p->sent) ch_print(out, "<td class=n>%.4g", p->bytes / a->ranks / 0x1p20);
    for (int j = 0; j < a->cluster->levels && p->sent; j++)
      ch_print(out, "<td class=n>%.4g", p->level_bytes[j] / a->ranks / 0x1p20);
    if (!p->sent) fprintf(out, "<td colspan=%d>", a->cluster->levels + 1);
    fputs("</tr>\n", out);
  }
  fputs("</table></div>\n", out);
}

static void memory(FILE *out, const ch_plan *plan) {
  const ch_plan_layout *l = ch_plan_layout_at(plan, 0);
  fputs("<h2>Memory of a rank, GiB</h2><div class=scroll><table><tr><th>layout<th class=n>all", out);
  for (int i = 0; i < l->purposes; i++) fprintf(out, "<th class=n>%s", l->memory[i].name);
  fputs("</tr>\n", out);
  for (int k = 0; (l = ch_plan_layout_at(plan, k)); k++) {
    if (*l->refused) break;
    fputs("<tr><td>", out);
    name(out, l);
    ch_print(out, "<td class=n>%.2f", (double)l->bytes / gib);
    for (int i = 0; i < l->purposes; i++) ch_print(out, "<td class=n>%.2f", (double)l->memory[i].bytes / gib);
    fputs("</tr>\n", out);
  }
  fputs("</table></div>\n", out);
}

static void layouts(FILE *out, const ch_plan *plan) {
  const ch_plan_about *a = ch_plan_common(plan);
  const ch_plan_layout *l;
  fputs(
      "<h2>Layouts: replicas x experts x hidden shards</h2><div class=scroll><table><tr><th>layout<th class=n>s a "
      "step<th class=n>overlapped<th class=n>tokens/s<th class=n>of peak, %<th class=n>10^9 tokens, ",
      out);
  ch_html_text(out, a->cluster->currency);
  for (int i = 0; i < a->cluster->levels; i++)
    fputs("<th class=n>GiB on ", out), ch_html_text(out, a->cluster->level[i].name);
  fputs("<th>longest part</tr>\n", out);
  for (int k = 0; (l = ch_plan_layout_at(plan, k)) && !*l->refused; k++) {
    fputs("<tr><td>", out);
    name(out, l);
    ch_print(out, "<td class=n>%.4g<td class=n>%.4g<td class=n>%.0f<td class=n>%.1f<td class=n>", l->seconds,
             l->overlapped, l->tokens_per_second, 100 * l->share);
    if (l->cost > 0) ch_print(out, "%.4g", l->cost);
    for (int i = 0; i < a->cluster->levels; i++) ch_print(out, "<td class=n>%.4g", l->level_bytes[i] / gib);
    cell(out, l->bound);
    fputs("</tr>\n", out);
  }
  fputs("</table></div><p>Bytes are those that all ranks together send in a step.</p>\n", out);
}

static void refused(FILE *out, const ch_plan *plan) {
  const ch_plan_layout *l;
  int some = 0;
  for (int k = 0; (l = ch_plan_layout_at(plan, k)); k++) {
    if (!*l->refused) continue;
    if (!some++) fputs("<h2>Refused</h2><div class=scroll><table>\n", out);
    fputs("<tr><td>", out);
    name(out, l);
    cell(out, l->refused);
    fputs("</tr>\n", out);
  }
  if (some) fputs("</table></div>\n", out);
}

static int write_plan(FILE *out, const void *context) {
  const ch_plan *plan = context;
  const ch_plan_about *a = ch_plan_common(plan);
  const ch_plan_layout *fastest = ch_plan_layout_at(plan, 0);
  head(out, a);
  if (fastest && !*fastest->refused) {
    cards(out, a, fastest);
    parts(out, a, fastest);
    layouts(out, plan);
    memory(out, plan);
  }
  refused(out, plan);
  fputs("</html>\n", out);
  return CHOIR_OK;
}

int ch_plan_page(const ch_plan *plan, const char *output) { return ch_page_save(output, write_plan, plan); }
