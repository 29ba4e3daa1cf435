"use strict";
/* Tables copy as CSV. A page from disk may not reach the clipboard; then its text is selected for copying by hand. */
(() => {
  const cell = (text) => (/[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text);
  const csv = (table) =>
    [...table.rows].map((row) => [...row.cells].map((c) => cell(c.textContent.trim())).join(",")).join("\n") + "\n";
  const byHand = (text) => {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return byHand(text);
    }
  };
  for (const section of document.querySelectorAll(".table")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy as CSV";
    button.addEventListener("click", async () => {
      button.textContent = (await copy(csv(section.querySelector("table")))) ? "copied" : "could not copy";
      setTimeout(() => (button.textContent = "copy as CSV"), 1500);
    });
    section.querySelector("header").append(button);
  }
})();
