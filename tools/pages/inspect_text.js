/* The page of `choir inspect`: the text, and the note on a token. One script with inspect.js, which follows and starts it. */
const { text, pieces, ids } = data, N = text.length, views = [data, ...(data.later || [])];
const { experts: E, sequence_length: T, batch_sequences: B } = data.inspection;
/* Of the checkpoint that is shown; slots: the gates and tokens of each layer's experts. */
let inspection, layers, routes, losses, slots;
function take(view) {
  state.view = view;
  ({ inspection, routes, losses } = views[view]);
  layers = inspection.layers;
  slots = routes.map((tokens) => {
    const held = Array.from({ length: E }, () => []);
    tokens.forEach((route, t) => { for (let i = 0; i < route.length; i += 2) held[route[i]].push([route[i + 1] / 1e4, t]); });
    return held;
  });
}
/* What is shown: a checkpoint, a layer (-1: all), an expert of a layer or none, losses or experts, the token whose note is open, and for good. */
const state = { view: 0, layer: data.inspection.layers.length === 1 ? 0 : -1, expert: null, loss: false, token: -1, kept: false };
take(views.length - 1);

const shownLayers = () => (state.layer < 0 ? layers.map((_, l) => l) : [state.layer]);
const layerName = (l) => "Layer " + layers[l].layer;

/* ---- tokens as people read them ---- */
const odd = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/;
const hex = (code) => (code < 256 ? "\\x" + code.toString(16).toUpperCase().padStart(2, "0") : "U+" + code.toString(16).toUpperCase().padStart(4, "0"));

/* Source code: more than a quarter of its lines begin with two spaces or a tab, or end with a bracket, a colon or a semicolon. It is
 * set in a monospaced font, in which its spaces are wide enough to be seen. */
const isCode = (() => {
  const lines = text.map((id) => (typeof pieces[id] === "string" ? pieces[id] : "?")).join("").split("\n").filter((line) => line.trim());
  return lines.length > 4 && lines.filter((line) => /^(\t| {2,})\S|[{};:(]$/.test(line)).length > 0.25 * lines.length;
})();

/* HTML nodes of a piece. `inline`: inside the text, where spaces stay spaces. Bytes that are no character and invisible characters are named. */
function show(piece, inline) {
  if (Array.isArray(piece)) return piece.map((byte) => el("i", { class: "byte" }, hex(byte)));
  const nodes = [];
  let run = "";
  const flush = () => { if (run) nodes.push(run); run = ""; };
  const blank = /^ +$/.test(piece);
  for (const c of piece) {
    if (c === "\n" || c === "\t") {
      flush();
      nodes.push(el("i", {}, c === "\n" ? "↵" : "⇥"));
      if (inline && c === "\t") nodes.push(c);
    } else if (odd.test(c)) {
      flush();
      nodes.push(el("i", { class: "byte" }, hex(c.codePointAt(0))));
    } else if (c === " " && (blank ? !(inline && isCode) : !inline)) {
      flush();
      nodes.push(el("i", {}, "␣"));
    } else run += c;
  }
  flush();
  return nodes;
}
/* The same as plain text, for names and surroundings. */
function plain(piece) {
  if (Array.isArray(piece)) return piece.map(hex).join("");
  return [...piece].map((c) => (c === "\n" ? "↵" : c === "\t" ? "⇥" : odd.test(c) ? hex(c.codePointAt(0)) : c)).join("");
}
const pieceAt = (t) => pieces[text[t]];
const placeOf = new Map(ids.map((id, place) => [id, place]));

/* ---- what the routers did ---- */
const countAt = (l, t) => routes[l][t].length / 2;
const count = (t) => shownLayers().reduce((sum, l) => sum + countAt(l, t), 0);
/* The gate of an expert at a token, or -1 where it did not take it. */
function gateAt(l, t, expert) {
  const route = routes[l][t];
  for (let i = 0; i < route.length; i += 2) if (route[i] === expert) return route[i + 1] / 1e4;
  return -1;
}

/* Upper ends of the six shades, for one layer. */
const ends = [1, 2, 3, 4, 6, Infinity];
const worst = 10; /* nats of the deepest shade of a loss */
const shade = (n) => (n === 0 ? 0 : 1 + ends.findIndex((end) => n <= end * (state.layer < 0 ? layers.length : 1)));

/* ---- header ---- */
function header() {
  const name = (inspection.text || "a text").split("/").pop();
  $("title").textContent = (inspection.model || "model") + ": experts of each token of " + name;
  $("subtitle").textContent = [
    inspection.checkpoint, "router " + inspection.router, inspection.router.includes("choice") || inspection.router.includes("topk") ? "capacity factor " + inspection.capacity_factor : null,
    "routing “" + inspection.routing + "”", E + (E === 1 ? " expert" : " experts") + " in each of " + layers.length + (layers.length === 1 ? " MoE layer" : " MoE layers"),
    B + " × " + T + " tokens at a time",
  ].filter(Boolean).join(" · ");
  $("figures").replaceChildren(...[
    card("tokens shown", number(N)), card("loss, nats per token" + (inspection.threshold_loss === undefined ? "" : ", " + inspection.routing + " routing"), fixed(inspection.loss, 4)),
    card("the same, with threshold routing", inspection.threshold_loss === undefined ? null : fixed(inspection.threshold_loss, 4), "Routing of each token depends on no other token, as in generation: experts process the tokens whose scores reach the mean cut-offs of training."),
    card("perplexity", fixed(inspection.perplexity, 1)),
    card("bits per byte", fixed(inspection.bits_per_byte, 3)), card("unigram baseline", fixed(inspection.unigram_loss, 4))].filter(Boolean));
  $("notes").replaceChildren();
  const note = (message) => $("notes").append(el("p", { class: "note" }, message));
  if (inspection.cut) note("The text is longer: this page has its first " + number(N) + " tokens, and all figures are for these.");
  if (inspection.looks_across_tokens)
    note("With this routing, experts rank all tokens of a batch, including later ones: the loss is not the causal loss of generation.");
  $("version").textContent = "choir " + data.version + ". A thin bar in the text begins a sequence of " + T + " tokens, a double bar the start of a batch.";
}

/* ---- the text ---- */
const spans = [];
function buildText() {
  /* A line is a block, so that the browser need not lay out those that are out of sight. */
  if (isCode) $("text").className = "text code";
  const box = $("text"), lines = document.createDocumentFragment();
  let all = null;
  for (let t = 0; t < N; t++) {
    if (!all) lines.append((all = el("div", { class: "line" })));
    if (t && t % T === 0) all.append(el("span", { class: t % (T * B) ? "cut" : "cut batch", title: "sequence " + (t / T + 1) }));
    /* The space before a word belongs to its token, but shading reads better with gaps between words. */
    const piece = pieceAt(t), gap = typeof piece === "string" && /^ ./.test(piece) && /[^ ]/.test(piece);
    if (gap) all.append(" ");
    const span = el("span", { class: "t", tabindex: t ? "-1" : "0" }, ...show(gap ? piece.slice(1) : piece, true));
    span.dataset.t = t;
    spans.push(span);
    all.append(span);
    if (typeof piece === "string" && piece.includes("\n")) all = null;
  }
  box.append(lines);
  const at = (event) => { const span = event.target.closest(".t"); return span ? +span.dataset.t : -1; };
  box.addEventListener("mouseover", (event) => { if (!state.kept && at(event) >= 0) openTip(at(event), false); });
  box.addEventListener("mouseleave", () => { if (!state.kept) closeTip(); });
  box.addEventListener("focusin", (event) => { if (at(event) >= 0 && at(event) !== state.token) openTip(at(event), false); });
  box.addEventListener("focusout", (event) => { if (!state.kept && !$("tip").contains(event.relatedTarget)) closeTip(); });
  box.addEventListener("click", (event) => {
    if (at(event) < 0) return closeTip();
    if (state.kept && at(event) === state.token) return closeTip();
    focusToken(at(event));
    openTip(at(event), true);
  });
  box.addEventListener("keydown", (event) => {
    const t = at(event), step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -N, End: N }[event.key];
    if (t < 0) return;
    if (step) focusToken(Math.max(0, Math.min(N - 1, t + step)));
    else if (event.key === "Enter" || event.key === " ") openTip(t, true);
    else return;
    event.preventDefault();
  });
}
let reachable = 0;
function focusToken(t) {
  spans[reachable].tabIndex = -1;
  spans[reachable = t].tabIndex = 0;
  if (state.kept && t !== state.token) closeTip();
  spans[t].focus({ preventScroll: true });
  spans[t].scrollIntoView({ block: "nearest" });
  if (t !== state.token) openTip(t, false);
}
function paint() {
  const chosen = state.expert;
  let most = 0;
  if (chosen) for (const [gate] of slots[chosen[0]][chosen[1]]) most = Math.max(most, gate);
  for (let t = 0; t < N; t++) {
    const gate = chosen ? gateAt(chosen[0], t, chosen[1]) : -1;
    if (state.loss && !chosen) {
      spans[t].className = losses[t] === null ? "t off" : "t hot";
      spans[t].style.setProperty("--a", (0.85 * Math.min(1, losses[t] / worst)).toFixed(2));
      continue;
    }
    spans[t].className = "t " + (!chosen ? "c" + shade(count(t)) : gate < 0 ? "off" : "hot");
    if (gate >= 0) spans[t].style.setProperty("--a", (0.25 + 0.6 * (most ? gate / most : 0)).toFixed(2));
  }
  const legend = [];
  if (chosen) {
    for (const a of [0.25, 0.45, 0.65, 0.85]) legend.push(el("i", { class: "hot", style: "--a:" + a }));
    legend.push(el("span", {}, "gate of the chosen expert, from 0 to " + most.toFixed(3)), el("span", {}, "unshaded: not a token of this expert"));
  } else if (state.loss) {
    for (const a of [0.05, 0.25, 0.45, 0.65, 0.85]) legend.push(el("i", { class: "hot", style: "--a:" + a }));
    legend.push(el("span", {}, "loss of the token under routing “" + inspection.routing + "”, from 0 to " + worst + " nats and more"));
  } else {
    legend.push(el("span", {}, state.layer < 0 && layers.length > 1 ? "experts of the token, all layers together:" : "experts of the token:"));
    const scale = state.layer < 0 ? layers.length : 1;
    let begin = 1;
    legend.push(el("span", {}, el("i", { class: "c0" }), "none"));
    ends.forEach((end, i) => {
      const last = end * scale;
      legend.push(el("span", {}, el("i", { class: "c" + (i + 1) }), end === Infinity ? begin + " and more" : last > begin ? begin + "–" + last : "" + last));
      begin = last + 1;
    });
  }
  if (!chosen) legend.push(el("button", { type: "button", "aria-pressed": "" + state.loss, onclick: () => { state.loss = !state.loss; paint(); } }, "shade by loss"));
  $("legend").replaceChildren(...legend);
}

/* ---- the note on a token ---- */
function openTip(t, keep) {
  const tip = $("tip");
  if (state.token >= 0) spans[state.token].removeAttribute("aria-describedby");
  state.token = t;
  state.kept = keep;
  tip.className = keep ? "kept" : "";
  const rows = [el("div", { class: "piece" }, el("b", {}, ...show(pieceAt(t), false))),
    el("small", {}, "token " + number(t) + " (id " + ids[text[t]] + "); sequence " + (Math.floor(t / T) + 1) + ", place " + (t % T)),
    el("small", {}, losses[t] === null ? "nothing predicts the first token" : "loss " + losses[t].toFixed(2) + " nats: it had a probability of " + percent(Math.exp(-losses[t]), 2))];
  for (const l of shownLayers()) {
    const n = countAt(l, t);
    rows.push(el("h4", {}, layerName(l) + ": " + (n === 0 ? "no expert" : n === 1 ? "1 expert" : n + " experts")));
    const route = routes[l][t], pairs = [];
    for (let i = 0; i < route.length; i += 2) pairs.push([route[i], route[i + 1] / 1e4]);
    for (const [expert, gate] of pairs.sort((a, b) => b[1] - a[1]))
      rows.push(el("button", { type: "button", tabindex: keep ? null : "-1", onclick: () => choose(l, expert) }, el("span", {}, "expert " + expert),
        el("span", { class: "track" }, el("b", { style: "width:" + Math.min(100, 100 * gate).toFixed(1) + "%" })), el("span", {}, gate.toFixed(3))));
  }
  tip.replaceChildren(...rows);
  tip.hidden = false;
  spans[t].setAttribute("aria-describedby", "tip");
  placeTip();
  if (keep) remember();
}
function placeTip() {
  const tip = $("tip"), t = state.token;
  if (t < 0) return;
  const box = spans[t].getClientRects()[0] || spans[t].getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight || box.top < tip.offsetHeight + 6;
  tip.style.left = left + scrollX + "px";
  tip.style.top = (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + scrollY + "px";
}
function closeTip() {
  if (state.token >= 0) spans[state.token].removeAttribute("aria-describedby");
  const kept = state.kept;
  state.token = -1;
  state.kept = false;
  $("tip").hidden = true;
  if (kept) remember();
}
