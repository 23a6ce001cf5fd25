"use strict";
// The grid: many rows at once, selected by mouse or keyboard and decided together; a few nodes, whatever its length.

const CELLS = { pictures: [148, 196], cards: [236, 124] }; // least width, height

const grid = {
  focus: 0, // the place in the list that keys act on
  anchor: 0, // where a range begins
  base: new Set(), // what was selected before the range
  selected: new Set(), // places in the list

  show() {
    this.focus = this.anchor = Math.max(view.current, 0);
    this.draw();
    this.reveal();
    byId("cells").focus();
  },

  hide() {
    view.current = view.total ? this.focus : -1;
  },

  clear() { // another list: places mean other rows
    Object.assign(this, { focus: 0, anchor: 0, base: new Set(), selected: new Set() });
    byId("cells").scrollTop = 0;
  },

  get geometry() {
    const box = byId("cells"), [least, height] = CELLS[store.audit.has_pictures ? "pictures" : "cards"];
    const columns = Math.max(1, Math.floor(box.clientWidth / least)), full = Math.ceil(view.total / columns) * height;
    return { ...scrolled(box, full), box, columns, full, width: 100 / columns, size: height };
  },

  reveal() { // scroll to what is in focus
    const { box, columns, full, size } = this.geometry;
    scrollInto(box, full, Math.floor(this.focus / columns) * size, size);
    this.draw();
  },

  draw() {
    const { box, columns, width, size, height, seen, top } = this.geometry, cells = [];
    byId("cells-space").style.height = `${height}px`;
    const first = Math.max(0, Math.floor(top / size) - 1) * columns, last = Math.min(view.total, (Math.ceil((top + seen) / size) + 1) * columns);
    for (let i = first; i < last; i++) {
      const issue = issueAt(i), cell = drawCell(i, issue);
      if (!issue) load(Math.floor(i / PAGE))?.then?.(drawSoon, () => {});
      Object.assign(cell.style, {
        left: `${(i % columns) * width}%`, width: `${width}%`, height: `${size}px`, top: `${box.scrollTop + Math.floor(i / columns) * size - top}px`,
      });
      cells.push(cell);
    }
    byId("cells-space").replaceChildren(...cells);
    box.setAttribute("aria-activedescendant", view.total ? `cell-${this.focus}` : "");
    byId("cells-none").hidden = view.total > 0;
    bulk.draw();
  },

  go(to, extend) {
    if (!view.total) return;
    const focus = Math.min(Math.max(to, 0), view.total - 1);
    this.focus = focus;
    if (extend) this.extend();
    else this.begin(focus);
    this.reveal();
  },

  begin(at) {
    Object.assign(this, { anchor: at, base: new Set(this.selected) });
  },

  extend() { // from where the range began to the focus
    const [from, to] = [Math.min(this.anchor, this.focus), Math.max(this.anchor, this.focus)];
    this.selected = new Set(this.base);
    for (let i = from; i <= to; i++) this.selected.add(i);
  },

  toggle(at = this.focus) {
    if (!view.total) return;
    if (!this.selected.delete(at)) this.selected.add(at);
    this.focus = at;
    this.begin(at);
    this.draw();
  },

  select(places) {
    this.selected = new Set(places);
    this.begin(this.focus);
    this.draw();
  },

  all() {
    this.select(Array(view.total).keys());
  },

  none() {
    this.select([]);
  },

  chord(event) { // Ctrl with a key
    return event.key.toLowerCase() === "a" ? () => this.all() : null;
  },
};

function drawCell(i, issue) {
  const cell = make("div", {
    class: i === grid.focus ? "cell focus" : "cell", role: "option", id: `cell-${i}`, "data-at": i,
    "aria-selected": grid.selected.has(i), "aria-posinset": i + 1, "aria-setsize": view.total,
  });
  const box = make("div", { class: "cell-box", title: issue && named(issue) });
  cell.append(box);
  if (!issue) return box.append("…"), cell;
  const picture = store.audit.has_pictures ? store.picture(issue.row, 192) : null;
  box.append(picture ? make("img", { src: picture, alt: named(issue), loading: "lazy" }) : make("div", { class: "cell-words" }, ...cellWords(issue)));
  box.append(make("div", { class: "cell-labels" },
    make("span", null, `${readable(issue.given)} → ${readable(issue.suggested)}`),
    issue.decision ? done(issue) : make("span", { class: "faint" }, likely(issue.label_quality))));
  return cell;
}

function cellWords(issue) {
  const { text, fields } = issue.snippet ?? {};
  if (fields?.length) return fields.map(([name, value]) => make("div", null, make("span", { class: "faint" }, `${name} `), value));
  return [text || named(issue)];
}

const steps = (lines) => lines * grid.geometry.columns, visible = () => Math.max(1, Math.floor(grid.geometry.seen / grid.geometry.size));
const going = (to) => (event) => grid.go(to(), event.shiftKey);
views.add("grid", {
  show: () => grid.show(), hide: () => grid.hide(), chord: (event) => grid.chord(event),
  keys: {
    ArrowLeft: going(() => grid.focus - 1), ArrowRight: going(() => grid.focus + 1), j: going(() => grid.focus + 1),
    ArrowUp: going(() => grid.focus - steps(1)), ArrowDown: going(() => grid.focus + steps(1)),
    PageUp: going(() => grid.focus - steps(visible())), PageDown: going(() => grid.focus + steps(visible())),
    Home: going(() => 0), End: going(() => view.total - 1),
    " ": () => grid.toggle(), Enter: () => views.show("list"),
    Escape: () => (grid.selected.size ? grid.none() : KEYS.Escape()),
    a: () => bulk.decide("accept"), k: () => bulk.decide("keep"), o: () => bulk.other(), s: () => bulk.decide("skip"),
    x: () => bulk.decide("exclude"), c: () => bulk.decide("unclear"),
  },
});
byId("cells").addEventListener("scroll", drawSoon, { passive: true });
new ResizeObserver(drawSoon).observe(byId("cells"));
byId("cells").addEventListener("click", (event) => {
  const at = Number(event.target.closest(".cell")?.dataset.at ?? NaN);
  if (Number.isNaN(at)) return;
  if (event.shiftKey) grid.go(at, true);
  else grid.toggle(at);
});
byId("cells").addEventListener("dblclick", (event) => {
  if (event.target.closest(".cell")) views.show("list");
});

// --- one decision on many rows: a batch, which one undo takes back

const CAREFUL = 50; // rows from which on a decision is confirmed
const QUESTIONS = {
  accept: (n) => `Accept ${counted(n, "suggestion")}?`, keep: (n) => `Keep ${counted(n, "given label")}?`,
  skip: (n) => `Skip ${counted(n, "row")}?`, exclude: (n) => `Exclude ${counted(n, "row")} from the dataset?`,
  unclear: (n) => `Mark ${counted(n, "row")} as unclear?`, other: (n, label) => `Label ${counted(n, "row")} as ${readable(label)}?`,
};

const bulk = {
  get places() { // in the order of the list; without a selection, what is in focus
    return grid.selected.size ? [...grid.selected].sort((i, j) => i - j) : view.total ? [grid.focus] : [];
  },

  draw() {
    const n = grid.selected.size;
    byId("selected").textContent = n ? `${whole(n)} of ${whole(view.total)} selected` : "Nothing selected: keys act on the row in focus";
    byId("select-none").disabled = !n;
    byId("select-all").disabled = !view.total;
    for (const button of byId("bulk").querySelectorAll("[data-many]")) button.disabled = !view.total && button.dataset.many !== "undo";
  },

  other() {
    const places = this.places;
    if (!places.length) return;
    chooser.open(`The label of ${counted(places.length, "row")}`, classItems(allClasses()), (label) => this.decide("other", label, places));
  },

  async decide(decision, label = null, places = this.places) {
    if (!places.length) return;
    const issues = places.map(issueAt), decided = issues.filter((issue) => issue?.decision).length, isLoaded = issues.every(Boolean);
    const isOne = places.length === 1;
    const answer = places.length <= CAREFUL && (isOne || !decided) ? { yes: true, also: isOne }
      : await confirmMany(QUESTIONS[decision](places.length, label), isLoaded ? decided : null);
    if (answer.yes) await this.send({ decision, label, places, issues, also: answer.also });
  },

  async send({ decision, label, places, issues, also }) {
    const { filter } = view, changed = issues.filter((issue) => issue && (also || !issue.decision));
    for (const { row } of changed) view.words.set(row, { decision, label });
    say("Saving …");
    grid.none();
    const which = issues.every(Boolean) ? { rows: issues.map(({ row }) => row) } : { filter, ranges: toRanges(places) };
    try {
      const { saved } = await store.decideMany({ decision, also_decided: also, ...which, ...(decision === "other" && { label }) });
      if (saved && places.length === 1) view.done.push({ row: issues[0].row, at: places[0], filter });
      const left = places.length - saved;
      say(`${counted(saved, "decision")} saved. Press u to take ${saved === 1 ? "it" : "all of them"} back.` + (left ? ` ${counted(left, "row")} stayed: decided already, or someone is at them.` : ""));
    } catch (error) {
      for (const { row } of changed) view.words.delete(row);
      say(`Not saved: ${error.message}`, true);
    }
    showProgress();
    await reloadPages();
  },
};

function toRanges(places) { // sorted places as [first, behind the last]
  const ranges = [];
  for (const at of places) {
    if (ranges.at(-1)?.[1] === at) ranges.at(-1)[1]++;
    else ranges.push([at, at + 1]);
  }
  return ranges;
}

let asked = new AbortController(); // of the last question

function confirmMany(question, decided) { // decided: how many already are, null: not known
  const dialog = byId("confirm"), also = byId("confirm-also");
  asked.abort();
  asked = new AbortController();
  byId("confirm-question").textContent = question;
  byId("confirm-decided").hidden = decided === 0;
  byId("confirm-also-text").textContent = decided === null ? "also rows that have a decision" : `also ${counted(decided, "row")} with a decision`;
  also.checked = view.filter.state !== null && view.filter.state !== "open"; // whoever lists decided rows wants to change them
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    // The end of the question before may be told when this one is open already.
    if (!dialog.open) resolve({ yes: dialog.returnValue === "yes", also: also.checked });
  }, { signal: asked.signal }));
}

byId("bulk").addEventListener("click", (event) => {
  const choice = event.target.closest("button")?.dataset.many;
  if (choice === "undo") undo();
  else if (choice === "other") bulk.other();
  else if (choice) bulk.decide(choice);
});
byId("select-all").addEventListener("click", () => grid.all());
byId("select-none").addEventListener("click", () => grid.none());
