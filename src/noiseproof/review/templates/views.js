"use strict";
// The views of one list of issues, one of them visible: overview, list (with the card), grid.

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
