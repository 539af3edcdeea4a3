// What every other part uses: finding and making elements, what is kept, markup of the server.
const root = document.documentElement;
const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const on = (target, kind, act) => target.addEventListener(kind, act);
const make = (tag, text, attributes = {}) => {
  const found = document.createElement(tag);
  if (text) found.textContent = text;
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  return found;
};
const stored = (name, value) => {
  try {
    if (value === undefined) return localStorage.getItem("commandbus." + name);
    localStorage.setItem("commandbus." + name, value);
  } catch { /* a browser that keeps nothing */ }
  return null;
};
// Several deployments may share one host: what is kept of one is under its own place.
const RECENT = "recent " + new URL(document.currentScript.src).pathname.split("assets/")[0];
const isField = (element) => element?.matches?.("input:not([type=checkbox],[type=radio]), textarea, select, [contenteditable]");

// -- markup of the server: the one place that makes elements of it
const policy = window.trustedTypes
  ? trustedTypes.createPolicy("console", { createHTML: (markup) => markup })
  : { createHTML: (markup) => markup };
const parsed = (markup) => {
  const holder = document.createElement("template");
  holder.innerHTML = policy.createHTML(markup);
  return holder.content;
};
find("[data-focus]")?.focus();
root.classList.add("js");
