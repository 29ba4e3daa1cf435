/* The page of choir plan: what training on a cluster would take, layout by layout. Times are in milliseconds. */
const { plan, layouts } = data, possible = layouts.filter((l) => l.event === "layout"), GiB = 2 ** 30, MiB = 2 ** 20;
/* Three digits that count, at most; what is too small to matter says so. */
const sensible = (v) => (!known(v) ? null : v > 0 && v < 0.01 ? "< 0.01" : places(v, v < 10 ? 2 : v < 100 ? 1 : 0));
const ms = (seconds) => sensible(1e3 * seconds);
const layoutName = (l) => `${l.replicas} x ${l.experts} x ${l.hidden}${l.dense === "sharded" ? ", dense sharded" : ""}${l.chosen ? " *" : ""}`;
const levels = (part, unit, ranks) => plan.levels.map((level) => (part.level_bytes ? sensible(part.level_bytes[level] / ranks / unit) : ""));

function parts(l) {
  const shown = l.parts.filter((p) => p.seconds > 0), longest = Math.max(...shown.map((p) => p.seconds));
  return [el("h2", {}, "Its step, by part"), table(["part", "#ms", "", "limit", "#MiB a rank", ...plan.levels.map((level) => "#on " + level)], shown.map((p) =>
    [p.name, ms(p.seconds), el("div", { class: p.sent ? "share sent" : "share", style: `width:calc(${places(p.seconds / longest, 4)} * min(220px, 24vw))` }), p.limit,
      p.sent ? sensible(p.bytes / plan.ranks / MiB) : "", ...levels(p, MiB, plan.ranks)]))];
}
function fastest(l) {
  return [el("h2", {}, "The fastest: " + layoutName(l)),
    cards(card("a step", ms(l.seconds) + " ms"), card("a step, traffic hidden behind products", ms(l.seconds_overlapped) + " ms"), card("tokens a second", number(Math.round(l.tokens_per_second))),
      card("of the peak of all ranks", percent(l.share)), card("memory of a rank", sensible(l.bytes / room[0]) + " " + room[1]),
      card("10⁹ tokens", l.cost_per_billion_tokens === null ? null : sensible(l.cost_per_billion_tokens) + " " + plan.currency)),
    el("p", {}, `The longest part: ${l.bound}.`), ...parts(l)];
}
/* In the unit in which the largest has at least one digit. */
const room = Math.max(...possible.map((l) => l.bytes)) >= GiB ? [GiB, "GiB"] : [MiB, "MiB"];
function all() {
  return [el("h2", {}, "Layouts: replicas x experts x hidden shards"),
    table(["layout", "#ms a step", "#overlapped", "#tokens/s", "#of peak", "#10⁹ tokens, " + plan.currency, ...plan.levels.map((level) => "#GiB on " + level), "longest part"],
      possible.map((l) => [layoutName(l), ms(l.seconds), ms(l.seconds_overlapped), number(Math.round(l.tokens_per_second)), percent(l.share), sensible(l.cost_per_billion_tokens), ...levels(l, GiB, 1), l.bound])),
    el("p", {}, "* is the default. Bytes are sent by all ranks together in a step."), el("h2", {}, "Memory of a rank, " + room[1]),
    table(["layout", "#all", ...Object.keys(possible[0].memory).map((purpose) => "#" + purpose)],
      possible.map((l) => [layoutName(l), sensible(l.bytes / room[0]), ...Object.values(l.memory).map((bytes) => (bytes ? sensible(bytes / room[0]) : "0"))]))];
}
const refused = layouts.filter((l) => l.event === "refused");
const said = (before, words) => (words ? [el("p", {}, before + words)] : []);
$("page").setAttribute("class", "plan");
$("page").append(el("h1", {}, "Plan for " + plan.cluster),
  el("p", {}, `${number(plan.ranks)} ranks, ${number(plan.tokens)} tokens a step, train.grad_chunks ${plan.grad_chunks}; ${large(plan.parameters)} parameters, ${large(plan.active_parameters)} active. Estimates by formulas from a config and a file about the cluster; nothing was measured. choir ${data.version}.`),
  ...said("The cluster's file says: ", plan.notes), ...said("Assumed: ", plan.assumed),
  ...(possible.length ? [...fastest(possible[0]), ...all()] : []),
  ...(refused.length ? [el("h2", {}, "Refused"), table(["layout", "why"], refused.map((l) => [layoutName(l), l.refused]))] : []));
