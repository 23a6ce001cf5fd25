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

// A label as it can be read: white space that one would not see is drawn, since labels may differ in it only.
const readable = (name) => name.replace(/^\s+|\s+$|\s{2,}|[^\S ]/g, (spaces) => "␣".repeat(spaces.length));

function say(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}
