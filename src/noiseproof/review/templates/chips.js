"use strict";
// The labels of a row with several of them: a chip each, on or off; suggested additions and removals are marked.

const NO_LABEL = "(none)";

const chips = {
  row: null, on: new Set(), // the row in view, and its labels as they are set here
  parts(word) {
    return word === NO_LABEL ? [] : word.split(store.audit.multi_label.separator).map((part) => part.trim()).filter(Boolean);
  },
  draw(issue) {
    if (!store.audit.multi_label || store.audit.measure) return [];
    const [given, suggested] = [issue.given, issue.suggested].map((word) => new Set(this.parts(word)));
    const before = issue.decision ? resulting(issue) ?? issue.given : issue.given;
    if (this.row !== issue.row) Object.assign(this, { row: issue.row, on: new Set(this.parts(before)) });
    const mark = (name) => (given.has(name) === suggested.has(name) ? null : suggested.has(name) ? "add" : "remove");
    const buttons = store.audit.multi_label.labels.map((name) => makeButton(readable(name), ({ target }) => this.toggle(target, name), {
      class: "chip", "data-label": name, "aria-pressed": this.on.has(name), "data-mark": mark(name),
      title: mark(name) && `Suggested: ${mark(name)} this label.`,
    }));
    const save = makeButton("Save these labels", () => this.save(issue), { id: "chips-save" });
    return [make("div", { id: "chips", role: "group", "aria-label": "Labels of this row" }, ...buttons, save)];
  },
  toggle(chip, name) {
    if (!this.on.delete(name)) this.on.add(name);
    chip.setAttribute("aria-pressed", this.on.has(name));
  },
  word(given) { // as the cells spell it: the given labels in their order, then the others
    const { labels, joiner } = store.audit.multi_label, kept = this.parts(given).filter((name) => this.on.has(name));
    return [...kept, ...labels.filter((name) => this.on.has(name) && !kept.includes(name))].join(joiner) || NO_LABEL;
  },
  save(issue) {
    const same = (word) => this.parts(word).length === this.on.size && this.parts(word).every((name) => this.on.has(name));
    this.row = null;
    if (same(issue.suggested)) return decide("accept");
    if (same(issue.given)) return decide("keep");
    const word = this.word(issue.given);
    return decide("other", word, !allClasses().includes(word));
  },
};
