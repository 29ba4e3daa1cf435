/* node dom.js PAGE [HASH [EVENT VALUE]]: runs the script of a page against as little of a DOM as it needs, sends an event to
 * whatever listens (pointermove with a place from 0 to 1, keydown with a key), and prints the elements that are there then.
 * Markup made of text is an error, as the page's policy has it. */
"use strict";
const fs = require("fs"), vm = require("vm");
const [file, hash = "", event, value] = process.argv.slice(2);
const html = fs.readFileSync(file, "utf8");
const VOID = new Set(["meta", "br", "input"]), escape = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

class Text {
  constructor(text) { this.text = text; }
  get outer() { return escape(this.text); }
  get textContent() { return this.text; }
}
class Element {
  constructor(name) { Object.assign(this, { name, attributes: new Map(), nodes: [], listeners: [], parent: null, style: { setProperty: (key, text) => this.setAttribute("style", `${key}:${text}`) } }); }
  get dataset() { return new Proxy({}, { get: (_, key) => this.attributes.get("data-" + key), set: (_, key, text) => (this.setAttribute("data-" + key, text), true) }); }
  get className() { return this.attributes.get("class") ?? ""; }
  set className(text) { this.setAttribute("class", text); }
  get hidden() { return this.attributes.has("hidden"); }
  set hidden(on) { if (on) this.setAttribute("hidden", ""); else this.removeAttribute("hidden"); }
  set tabIndex(n) { this.setAttribute("tabindex", n); }
  set innerHTML(text) { throw new Error("markup made of text"); }
  get children() { return this.nodes.filter((node) => node instanceof Element); }
  get textContent() { return this.nodes.map((node) => node.textContent).join(""); }
  set textContent(text) { this.replaceChildren(text); }
  setAttribute(key, text) { this.attributes.set(key, String(text)); }
  removeAttribute(key) { this.attributes.delete(key); }
  addEventListener(kind, listener) { this.listeners.push([kind, listener]); }
  append(...nodes) {
    for (const node of nodes) {
      if (node instanceof Element && node.name === "#fragment") { this.append(...node.nodes); continue; }
      const child = node instanceof Element || node instanceof Text ? node : new Text(String(node));
      child.parent = this;
      this.nodes.push(child);
    }
  }
  replaceChildren(...nodes) { this.nodes = []; this.append(...nodes); }
  contains(node) { return node === this || this.children.some((child) => child.contains(node)); }
  closest() { return null; }
  focus() {}
  scrollIntoView() {}
  getBoundingClientRect() { return { left: 100, right: 660, top: 0, bottom: 240, width: 560, height: 240 }; }
  getClientRects() { return [this.getBoundingClientRect()]; }
  all() { return [this, ...this.children.flatMap((child) => child.all())]; }
  get outer() {
    const attributes = [...this.attributes].map(([key, text]) => (text === "" ? ` ${key}` : ` ${key}="${escape(text)}"`)).join("");
    return `<${this.name}${attributes}>${this.nodes.map((node) => node.outer).join("")}</${this.name}>`;
  }
}

/* The page as it is before its script runs; scripts and styles are kept as text. */
const root = new Element("#root"), scripts = [];
let at = root;
for (const [, raw, rest, tag, attributes] of html.matchAll(/<(script|style|title)([^]*?)<\/\1>|<(\/?[a-z][a-z0-9]*)([^>]*)>/g)) {
  if (raw === "script") scripts.push(rest.replace(/^[^>]*>/, ""));
  else if (tag?.startsWith("/")) at = at.parent;
  else if (tag) {
    const node = new Element(tag);
    for (const [, key, quoted, plain] of attributes.matchAll(/([a-z-]+)(?:="([^"]*)"|=([^\s>]+))?/g)) node.setAttribute(key, quoted ?? plain ?? "");
    at.append(node);
    if (!VOID.has(tag)) at = node;
  }
}
if (scripts.length !== 2) throw new Error(`${scripts.length} scripts`);
const [data, script] = scripts, page = { textContent: data };
const find = (id) => (id === "data" ? page : root.all().find((node) => node.attributes.get("id") === id));
const document = { getElementById: find, createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name),
  createDocumentFragment: () => new Element("#fragment"), documentElement: root.all().find((node) => node.name === "html"), addEventListener() {}, activeElement: null };
const world = { document, addEventListener() {}, location: { hash, pathname: file }, history: { replaceState() {} }, URLSearchParams, innerHeight: 800, scrollX: 0, scrollY: 0 };
vm.runInNewContext(script, world, { filename: file });
if (event) {
  const sent = { clientX: 100 + 560 * value, key: value, preventDefault() {}, target: { value, closest: () => null } };
  for (const node of root.all()) for (const [kind, listener] of node.listeners) if (kind === event) listener(sent);
}
process.stdout.write(root.nodes.map((node) => node.outer).join("") + "\n");
