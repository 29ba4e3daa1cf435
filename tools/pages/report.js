/* The page of choir report: one run, or several beside each other. */
const runs = data.runs, alone = runs.length === 1;
const text = (v) => (typeof v === "string" ? v : JSON.stringify(v));

/* What the losses of a run that is trained by masking are; null: losses of the next token. Its name says so everywhere. */
const MEASURES = { masked_diffusion: "upper bound", masked_lm: "loss of masked tokens" };
const measure = (run) => MEASURES[run.run.config?.train?.objective] || null;
for (const run of runs) if (measure(run) && !alone) run.name += ` (${measure(run)})`;

/* [name, title, unit, from zero, each point is marked] */
const CURVES = [
  ["loss", "Loss in training", "nats a token, over steps"],
  ["heldout", "Held-out loss", "by the router's own routing", false, true],
  ["causal", "Held-out loss, causal", "by thresholds", false, true],
  ["bits_per_byte", "Bits per byte", "held out", false, true],
  ["gradient_norm", "Gradient norm", "before clipping", true],
  ["rate", "Learning rate", "", true],
  ["aux_loss", "Auxiliary loss", "weighted, of the router", true],
  ["z_loss", "z-loss", "weighted, of the router's logits", true],
  ["dropped", "Dropped", "share of choices that found their expert full", true],
  ["unrouted", "Unrouted", "share of tokens without an expert", true],
  ["imbalance", "Imbalance", "largest load of an expert over the mean, worst layer", true],
  ["speed", "Speed", "tokens a second", true],
  ["peak_share", "Use of the machine", "model FLOPs, % of measured peak", true],
];
const last = (run, name) => run.curves[name]?.last, median = (run, name) => run.curves[name]?.median;
/* Where a router does not look across tokens its own loss is the causal one. */
const causal = (run) => (run.eval.looks_across_tokens === false ? last(run, "heldout") : last(run, "causal"));

/* Curves of one name of all runs; those of nothing but zeros say nothing. */
function curves(only) {
  return CURVES.filter(([name]) => only(name)).flatMap(([name, title, unit, fromZero, points]) => {
    const told = runs.filter((run) => run.curves[name]);
    const series = told.map((run) => ({ label: alone ? title.toLowerCase() : run.name, curve: run.curves[name], points }));
    return series.some((s) => s.curve.y.some((v) => v)) ? [chart({ title, unit, series, fromZero })] : [];
  });
}

/* ---- one run ---- */
function lossChart(run) {
  const series = [["loss", "training"], ["heldout", "held out"], ["causal", measure(run) ? "held out, by thresholds" : "held out, causal"]].flatMap(([name, label]) =>
    run.curves[name] ? [{ label, curve: run.curves[name], points: name !== "loss" }] : []);
  if (known(run.eval.unigram_loss)) series.push({ label: "unigrams", level: run.eval.unigram_loss });
  const told = run.curves.rate ? [{ label: "learning rate", curve: run.curves.rate }] : [];
  return chart({ title: measure(run) ? `Loss: ${measure(run)}` : "Loss", unit: "nats a token, over steps", series, told });
}
function figures(run) {
  const loss = measure(run) || "loss";
  return cards(card("held-out perplexity", places(run.eval.perplexity, 2)), card("perplexity of unigrams", places(Math.exp(run.eval.unigram_loss), 1)),
    card("bits per byte, held out", places(last(run, "bits_per_byte"), 3)), card(`held-out ${loss}, nats a token`, places(last(run, "heldout"), 4)),
    card(measure(run) ? "the same by thresholds" : "the same, causal (by thresholds)", places(last(run, "causal"), 4)), card("steps", number(run.steps)), card("training tokens", large(run.tokens)),
    card("parameters", large(run.run.parameters)), card("active per token", large(run.run.active_parameters)),
    card("tokens a second (median)", large(median(run, "speed"))), card("of the machine's peak (median)", percent(median(run, "peak_share") / 100, 0)));
}
/* What should be a list of counts. */
const counts = (list) => (Array.isArray(list) ? list.map((v) => (known(v) && v > 0 ? Math.min(v, 1e300) : 0)) : []);
function layerCharts(layer) {
  const histogram = counts(layer.histogram), load = counts(layer.load), demand = counts(layer.demand), charts = [];
  const tokens = histogram.reduce((sum, v) => sum + v, 0), mean = layer.assignments / load.length, more = load.some((v, i) => demand[i] > v);
  while (histogram.length && !histogram[histogram.length - 1]) histogram.pop();
  if (histogram.length)
    charts.push(bars({ title: `Layer ${layer.layer}: experts per token`, unit: "% of tokens", of: "experts", values: histogram.map((v) => 100 * (v / tokens)) }));
  if (load.length)
    charts.push(bars({ title: `Layer ${layer.layer}: load of each expert`, unit: more ? "tokens held (pale: asked for); dashed: mean" : "tokens; dashed: mean",
      of: "expert", values: load, behind: demand.slice(0, load.length), level: known(mean) ? Math.min(mean, 1e300) : 0 }));
  return charts;
}
const MOST_BARS = 1 << 16; /* of all layers of a routing: more than that a browser would not like */
function routing(title, about, layers) {
  if (!Array.isArray(layers) || !layers.length) return [];
  const charts = [];
  let most = MOST_BARS, shown = 0;
  while (shown < layers.length && (most -= 64 + counts(layers[shown]?.histogram).length + counts(layers[shown]?.load).length) > 0)
    charts.push(...layerCharts(layers[shown++] || {}));
  return [el("h2", {}, title), el("p", {}, about), el("div", { class: "charts" }, ...charts),
    shown < layers.length ? el("p", {}, `Left out: ${number(layers.length - shown)} more layers.`) : null];
}
/* [name, value] of everything in `value` that is no object. */
function leaves(value, name) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [[name, text(value)]];
  return Object.entries(value).flatMap(([key, inner]) => leaves(inner, name ? name + "." + key : key));
}
function oneRun(run) {
  const config = run.run.config || {}, at = known(run.eval.step) ? `; held-out figures and routing are of step ${number(run.eval.step)}` : "";
  const across = measure(run)
    ? `Trained by masking: what stands above as held out is the ${measure(run)}, not the loss of a model that predicts the next token.`
    : run.eval.looks_across_tokens === true
    ? "The router chooses among all tokens of a batch, later ones included. The held-out loss above is measured in the same way, and is not the loss of writing text token by token: that is the causal one, routed by thresholds."
    : "";
  return [el("h1", {}, config.model?.name || "choir run"), el("p", {}, `${run.name}, choir ${data.version}${at}`), figures(run),
    el("h2", {}, "Training"), el("div", { class: "charts" }, lossChart(run), ...curves((name) => !["loss", "heldout", "causal"].includes(name))),
    ...routing("Routing, at the last evaluation", across, run.eval.layers),
    ...routing("Routing as in serving, at the last evaluation",
      "The same sequences without a look at other tokens: by thresholds or, where tokens choose, with room for all.", run.eval.threshold?.layers),
    el("h2", {}, "Config"), el("div", { class: "columns" }, ...Object.entries(config).map(([key, part]) => table(["field", "#value"], leaves(part, key))))];
}

/* ---- several ---- */
function results() {
  const row = (label, value) => [label, ...runs.map(value)];
  return table(["", ...runs.map((run) => "#" + run.name)], [row("steps", (run) => number(run.steps)), row("training tokens", (run) => number(run.tokens)),
    row("loss in training, last step", (run) => places(last(run, "loss"), 4)), row("step of the last evaluation", (run) => number(run.eval.step)),
    row("held-out loss, nats a token, by the router's own routing", (run) => places(last(run, "heldout"), 4)),
    row("the same, causal", (run) => places(causal(run), 4)), row("bits per byte, held out", (run) => places(last(run, "bits_per_byte"), 4)),
    row("parameters", (run) => number(run.run.parameters)), row("active per token", (run) => number(run.run.active_parameters)),
    row("tokens a second, median", (run) => places(median(run, "speed"), 0))]);
}
function differences() {
  const fields = new Map();
  runs.forEach((run, i) => {
    for (const [name, value] of leaves(run.run.config || {}, "")) {
      if (!fields.has(name)) fields.set(name, runs.map(() => ""));
      fields.get(name)[i] = value;
    }
  });
  const rows = [...fields].filter(([, values]) => values.some((v) => v !== values[0])).map(([name, values]) => [name, ...values]);
  return rows.length ? table(["field", ...runs.map((run) => "#" + run.name)], rows) : el("p", {}, "Nothing.");
}
function severalRuns() {
  return [el("h1", {}, runs.length + " runs"), el("p", {}, "choir " + data.version), el("h2", {}, "Results, at the end of each"), results(),
    el("p", {}, "Where a router looks across tokens its held-out loss is not that of writing text; the causal one is. Losses compare only where data and tokenizer are the same."),
    el("h2", {}, "What differs in their configs"), differences(), el("h2", {}, "Curves"), el("div", { class: "charts" }, ...curves(() => true))];
}

$("page").append(...(alone ? oneRun(runs[0]) : severalRuns()).filter((node) => node !== null));
