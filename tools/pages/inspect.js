/* Beside the text of inspect_text.js, whose names it uses: figures, experts, the selection, the address; and the start. */
/* ---- beside the text ---- */
function histogram() {
  const counts = [];
  for (let t = 0; t < N; t++) counts[count(t)] = (counts[count(t)] || 0) + 1;
  for (let i = 0; i < counts.length; i++) counts[i] = counts[i] || 0;
  $("histogram").replaceChildren(bars({ title: "Experts per token", unit: "% of tokens", of: "experts", values: counts.map((n) => (100 * n) / N),
    kind: (i) => (i ? "s0" : "none"), width: 340, height: 170 }));
}
/* The fifths of all tokens that have `loss(t)`, from the lowest to the highest: the mean of how many experts took them. */
function fifths(loss) {
  const known = [...text.keys()].filter((t) => loss(t) != null).sort((a, b) => loss(a) - loss(b));
  const mean = (part) => part.reduce((sum, t) => sum + count(t), 0) / part.length;
  return [0, 1, 2, 3, 4].map((i) => mean(known.slice(Math.floor((i * known.length) / 5), Math.floor(((i + 1) * known.length) / 5))));
}
/* The loss of a token says how surprising it was itself; that of the token after it, how hard it was to go on from here. */
function difficulty() {
  if (N < 11) return $("difficulty").replaceChildren();
  const row = (name, loss) => [name, ...fifths(loss).map((n) => fixed(n, 2))];
  $("difficulty").replaceChildren(figure("Experts by difficulty", "mean experts per token, for each fifth of the text's tokens",
    table(["", "#lowest", "#", "#", "#", "#highest"], [row("by the loss of the token", (t) => losses[t]), row("by the loss of the next token", (t) => losses[t + 1])])));
}
function load() {
  const figures = shownLayers().map((l) => {
    const layer = layers[l], most = Math.max(...layer.load, layer.target, 1);
    const rows = layer.load.map((held, expert) =>
      el("button", { type: "button", "aria-pressed": "" + isChosen(l, expert), title: `expert ${expert}: ${number(held)} tokens, ${percent(held / layer.target, 0)} of its share; asked for by ${number(layer.demand[expert])}`,
        onclick: () => choose(l, expert) }, el("span", {}, "" + expert),
        el("span", { class: "track" }, el("b", { style: `width:${((100 * held) / most).toFixed(1)}%` }), el("u", { style: `left:${((100 * layer.target) / most).toFixed(1)}%` })),
        el("span", {}, number(held))));
    return figure(layerName(l) + ": load of each expert", "tokens; the line marks an even share. Click an expert to see its tokens.",
      el("div", { class: "loads", style: `grid-template-rows:repeat(${Math.ceil(E / 2)},auto)` }, ...rows));
  });
  $("load").replaceChildren(...figures);
}
function layerFigures() {
  /* Of all layers together these are sums, as the legend and the histogram count; rates and entropies are means of layers. */
  const together = shownLayers().length > 1, all = together ? ", all layers together" : "", means = together ? " (mean of layers)" : "";
  const none = spans.filter((_, t) => !count(t)).length / N;
  const shown = shownLayers().map((l) => layers[l]), mean = (f) => shown.reduce((sum, layer) => sum + f(layer), 0) / shown.length;
  const known = (key) => shown.every((layer) => layer[key] !== null);
  const cards = [card("experts per token" + all, fixed(shown.length * mean((s) => s.experts_per_token), 2)), card("tokens without an expert" + all, percent(none)),
    card("sum of gates per token" + all, fixed(shown.length * mean((s) => s.gate_mass), 3), "Mean over tokens of the sum of their gates: the weight of the experts' outputs in the layer's output."),
    card("dropped choices" + means, percent(mean((s) => s.dropped_share)))];
  const entropy = (label, key, about) => cards.push(card(label + means, layers[0].most_entropy > 0 ? percent(mean((s) => s[key]) / layers[0].most_entropy, 0) : null, about));
  if (known("token_entropy")) entropy("of the highest entropy of a token's scores", "token_entropy", "100 %: the scores of all experts are equal; 0 %: each token has one expert with all of the score.");
  entropy("of the highest entropy of loads", "load_entropy", "100 %: all experts have the same load.");
  if (known("drift")) cards.push(card("drift of cut-offs" + means, percent(mean((s) => s.drift)), "How far the cut-offs of this text are from the thresholds of training, relative to these. Where it is large, routing by thresholds gives experts far more or far fewer tokens than in training."));
  $("layerfigures").replaceChildren(...cards);
}

/* ---- experts ---- */
/* Kinds of tokens that a reader has a word for; the first that fits is the token's. */
const KINDS = [
  ["line ends", (p) => p.includes("\n")], ["spaces", (p) => /^\s+$/.test(p)], ["years", (p) => /^ ?(1\d|20)\d\d$/.test(p)], ["numbers", (p) => /\p{N}/u.test(p)],
  ["brackets and operators", (p) => /^ ?[^\p{L}\s.,;:!?'"’“”-]+$/u.test(p)], ["punctuation", (p) => /^ ?[^\p{L}\s]+$/u.test(p)], ["capitals and names", (p) => /^ ?\p{Lu}/u.test(p)],
  ["ends of words", (p) => /^\p{L}/u.test(p)], ["short words", (p) => p.length <= 4], ["long words", (p) => p.length > 7], ["words", () => true],
];
const kindOf = pieces.map((p) => (Array.isArray(p) ? "bytes" : KINDS.find(([, fits]) => fits(p))[0]));
const kinds = (list) => { const n = new Map(); for (const t of list) n.set(kindOf[text[t]], (n.get(kindOf[text[t]]) || 0) + 1); return n; };
const usual = kinds(text.keys());
/* An expert in words: the kinds that it took at least 1.3 times as often as the text has them, and that are a tenth of its tokens. */
function inWords(l, expert) {
  const held = slots[l][expert].map(([, t]) => t), lift = (kind, n) => n / held.length / (usual.get(kind) / N);
  const own = [...kinds(held)].filter(([kind, n]) => n >= 0.1 * held.length && lift(kind, n) >= 1.3).sort((a, b) => lift(...b) - lift(...a));
  return own.length ? own.slice(0, 3).map(([kind, n]) => `${kind} (×${lift(kind, n).toFixed(1)})`).join(", ") : "a bit of everything";
}
function context(t) {
  const side = (from, to) => { let s = ""; for (let i = Math.max(0, from); i < Math.min(N, to); i++) s += plain(pieceAt(i)); return s; };
  return [side(t - 7, t).slice(-22), plain(pieceAt(t)), side(t + 1, t + 12)];
}
function best(l, expert, most) {
  const found = [], known = new Set();
  for (const [gate, t] of [...slots[l][expert]].sort((a, b) => b[0] - a[0] || a[1] - b[1])) {
    if (known.has(text[t])) continue;
    known.add(text[t]);
    const [before, middle, after] = context(t);
    found.push(el("li", {}, el("button", { type: "button", title: "show in the text", onclick: () => { focusToken(t); openTip(t, true); } }, el("span", {}, gate.toFixed(3)),
      el("span", {}, "…" + before, el("mark", {}, middle), after))));
    if (found.length === most) break;
  }
  return found;
}
function chips(list, describe) {
  return el("div", { class: "chips" }, ...list.map((f) => el("span", { title: `held ${f.held} of ${f.text} times` }, ...show(placeOf.has(f.token) ? pieces[placeOf.get(f.token)] : f.piece, false), " ", el("em", {}, describe(f)))));
}
function expertCard(l, expert) {
  const layer = layers[l], held = layer.load[expert];
  let near = -1;
  layer.overlap[expert].forEach((share, i) => { if (i !== expert && share > 0 && (near < 0 || share > layer.overlap[expert][near])) near = i; });
  const facts = [percent(held / layer.target, 0) + " of its share", "mean gate " + fixed(layer.gate[expert], 3),
    layer.over_capacity[expert] ? number(layer.over_capacity[expert]) + " over capacity" : null,
    layer.cutoff[expert] !== null ? "cut-off " + fixed(layer.cutoff[expert], 4) + (layer.threshold[expert] !== null ? " (threshold " + fixed(layer.threshold[expert], 4) + ")" : "")
      : layer.threshold[expert] !== null ? "threshold " + fixed(layer.threshold[expert], 4) : null,
    near >= 0 ? "largest overlap: expert " + near + " (" + percent(layer.overlap[expert][near], 0) + ")" : null];
  return el("article", { class: "expert" + (isChosen(l, expert) ? " on" : ""), "aria-label": layerName(l) + ", expert " + expert },
    el("header", {}, el("button", { type: "button", "aria-pressed": "" + isChosen(l, expert), title: "show its tokens in the text", onclick: () => choose(l, expert) }, "Expert " + expert), el("small", {}, number(held) + " tokens")),
    held ? el("p", { class: "words" }, inWords(l, expert)) : null, el("div", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    ...(held ? [el("h4", {}, "Best"), el("ul", { class: "best" }, ...best(l, expert, 5)), el("h4", {}, "Typical"), chips(layer.typical[expert], (f) => "×" + f.lift.toFixed(1)),
      el("h4", {}, "Frequent"), chips(layer.frequent[expert], (f) => number(f.held))] : [el("p", {}, "No token of this text.")]));
}
function experts() {
  const nodes = [];
  for (const l of shownLayers()) {
    if (state.layer < 0 && layers.length > 1) nodes.push(el("h3", {}, layerName(l)));
    for (let i = 0; i < E; i++) nodes.push(expertCard(l, i));
  }
  $("experts").replaceChildren(...nodes);
}
/* Of more experts than a map can show: the pairs that share most. */
function pairs(rows) {
  const list = rows.flatMap((row, i) => row.slice(i + 1).map((share, j) => [share, i, i + 1 + j])).sort((a, b) => b[0] - a[0]);
  return el("ol", {}, ...list.slice(0, 20).map(([share, i, j]) => el("li", {}, `experts ${i} and ${j}: ${percent(share)}`)));
}
function map(rows, most) {
  const size = 400 / E, every = 1 + Math.floor((E - 1) / 16), side = px(0.94 * size);
  const tick = (x, y, i, anchor) => svg("text", { class: "tick", "text-anchor": anchor, x, y }, "" + i);
  const cell = (share, i, j) => svg("rect", { class: "cell", x: 30 + size * j, y: 20 + size * i, width: side, height: side, "fill-opacity": (0.04 + (most ? (0.96 * share) / most : 0)).toFixed(3) },
    svg("title", {}, `experts ${i} and ${j}: ${percent(share)}`));
  const labels = rows.flatMap((_, i) => (i % every ? [] : [tick(24, 24 + size * (i + 0.5), i, "end"), tick(30 + size * (i + 0.5), 12, i, "middle")]));
  return drawing("overlap of experts", 432, 422, ...labels, ...rows.flatMap((row, i) => row.flatMap((share, j) => (i === j ? [] : [cell(share, i, j)]))));
}
function overlap() {
  $("overlap").replaceChildren(...shownLayers().map((l) => {
    const rows = layers[l].overlap, most = Math.max(0, ...rows.flatMap((row, i) => row.filter((_, j) => i !== j)));
    return figure(layerName(l), "at most " + percent(most), E > 64 ? pairs(rows) : map(rows, most));
  }));
}

/* ---- locality ---- */
/* A least-recently-used cache of `size` experts through the text: the intervals [first token, end) in which it contains each expert. */
function cacheOf(l, size) {
  const intervals = Array.from({ length: E }, () => []), since = new Map(); // of the experts in the cache, the oldest use first
  let hits = 0, uses = 0;
  const evict = (expert, t) => { intervals[expert].push([since.get(expert), t]); since.delete(expert); };
  for (let t = 0; t < N; t++) {
    if (t % T === 0) for (const expert of [...since.keys()]) evict(expert, t);
    const used = routes[l][t].filter((_, i) => i % 2 === 0).sort((a, b) => a - b);
    for (const expert of used) {
      const first = since.has(expert) ? since.get(expert) : t;
      uses++;
      hits += since.has(expert);
      since.delete(expert);
      if (since.size === size) evict(since.keys().next().value, t);
      since.set(expert, first);
    }
  }
  for (const expert of [...since.keys()]) evict(expert, N);
  return { intervals, hits, uses };
}
function cacheFigure(l) {
  const size = Math.max(1, E >> 2), { intervals, hits, uses } = cacheOf(l, size), row = E > 64 ? 3 : 6, width = 960, x = (t) => px((width * t) / N);
  const bars = intervals.map((list, i) => svg("path", { class: "cached", "stroke-width": px(0.7 * row), d: list.map(([from, to]) => `M${x(from)} ${px(row * (i + 0.5))}H${x(to)}`).join("") },
    svg("title", {}, `expert ${i}: in the cache at ${percent(list.reduce((sum, [from, to]) => sum + to - from, 0) / N)} of the tokens`)));
  return figure(layerName(l), `cache of ${size} of ${E} experts: ${uses ? percent(hits / uses) : "no"} hits` + (layers[l].locality.shuffled.lru[size] === null ? "" : `, ${percent(layers[l].locality.shuffled.lru[size])} with shuffled tokens`),
    drawing("experts in the cache, " + layerName(l), width, row * E, ...bars));
}
function locality() {
  const known = layers.every((layer) => layer.locality);
  $("locality").hidden = !known;
  $("caches").replaceChildren(...(known ? shownLayers().map(cacheFigure) : []));
}

/* ---- choosing ---- */
const isChosen = (l, expert) => state.expert !== null && state.expert[0] === l && state.expert[1] === expert;
function choose(l, expert) {
  state.expert = l === null || isChosen(l, expert) ? null : [l, expert];
  paint();
  load();
  experts();
  const line = $("chosen");
  line.replaceChildren();
  if (state.expert)
    line.append(`Highlighted: ${layerName(l).toLowerCase()}, expert ${expert}, ${number(layers[l].load[expert])} tokens`, el("button", { type: "button", onclick: () => choose(null) }, "clear"));
  remember();
}
function selectLayer(l) {
  state.layer = l;
  if (state.expert && l >= 0 && state.expert[0] !== l) state.expert = null;
  for (const tab of $("tabs").children) {
    const on = +tab.dataset.layer === l;
    tab.setAttribute("aria-selected", "" + on);
    tab.tabIndex = on ? 0 : -1;
  }
  closeTip();
  layerFigures();
  histogram();
  difficulty();
  overlap();
  locality();
  const chosen = state.expert;
  state.expert = null;
  if (chosen) choose(...chosen);
  else choose(null);
}
function tabs() {
  const list = layers.length > 1 ? [-1, ...layers.keys()] : [0];
  $("tabs").append(...list.map((l) => {
    const tab = el("button", { type: "button", role: "tab", "aria-controls": "panel", onclick: () => selectLayer(l) }, l < 0 ? "All layers" : layerName(l));
    tab.dataset.layer = l;
    return tab;
  }));
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], all = [...$("tabs").children], at = all.indexOf(document.activeElement);
    if (!step || at < 0) return;
    const next = all[(at + step + all.length) % all.length];
    selectLayer(+next.dataset.layer);
    next.focus();
  });
}

/* ---- several checkpoints: a slider leads from one to the next; the layer, the expert and a kept note stay ---- */
function checkpointName(view) {
  const path = views[view].inspection.checkpoint || "checkpoint " + (view + 1), step = /(?:^|\/)(\d{8,})\/*$/.exec(path);
  return step ? "step " + number(+step[1]) : path;
}
function showView(view) {
  const kept = state.kept ? state.token : -1;
  take(view);
  header();
  selectLayer(state.layer);
  nameView();
  if (kept >= 0) openTip(kept, true);
}
function nameView() {
  $("view").value = state.view;
  $("view").setAttribute("aria-valuetext", checkpointName(state.view));
  $("viewname").textContent = `${checkpointName(state.view)} (${state.view + 1} of ${views.length})`;
}
function slider() {
  if (views.length < 2) return;
  $("view").setAttribute("max", views.length - 1);
  $("view").addEventListener("input", (event) => showView(+event.target.value));
  $("views").hidden = false;
  nameView();
}

/* ---- the address says what is shown: #view=0&layer=3&expert=1.7&token=12 (view: checkpoint; expert: of the layer with that number) ---- */
let reading = false;
function remember() {
  if (reading) return;
  const parts = views.length > 1 ? ["view=" + state.view] : [];
  if (state.layer >= 0 && layers.length > 1) parts.push("layer=" + layers[state.layer].layer);
  if (state.expert) parts.push("expert=" + layers[state.expert[0]].layer + "." + state.expert[1]);
  if (state.kept) parts.push("token=" + state.token);
  try { history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname); } catch { /* a frame without an address */ }
}
function recall() {
  const wanted = new URLSearchParams(location.hash.slice(1)), find = (n) => layers.findIndex((layer) => layer.layer === +n);
  reading = true;
  if (views[wanted.get("view")]) take(+wanted.get("view"));
  selectLayer(wanted.has("layer") && find(wanted.get("layer")) >= 0 ? find(wanted.get("layer")) : layers.length > 1 ? -1 : 0);
  const [l, expert] = (wanted.get("expert") || "").split(".");
  if (expert && find(l) >= 0 && +expert < E) choose(find(l), +expert);
  const t = wanted.has("token") ? +wanted.get("token") : -1;
  if (Number.isInteger(t) && t >= 0 && t < N) { focusToken(t); openTip(t, true); }
  reading = false;
}

buildText();
tabs();
recall();
header();
slider();
addEventListener("hashchange", recall);
addEventListener("resize", placeTip);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeTip(); });
document.addEventListener("click", (event) => { if (state.kept && !event.target.closest("#tip, .t, .best")) closeTip(); });
$("text").addEventListener("scroll", placeTip);
document.documentElement.dataset.ready = N;
