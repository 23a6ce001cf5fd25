"use strict";
// Which issues are listed, and in which order.

const isFiltered = () => filterWords() !== "";

function filterWords({ given, suggested, state, low, high, search, rows } = view.filter) { // "" for all issues
  const percent = (quality) => `${Number((100 * quality).toPrecision(3))} %`;
  const pair = given !== null || suggested !== null ? `only ${given ?? "any label"} → ${suggested ?? "any label"}` : "";
  const range = low !== null || high !== null ? `quality ${percent(low ?? 0)} to ${percent(high ?? 1)}` : "";
  return [pair, state ?? "", range, search ? `“${search}”` : "", rows ? `${rows.length} chosen rows` : ""].filter(Boolean).join(" · ");
}

async function setFilter(partial) { // only what is named is filtered by
  return useFilter({ ...NO_FILTER, ...partial });
}

async function useFilter(filter, at = 0) { // a whole filter: a store that kept its rows finds them again
  Object.assign(view, { filter, pages: new Map(), current: -1 });
  byId("filtered").textContent = filterWords();
  byId("clear").hidden = !isFiltered();
  byId("list").scrollTop = 0;
  await show(at);
}
