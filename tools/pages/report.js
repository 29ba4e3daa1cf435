/* The page of choir report: one run, or several beside each other. */
const runs = data.runs, alone = runs.length === 1;
const text = (v) => (typeof v === "string" ? v : JSON.stringify(v));
const word = (v) => (v == null ? null : text(v));

/* What the losses of a run that is trained by masking are; null: losses of the next token. Its name says so everywhere. */
const MEASURES = { masked_diffusion: "upper bound", masked_lm: "loss of masked tokens" };
const measure = (run) => MEASURES[run.run.config?.train?.objective] || null;
for (const run of runs) if (measure(run) && !alone) run.name += ` (${measure(run)})`;

/* [name, title, unit, from zero, each point is marked] */
const CURVES = [
  ["loss", "Loss in training", "nats per token"],
  ["heldout", "Held-out loss", "with the router's own routing", false, true],
  ["causal", "Held-out loss, causal", alone ? "with threshold routing" : "with threshold routing; with its own routing if the router depends on no other token", false, true],
  ["bits_per_byte", "Bits per byte", "held out", false, true],
  ["gradient_norm", "Gradient norm", "before clipping", true],
  ["rate", "Learning rate", "", true],
  ["aux_loss", "Auxiliary loss", "weighted, of the router", true],
  ["z_loss", "z-loss", "weighted, of the router's logits", true],
  ["dropped", "Dropped", "share of choices whose expert was full", true],
  ["unrouted", "Unrouted", "share of tokens without an expert: the layer leaves them unchanged", true],
  ["imbalance", "Imbalance", "largest load of an expert over the mean, worst layer", true],
  ["speed", "Speed", "tokens a second", true],
  ["peak_share", "Utilization", "model FLOPs, % of measured peak", true],
];
const last = (run, name) => run.curves[name]?.last, median = (run, name) => run.curves[name]?.median;
/* Where a router does not look across tokens its own loss is the causal one. */
const ownIsCausal = (run) => run.eval.looks_across_tokens === false;
const causal = (run) => last(run, ownIsCausal(run) ? "heldout" : "causal");
const curveOf = (run, name) => run.curves[name === "causal" && !alone && ownIsCausal(run) ? "heldout" : name];

/* What runs may be compared over: [button, unit, how much of it one step is]. Seconds are those of steps, by the median speed. */
const OVER = [["steps", "step", () => 1], ["tokens", "token", (run) => run.tokens / run.steps],
  ["seconds", "second", (run) => run.tokens / run.steps / median(run, "speed")]];
let over = OVER[0];
const stretched = (run, curve) => (over[2](run) === 1 ? curve : { ...curve, x: curve.x.map((v) => v * over[2](run)) });

/* Curves of one name of all runs; those of nothing but zeros say nothing, and those that never change come last. */
function curves(only) {
  const made = CURVES.filter(([name]) => only(name)).flatMap(([name, title, unit, fromZero, points]) => {
    const shown = runs.filter((run) => curveOf(run, name) && known(over[2](run)));
    const series = shown.map((run, i) => ({ label: alone ? title.toLowerCase() : run.name, curve: stretched(run, curveOf(run, name)), points, dash: i > 0 && points }));
    if (!series.some((s) => s.curve.y.some((v) => v))) return [];
    const constant = series.every((s) => s.curve.y.every((v) => v === series[0].curve.y[0]));
    const late = ["loss", "heldout", "causal", "bits_per_byte"].includes(name);
    return [[constant, chart({ title, unit: constant ? (unit ? unit + "; " : "") + "constant" : unit, series, fromZero, late, over: over[1] })]];
  });
  return [...made.filter(([constant]) => !constant), ...made.filter(([constant]) => constant)].map(([, figure]) => figure);
}

/* ---- one run ---- */
function lossChart(run) {
  const series = [["loss", "training"], ["heldout", "held out"], ["causal", measure(run) ? "held out, threshold routing" : "held out, causal"]].flatMap(([name, label]) =>
    run.curves[name] ? [{ label, curve: run.curves[name], points: name !== "loss", dash: name === "causal" }] : []);
  if (known(run.eval.unigram_loss)) series.push({ label: "unigrams", level: run.eval.unigram_loss });
  const named = run.curves.rate ? [{ label: "learning rate", curve: run.curves.rate }] : [];
  return chart({ title: measure(run) ? `Loss: ${measure(run)}` : "Loss", unit: "nats per token, over steps", series, named, late: true });
}
function figures(run) {
  const loss = measure(run) || "loss";
  return cards(card("held-out perplexity", places(run.eval.perplexity, 2)), card("perplexity of the unigram baseline", places(Math.exp(run.eval.unigram_loss), 1)),
    card("bits per byte, held out", places(last(run, "bits_per_byte"), 3)), card(`held-out ${loss}, nats per token`, places(last(run, "heldout"), 4)),
    card(measure(run) ? "the same, with threshold routing" : "the same, causal (threshold routing)", places(last(run, "causal"), 4)), card("steps", number(run.steps)), card("training tokens", large(run.tokens)),
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
  if (load.length && load.every((v) => v === load[0]) && !more)
    charts.push(figure(`Layer ${layer.layer}: load of each expert`, `${number(load[0])} tokens each: all experts are equally busy`, null));
  else if (load.length)
    charts.push(bars({ title: `Layer ${layer.layer}: load of each expert`, unit: more ? "tokens of each expert (pale: with dropped ones); dashed: mean" : "tokens; dashed: mean",
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
/* When, where and for how long, as timing.jsonl has it. */
function circumstances(run) {
  const begun = word(run.process?.date), host = word(run.process?.host), seconds = run.seconds, hours = Math.floor(seconds / 3600), rest = Math.round(seconds % 3600);
  const took = !known(seconds) || seconds <= 0 ? null : `${hours ? hours + " h " : ""}${Math.floor(rest / 60)} min ${rest % 60} s in steps`;
  return [begun && "begun " + begun.replace("T", " ").replace("Z", " UTC"), host && "on " + host,
    run.process?.threads && `${run.process.ranks > 1 ? run.process.ranks + " ranks, " : ""}${run.process.threads} threads`, took].filter(Boolean).join(", ");
}
/* What the model wrote at evaluations after the same prompt. */
function samples(run) {
  const samples = run.samples.filter((s) => typeof s.prompt === "string" && typeof s.text === "string");
  if (!samples.length) return [];
  return [el("h2", {}, "Generated text"), el("p", {}, "Continues the same held-out words (bold) at each evaluation, with the routing of generation. One sample each, not selected."),
    el("dl", { class: "samples" }, ...samples.flatMap((s) => [el("dt", {}, "step " + number(s.step)), el("dd", {}, el("b", {}, s.prompt.replace(/^\s*\n/, "")), s.text)]))];
}
/* The command that trains it again, as a reader can type it. */
const quoted = (word) => (/^[\w./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'");
const again = (run) => `choir train --config ${quoted(run.name + "/config.json")} --data ${run.data ? quoted(run.data) : "DATA"} --out again`;
function oneRun(run) {
  const config = run.run.config || {}, at = known(run.eval.step) ? `; held-out figures and routing are of step ${number(run.eval.step)}` : "";
  const across = measure(run)
    ? `Trained by masking: what stands above as held out is the ${measure(run)}, not the loss of a model that predicts the next token.`
    : run.eval.looks_across_tokens === true
    ? "The router ranks all tokens of a batch, including later ones. The held-out loss above is measured with this routing and is not causal. The loss of generation is the causal one, with threshold routing."
    : "";
  return [el("h1", {}, word(config.model?.name) || "choir run"), el("p", {}, `${run.name}, choir ${data.version}${at}`),
    circumstances(run) ? el("p", {}, circumstances(run)) : null, el("p", {}, "Repeat this run with: ", el("code", {}, again(run))), figures(run),
    el("h2", {}, "Training"), el("div", { class: "charts" }, lossChart(run), ...curves((name) => !["loss", "heldout", "causal"].includes(name))),
    ...samples(run), ...routing("Causal routing, at the last evaluation",
      "The same sequences, with routing that depends on no other token: threshold routing or, where tokens choose, unlimited capacity.", run.eval.threshold?.layers),
    ...routing("Routing, at the last evaluation", across, run.eval.layers),
    el("h2", {}, "Config"), el("div", { class: "columns" }, ...Object.entries(config).map(([key, part]) => table(["field", "#value"], leaves(part, key))))];
}

/* ---- several ---- */
function results() {
  const difference = (a, b) => (a === null || b === null ? "" : (b > a ? "+" : "") + (b - a).toLocaleString("en-US", { maximumFractionDigits: 4 }));
  const plain = (shown) => (shown === null || shown === undefined ? null : +("" + shown).replace(/,/g, ""));
  const row = (label, value) => [label, ...runs.map(value), ...(runs.length === 2 ? [difference(...runs.map((run) => plain(value(run))))] : [])];
  return table(["", ...runs.map((run) => "#" + run.name), ...(runs.length === 2 ? ["#second less first"] : [])], [row("steps", (run) => number(run.steps)), row("training tokens", (run) => number(run.tokens)),
    row("training loss, last step", (run) => places(last(run, "loss"), 4)), row("step of the last evaluation", (run) => number(run.eval.step)),
    row("held-out loss, nats per token, with the router's own routing", (run) => places(last(run, "heldout"), 4)),
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
/* The curves, and what they are over. */
function compared() {
  const box = el("div", { class: "charts" }), turns = el("div", { class: "turns", role: "group", "aria-label": "Curves over" });
  const turn = (to) => {
    over = to;
    box.replaceChildren(...curves(() => true));
    turns.replaceChildren(...OVER.map((one) => el("button", { type: "button", "aria-pressed": "" + (one === over), onclick: () => turn(one) }, "by " + one[0])));
  };
  turn(runs.every((run) => run.tokens / run.steps === runs[0].tokens / runs[0].steps) ? OVER[0] : OVER[1]);
  return [turns, box];
}
function severalRuns() {
  const equal = runs.every((run) => run.tokens === runs[0].tokens);
  return [el("h1", {}, runs.length + " runs"), el("p", {}, "choir " + data.version), el("h2", {}, "Results, at the end of each"), results(),
    equal ? null : el("p", { class: "note" }, "These runs read different numbers of tokens: their final losses do not tell which is better."), el("p", {}, "If a router depends on other tokens, its held-out loss is not causal: compare the causal losses. Losses can be compared only for the same data and tokenizer."),
    el("h2", {}, "Differences of the configs"), differences(), el("h2", {}, "Curves"), ...compared()];
}

$("page").append(...(alone ? oneRun(runs[0]) : severalRuns()).filter((node) => node !== null));
