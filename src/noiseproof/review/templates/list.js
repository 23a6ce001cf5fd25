"use strict";
// The list: a few nodes, whatever its length; and its filter.

const HEIGHT = 52, TALLEST = 8e6; // pixels of an item; of a list that browsers can show
const SIGNS = { accept: "✓", keep: "=", other: "→", skip: "?", exclude: "✕", unclear: "≈" };

function scrolled(box, full) { // which part of a list is seen, whose full height browsers may be unable to show
  const height = Math.min(full, TALLEST), seen = box.clientHeight || 1;
  const stretch = height > seen ? (full - seen) / (height - seen) : 1; // pixels of the true list for one of the bar
  return { height, seen, stretch, top: box.scrollTop * stretch };
}

function scrollInto(box, full, at, size) { // so that what is at these pixels of the true list is seen
  box.firstElementChild.style.height = `${scrolled(box, full).height}px`;
  const { seen, stretch, top } = scrolled(box, full);
  if (at < top) box.scrollTop = at / stretch;
  else if (at + size > top + seen) box.scrollTop = (at + size - seen) / stretch;
}

function drawList() {
  if (store?.audit.measure) return; // it would be an invitation to choose, and chosen rows are no random sample
  const list = byId("list"), { seen, top } = scrolled(list, view.total * HEIGHT);
  const first = Math.max(0, Math.floor(top / HEIGHT) - 2), last = Math.min(view.total, Math.ceil((top + seen) / HEIGHT) + 2);
  const items = [];
  for (let i = first; i < last; i++) {
    const issue = issueAt(i), selected = i === view.current;
    if (!issue) load(Math.floor(i / PAGE))?.then?.(drawSoon, () => {});
    const item = make("div", {
      class: "item", role: "option", id: `item-${i}`, "data-at": i, "aria-selected": selected, "aria-posinset": i + 1,
      "aria-setsize": view.total,
    });
    item.style.top = `${list.scrollTop + i * HEIGHT - top}px`;
    const picture = issue && store.audit.has_pictures ? store.picture(issue.row, 96) : null;
    if (picture) item.append(make("img", { src: picture, alt: "", loading: "lazy" }));
    item.append(make("span", { class: "words" },
      make("span", null, issue ? `${readable(issue.given)} → ${readable(issue.suggested)}` : "…"),
      make("span", { class: "faint" }, issue ? snippetWords(issue) : ""),
    ));
    if (issue?.note) item.append(make("span", { class: "noted", title: issue.note, role: "img", "aria-label": "has a note" }, "✎"));
    if (issue) item.title = named(issue);
    const quality = issue && make("span", { class: "quality", title: `The given label is right: ${likely(issue.label_quality)}` }, likely(issue.label_quality));
    item.append(...[peopleMark(issue), issue?.decision ? done(issue) : quality].filter(Boolean));
    items.push(item);
  }
  byId("space").replaceChildren(...items);
  list.setAttribute("aria-activedescendant", view.current < 0 ? "" : `item-${view.current}`);
}

function snippetWords(issue) { // a few words of the row; its name where it has none
  return rowWords(issue.snippet ?? {}) || named(issue);
}

const rowWords = ({ text, fields }) => text || (fields ?? []).map(([name, cell]) => `${name} ${cell}`).join(" · ");

function done(issue) {
  const word = issue.decision === "other" ? `${SIGNS.other} ${readable(issue.label)}` : `${SIGNS[issue.decision]} ${issue.decision}`;
  return make("span", { class: `done ${issue.decision === "skip" ? "skip-word" : issue.decision}` }, word);
}

let drawing = false;
function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; views.current === "grid" ? grid.draw() : drawList(); });
}

// --- which issues are listed, and in which order

const isFiltered = () => filterWords() !== "";

function filterWords({ given, suggested, state, low, high, search, rows } = view.filter) { // "" for all issues
  const percent = (quality) => `${Number((100 * quality).toPrecision(3))} %`;
  const label = (name) => (name === null ? "any label" : readable(name));
  const pair = given !== null || suggested !== null ? `only ${label(given)} → ${label(suggested)}` : "";
  const range = low !== null || high !== null ? `right with ${percent(low ?? 0)} to ${percent(high ?? 1)}` : "";
  const searched = search ? `“${search}” in ${store.searched}` : "";
  return [pair, state ?? "", range, searched, rows ? `${rows.length} chosen rows` : ""].filter(Boolean).join(" · ");
}

async function setFilter(partial) { // only what is named is filtered by
  return useFilter({ ...NO_FILTER, ...partial });
}

async function useFilter(filter, at = 0) { // a whole filter: a store that kept its rows finds them again
  Object.assign(view, { filter, pages: new Map(), current: -1 });
  byId("filtered").textContent = filterWords();
  byId("clear").hidden = !isFiltered();
  byId("list").scrollTop = 0;
  filterBar.draw();
  grid.clear();
  await show(at);
}

const filterBar = {
  start() {
    byId("filters").hidden = false;
    byId("search").placeholder = `Search ${store.searched} ( / )`;
    byId("search").setAttribute("aria-label", `Search ${store.searched}`);
    this.draw();
  },

  draw() {
    const { state, low, high, search, sort, descending } = view.filter, percent = (quality) => (quality === null ? "" : Number((100 * quality).toPrecision(6)));
    const values = { search, "only-state": state ?? "", low: percent(low), high: percent(high), sort };
    for (const [id, value] of Object.entries(values)) if (byId(id) !== document.activeElement) byId(id).value = value;
    byId("descending").setAttribute("aria-pressed", descending);
    byId("descending").textContent = descending ? "↓" : "↑";
  },

  read() {
    clearTimeout(this.waiting);
    const quality = (id) => (byId(id).value === "" || !byId(id).validity.valid ? null : Number(byId(id).value) / 100);
    const change = {
      search: byId("search").value.trim(), state: byId("only-state").value || null, low: quality("low"), high: quality("high"),
      sort: byId("sort").value, descending: byId("descending").getAttribute("aria-pressed") === "true",
    };
    if (Object.entries(change).some(([name, value]) => view.filter[name] !== value)) return setFilter({ ...view.filter, ...change });
  },

  readSoon() { // while one types
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.read(), 250);
  },

  async focus() {
    if (views.current === "overview") await views.show("list");
    byId("search").select();
  },

  leave(event) { // Esc leaves a field, Enter takes what it has
    if (!["Escape", "Enter"].includes(event.key) || event.isComposing) return;
    event.preventDefault();
    if (event.key === "Enter") this.read();
    event.target.blur();
  },
};

byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("change", () => filterBar.read());
byId("search").addEventListener("input", () => filterBar.readSoon());
byId("descending").addEventListener("click", (event) => {
  event.target.setAttribute("aria-pressed", !view.filter.descending);
  filterBar.read();
});
byId("more").addEventListener("click", (event) => event.target.setAttribute("aria-expanded", event.target.getAttribute("aria-expanded") === "false"));
