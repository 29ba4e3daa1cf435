/* All pages share this: elements, numbers, cards, tables, charts. What comes from data becomes a text node or an attribute, never markup. */
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/* ---- numbers for people; null for a missing number ---- */
const known = (v) => typeof v === "number" && isFinite(v);
const number = (v) => (known(v) ? v.toLocaleString("en-US") : null);
const digits = (v, most) => (known(v) ? v.toLocaleString("en-US", { maximumSignificantDigits: most }) : null);
const places = (v, count) => (known(v) ? v.toLocaleString("en-US", { minimumFractionDigits: count, maximumFractionDigits: count }) : null);
const fixed = (v, count) => places(v, count) ?? "–";
const percent = (share, count = 1) => (known(share) ? places(100 * share, count) + " %" : null);
const large = (v) => (!known(v) ? null : v >= 1e9 ? places(v / 1e9, 2) + " B" : v >= 1e7 ? places(v / 1e6, 1) + " M" : number(Math.round(v)));
/* A value as short as it can be read beside an axis. */
function short(v) {
  const size = Math.abs(v);
  if (size >= 1e4 && size < 1e15) return v.toLocaleString("en-US", { notation: "compact", maximumSignificantDigits: 4 });
  return "" + +v.toPrecision(4);
}

/* ---- cards and tables ---- */
/* `about`: a note that explains the label, for those who point at it. */
const card = (label, value, about) => (value === null ? null : el("div", about ? { title: about } : {}, el("b", {}, value), el("span", about ? { class: "about" } : {}, label)));
const cards = (...list) => el("div", { class: "cards" }, ...list);
/* Columns whose head begins with "#" hold numbers. */
function table(head, rows) {
  const kind = (i) => (head[i].startsWith("#") ? { class: "n" } : {});
  return el("div", { class: "scroll" }, el("table", {},
    el("tr", {}, ...head.map((text, i) => el("th", kind(i), text.replace(/^#/, "")))),
    ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", kind(i), cell ?? ""))))));
}

/* ---- charts ---- */
const LEFT = 56, RIGHT = 14, TOP = 12, BOTTOM = 30;

/* Values from low to high lie between two pixels. Whatever they are, the axis has a finite range and a few ticks: a range too small to be divided is widened as one of no width is. */
function axis(low, high, most, begin, end) {
  const largest = 1e300, smallest = 1e-12;
  low = Math.max(Math.min(low, largest), -largest);
  high = Math.max(Math.min(high, largest), low);
  if (!(high - low > Math.max(1e-9 * Math.max(Math.abs(low), Math.abs(high)), smallest * 1e-3))) {
    const room = low ? Math.max(0.1 * Math.abs(low), smallest) : 1;
    low = low >= 0 && low < room ? 0 : low - room;
    high += room;
  }
  let step = 10 ** Math.floor(Math.log10((high - low) / most));
  while ((high - low) / step > most) step *= [2, 5, 10].find((factor) => (high - low) / (factor * step) <= most) || 10;
  const ticks = [], first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i < 20 && (first + i) * step <= high + 1e-9 * step; i++) ticks.push((first + i) * step);
  return { low, high, ticks, at: (v) => begin + (end - begin) * ((v - low) / (high - low)) };
}
const px = (v) => v.toFixed(1);
const grid = (y, width) => y.ticks.flatMap((v) => [
  svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: px(y.at(v)), y2: px(y.at(v)) }),
  svg("text", { class: "tick", "text-anchor": "end", x: LEFT - 8, y: px(y.at(v) + 4) }, short(v))]);
const below = (x, height, text) => svg("text", { class: "tick", "text-anchor": "middle", x: px(x), y: height - BOTTOM + 20 }, text);
const level = (kind, v, y, width) => svg("line", { class: kind + " level", x1: LEFT, x2: width - RIGHT, y1: px(y.at(v)), y2: px(y.at(v)) });

/* Eight colours, and the same ones dashed. */
const colour = (i) => "s" + (i % 8) + (i % 16 > 7 ? " dash" : "");

const drawing = (title, width, height, ...children) => svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...children);

const figure = (title, unit, content, legend = null) =>
  el("figure", {}, el("figcaption", {}, el("strong", {}, title), " ", el("span", {}, unit), legend), content);

/* The place in curve.x that is nearest to x. */
function nearest(curve, x) {
  let low = 0, high = curve.x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve.x[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low && x - curve.x[low - 1] < curve.x[low] - x ? low - 1 : low;
}

/* A figure of curves {x, y} over `over`. series: {label, curve, points: each is marked, dash}, or {label, level}; `named`: more of the first kind, which only the note at the pointer names. `late`: the axis leaves out what only the first twentieth of a curve reaches. */
function chart({ title, unit, series, named = [], fromZero = false, late = false, over = "step" }) {
  const width = 560, height = 240, drawn = series.filter((s) => s.curve), ys = fromZero ? [0] : [], xs = [0];
  const until = ({ x, y }) => (late && y.length > 40 ? y.slice(nearest({ x }, x[0] + 0.05 * (x[x.length - 1] - x[0]))) : y);
  for (const s of series) ys.push(...(s.curve ? until(s.curve) : [s.level]).filter(known));
  for (const s of drawn) xs.push(s.curve.x[0], s.curve.x[s.curve.x.length - 1]);
  const low = ys.length ? Math.min(...ys) : 0, high = ys.length ? Math.max(...ys) : 1, margin = 0.04 * (high - low);
  const x = axis(Math.min(...xs), Math.max(...xs), 7, LEFT, width - RIGHT);
  const y = axis(fromZero ? low : low - margin, high + margin, 5, height - BOTTOM, TOP);
  const nodes = [...grid(y, width), ...x.ticks.map((v) => below(x.at(v), height, short(v)))];
  series.forEach((s, i) => {
    if (!s.curve) return nodes.push(level(colour(i), s.level, y, width));
    const points = s.curve.x.flatMap((step, p) => (known(s.curve.y[p]) && (!late || s.curve.y[p] <= y.high) ? [[px(x.at(step)), px(y.at(s.curve.y[p]))]] : []));
    nodes.push(svg("polyline", { class: colour(i) + (s.dash ? " dash" : ""), points: points.map((p) => p.join()).join(" ") }));
    if (s.points) nodes.push(...points.map(([cx, cy]) => svg("circle", { class: colour(i), cx, cy, r: 3 })));
  });
  const names = series.map((s, i) => el("li", { class: colour(i) + (s.curve ? (s.dash ? " dash" : "") : " level") }, s.label));
  const plot = drawing(title, width, height, ...nodes);
  const box = figure(title, unit, plot, series.length > 1 ? el("ul", {}, ...names) : null);
  if (drawn.length) answer(box, plot, x, [...series.map((s, i) => ({ ...s, kind: colour(i) })), ...named], width, height, over);
  return box;
}

/* The figure answers to the pointer, and to arrow keys: a line at the nearest step, and a note of what all curves are there. */
function answer(box, plot, x, series, width, height, over) {
  const stops = series.filter((s) => s.curve).reduce((most, s) => (s.curve.x.length > most.x.length ? s.curve : most), { x: [] });
  const line = svg("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" }), note = el("div", { class: "tip", role: "status", hidden: true });
  let now = stops.x.length - 1;
  const hide = () => { line.setAttribute("visibility", "hidden"); note.hidden = true; };
  const show = (i) => {
    const step = stops.x[now = Math.max(0, Math.min(stops.x.length - 1, i))], place = x.at(step);
    const rows = series.map((s) => {
      if (!s.curve) return [s, digits(s.level, 5)];
      const p = nearest(s.curve, step), value = digits(s.curve.y[p], 5) ?? "none";
      return [s, s.curve.x[p] === step ? value : `${value} at ${over} ${number(Math.round(s.curve.x[p]))}`];
    });
    note.replaceChildren(el("strong", {}, `${over} ${number(Math.round(step))}`), ...rows.map(([s, value]) => el("div", { class: s.kind ?? null }, s.label, el("b", {}, value))));
    note.setAttribute("style", place > width / 2 ? `right:${px(100 - (100 * place) / width + 2)}%` : `left:${px((100 * place) / width + 2)}%`);
    line.setAttribute("x1", px(place));
    line.setAttribute("x2", px(place));
    line.setAttribute("visibility", "visible");
    note.hidden = false;
  };
  plot.append(line);
  box.append(note);
  plot.setAttribute("tabindex", "0");
  plot.addEventListener("pointermove", (event) => {
    const frame = plot.getBoundingClientRect(), at = ((event.clientX - frame.left) / frame.width) * width;
    show(nearest(stops, x.low + ((at - LEFT) / (width - RIGHT - LEFT)) * (x.high - x.low)));
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("focus", () => show(now));
  plot.addEventListener("keydown", (event) => {
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    show(to);
    event.preventDefault();
  });
}

/* Bars from 0, numbered; `behind`: others, paler; `level`: a dashed line; `kind`: the class of bar i. */
function bars({ title, unit, of, values, behind = [], level: line = 0, kind = () => "s0", width = 560, height = 240 }) {
  const high = Math.max(line, ...values, ...behind), y = axis(0, high > 0 ? 1.04 * high : 1, 4, height - BOTTOM, TOP);
  const pitch = (width - LEFT - RIGHT) / (values.length || 1), every = 1 + Math.floor(((values.length - 1) * 560) / (16 * width));
  const thick = Math.min(0.8 * pitch, 44), middle = (i) => LEFT + pitch * (i + 0.5);
  const bar = (kind, i, v) => svg("rect", { class: kind, x: px(middle(i) - thick / 2), y: px(y.at(v)), width: px(thick), height: px(height - BOTTOM - y.at(v)) });
  const nodes = values.map((v, i) => svg("g", {}, svg("title", {}, `${of} ${i}: ${digits(v, 6)}`), behind[i] > v ? bar("behind", i, behind[i]) : null, bar(kind(i), i, v)));
  const labels = values.flatMap((_, i) => (i % every ? [] : [below(middle(i), height, "" + i)]));
  return figure(title, unit, drawing(title, width, height, ...grid(y, width), ...nodes, ...labels, line > 0 ? level("s1", line, y, width) : null));
}
