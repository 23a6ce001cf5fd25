"use strict";
// What is shown: the issues, page by page, the one in view, the progress; and the views.

const PAGE = 100; // issues requested at once

const NO_FILTER = Object.freeze({
  given: null, suggested: null, // names of classes
  state: null, // open, decided, conflict, or a choice
  low: null, high: null, // label_quality
  search: "", rows: null, sort: "quality", descending: false,
});

let store;
const view = {
  filter: NO_FILTER,
  total: 0,
  pages: new Map(), // number → issues, or the promise of them
  words: new Map(), // row → what was decided here since its page was loaded
  current: -1, // −1 while nothing is shown: keys decide nothing then
  done: [], // where decisions were made: undo shows it again
  finished: false, // nothing is left to decide, and no other issue was chosen since
};

function resulting({ decision, label, given, suggested }) {
  return { accept: suggested, keep: given, other: label }[decision] ?? "";
}

function named({ id, row }) {
  return id === String(row) ? `row ${row}` : id;
}

function showProgress() {
  const { value, max, text } = (store.audit.measure ? progressOfMeasuring : progressOfReview)(store.progress);
  byId("progress").max = Math.max(max, 1);
  byId("progress").value = value;
  byId("counts").textContent = text + (store.unsaved ? ` · ${store.unsaved} not saved yet` : "");
  drawMeasured(store.measured);
  spellings.draw();
}

function progressOfReview({ total, decided, ...choices }) {
  const parts = Object.entries(choices).filter(([, n]) => n).map(([name, n]) => `${name} ${n}`);
  if (!total) return { value: 0, max: 0, text: "nothing to decide" };
  return { value: decided, max: total, text: [`${decided} of ${total} decided`, ...parts].join(" · ") };
}

function issueAt(i) {
  const page = view.pages.get(Math.floor(i / PAGE));
  const issue = Array.isArray(page) ? page[i % PAGE] : undefined;
  return issue && view.words.has(issue.row) ? { ...issue, ...view.words.get(issue.row) } : issue;
}

function load(number) {
  if (!view.pages.has(number)) {
    const { pages, filter } = view;
    const loading = store.page(filter, number * PAGE).then((answer) => {
      pages.set(number, answer.issues);
      for (const far of pages.keys()) if (pages.size > 40 && Math.abs(far - number) > 10) pages.delete(far);
      if (view.pages === pages) view.total = answer.total;
    });
    pages.set(number, loading);
    loading.catch((error) => {
      pages.delete(number);
      say(`Issues could not be loaded: ${error.message}`, true);
    });
  }
  return view.pages.get(number);
}

async function show(i) {
  const going = (view.going = {}); // a later call overtakes an earlier one
  view.finished = false;
  if (!issueAt(i)) view.current = -1;
  for (let loaded = false; !loaded; ) {
    loaded = await load(Math.floor(i / PAGE)).then?.(() => true, () => pause(1000)) ?? true;
    if (view.going !== going) return;
  }
  view.current = view.total ? Math.min(Math.max(i, 0), view.total - 1) : -1;
  if (views.current === "grid") return grid.draw();
  scrollInto(byId("list"), view.total * HEIGHT, view.current * HEIGHT, HEIGHT);
  drawList();
  await drawCard();
  const ahead = Math.floor((view.current + PAGE / 2) / PAGE);
  if (ahead * PAGE < view.total) load(ahead);
}

async function showNextOpen() {
  const from = view.current;
  if (from < 0 || store.audit.measure) return;
  for (let i = from + 1; i < view.total && !store.audit.several; i++) { // where several review, the server knows who is where
    const issue = issueAt(i);
    if (!issue) break;
    if (!issue.decision) return show(i);
  }
  const going = (view.going = {});
  drawList();
  drawCard();
  view.current = -1;
  const next = await store.nextOpen(view.filter, from).catch((error) => { say(error.message, true); return from; });
  if (view.going !== going) return;
  const others = store.waitingFor ?? [];
  if (next === null) say(others.length ? `${others.join(" and ")} ${others.length > 1 ? "have" : "has"} what is left.` : finished());
  const shown = show(next ?? from);
  view.finished = next === null && !others.length;
  await shown;
}

async function reload() { // after decisions on many issues
  const at = Math.max(view.current, 0);
  Object.assign(view, { pages: new Map(), words: new Map() });
  showProgress();
  await show(at);
}

async function reloadPages() { // what is in view, anew: others may have decided, or a batch that was not loaded
  const { pages, filter } = view, near = Math.floor((views.current === "grid" ? grid.focus : Math.max(view.current, 0)) / PAGE);
  const before = store.unsaved ? new Map() : new Map(view.words); // what was decided meanwhile stays
  for (const number of pages.keys()) if (Math.abs(number - near) > 1) pages.delete(number);
  await Promise.all([...pages.keys()].map(async (number) => {
    const { issues } = await store.page(filter, number * PAGE).catch(() => ({}));
    if (!issues || view.pages !== pages) return;
    pages.set(number, issues);
    for (const { row } of issues) if (before.has(row) && view.words.get(row) === before.get(row)) view.words.delete(row);
  }));
  drawSoon();
  if (views.current === "list") drawCard();
}

// --- the views of one list of issues, one of them visible: overview, list (with the card), grid

const views = {
  parts: new Map(), // name → { show, hide, keys, chord }: what a view does beside being visible
  current: "list",

  get keys() {
    return this.parts.get(this.current)?.keys ?? {};
  },

  chord(event) { // what Ctrl with a key does, null: what the browser does
    return this.parts.get(this.current)?.chord?.(event) ?? null;
  },

  add(name, part) {
    this.parts.set(name, part);
  },

  show(name) {
    if (store.audit.measure || name === this.current) return;
    this.parts.get(this.current)?.hide?.();
    this.set(name);
    return this.parts.get(name)?.show?.();
  },

  set(name) {
    this.current = document.body.dataset.view = name;
    byId("overview").hidden = name !== "overview";
    byId("grid").hidden = name !== "grid";
    byId("list").hidden = byId("issue").hidden = name !== "list";
    for (const button of byId("views").children) button.setAttribute("aria-pressed", button.dataset.view === name);
  },

  start() { // an overview first, of a review that begins or has nothing to decide
    byId("views").hidden = Boolean(store.audit.measure);
    this.set("list");
    for (const button of byId("views").children) button.hidden = button.dataset.view !== "list" && !this.parts.has(button.dataset.view);
    if (this.parts.has("overview") && !store.progress.decided) return this.show("overview");
  },
};

byId("views").addEventListener("click", (event) => views.show(event.target.closest("button")?.dataset.view ?? views.current));
