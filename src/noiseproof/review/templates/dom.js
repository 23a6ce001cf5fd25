"use strict";
// Small helpers for the elements of the page.

const byId = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(() => resolve(false), milliseconds));

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null)); // strings become text, never markup
  return node;
}

const makeButton = (content, click, attributes) => make("button", { type: "button", click, ...attributes }, ...[content].flat());

function makeTable(attributes, head, lines) { // that scrolls by itself where it is too wide; head: cells, or none
  const top = head.length ? make("thead", null, make("tr", null, ...head)) : null;
  return make("div", { class: "wide" }, make("table", attributes, top, make("tbody", null, ...lines)));
}

const makeHead = (titles, isNumber = () => false) => titles.map((title, i) => make("th", { scope: "col", class: isNumber(i) ? "number" : null }, title));

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }; // right, down

// A label as it can be read: white space that one would not see is drawn, since labels may differ in it only.
const readable = (name) => name.replace(/^\s+|\s+$|\s{2,}|[^\S ]/g, (spaces) => "␣".repeat(spaces.length));

function say(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}
