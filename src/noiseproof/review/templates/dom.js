"use strict";
// Small helpers for the elements of the page.

const byId = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(() => resolve(false), milliseconds));

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null)); // strings become text, never markup
  return node;
}

function say(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}
