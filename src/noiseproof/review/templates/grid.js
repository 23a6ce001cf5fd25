"use strict";
// The grid: many rows at once, selected by mouse or keyboard; a few nodes, whatever its length.

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
