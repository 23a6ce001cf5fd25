"use strict";
// Which issues are listed, and in which order.

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
