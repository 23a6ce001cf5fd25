"use strict";
// What a row is (columns that matter first, marked words, zoom) and what to compare it with, requested after the row.

const FIRST = 12; // columns that are not folded, where none is known to matter
const PERCENTILES = [0, 5, 10, 25, 50, 75, 90, 95, 100]; // as the server sends them
const GROUPS = {
  duplicates: () => "Near-duplicates",
  nearest_given: ({ given }) => `Nearest of ${readable(given)}`,
  nearest_suggested: ({ suggested }) => `Nearest of ${readable(suggested)}`,
  typical_given: ({ given }) => `Typical of ${readable(given)}`,
  typical_suggested: ({ suggested }) => `Typical of ${readable(suggested)}`,
};

const context = {
  columns: new Map(), // pair of classes → the columns that separate it, so that the next row of the pair has them at once

  of(issue) {
    const { classes } = store.audit, pair = `${classes.indexOf(issue.given)},${classes.indexOf(issue.suggested)}`;
    return { pair, columns: this.columns.get(pair) ?? store.data?.columns?.[pair] ?? [] };
  },

  async show(row, issue, content) {
    if (!store.context || store.audit.measure?.blind) return;
    const part = make("section", { id: "context", "aria-label": "To compare with", "aria-live": "off" });
    row.append(part);
    await pause(80); // whoever leafs on quickly compares nothing
    for (let waiting = true, late = false; waiting && row.isConnected; ) {
      const answer = await store.context(issue.row).catch((error) => ({ note: error.message }));
      if (!row.isConnected) return;
      this.draw(row, part, issue, content, answer);
      if ((waiting = answer.pending)) late = !(await pause(400));
      else if (late) reloadPages(); // snippets with the columns that matter
    }
  },

  draw(row, part, issue, content, { columns, words, votes, groups, note, pending }) {
    if (columns?.length) this.columns.set(this.of(issue).pair, columns);
    const names = new Set((votes ?? []).map(([name]) => name));
    const fields = content.fields?.filter(([name]) => !names.has(name));
    if (columns?.length || names.size) row.querySelector(".fields")?.replaceWith(drawFields(issue, fields));
    if (Object.keys(words ?? {}).length) row.querySelector(".text")?.replaceWith(drawText(issue, content.text, words));
    part.replaceChildren(
      ...drawVotes(votes ?? []), ...Object.entries(groups ?? {}).map(([name, rows]) => drawGroup(issue, GROUPS[name](issue), rows)),
      ...[note, pending ? "Looking for rows to compare with …" : null].filter(Boolean).map((text) => make("p", { class: "faint" }, text)),
    );
    row.classList.toggle("compared", part.children.length > 0);
  },
};

// --- columns

const isNothing = (cell) => cell === "" || Number(cell) === 0;
const numberOf = (cell) => (cell.trim() === "" ? NaN : Number(cell.replace(",", ".")));

function drawFields(issue, fields) { // the columns that separate the two labels, then those with a value, then zeros and gaps
  const columns = "given" in issue ? context.of(issue).columns : [], cells = new Map(fields);
  const first = columns.filter(({ name }) => cells.has(name));
  const rest = fields.filter(([name]) => !first.some((column) => column.name === name));
  const values = rest.filter(([, cell]) => !isNothing(cell)), nothing = rest.filter(([, cell]) => isNothing(cell));
  const parts = [];
  if (first.length) parts.push(drawStrips(issue, first, cells));
  const isShort = !first.length && fields.length <= FIRST;
  const shown = isShort ? fields : first.length ? [] : values.splice(0, FIRST);
  if (shown.length) parts.push(drawTable(shown));
  const folded = isShort ? [] : [...values, ...nothing];
  if (folded.length) {
    const count = `${folded.length} ${parts.length ? "more " : ""}column${folded.length === 1 ? "" : "s"}`;
    const zeros = nothing.length ? `, ${nothing.length} zero or empty` : "";
    parts.push(make("details", parts.length ? null : { open: "" }, make("summary", null, count + zeros), drawTable(folded)));
  }
  return make("div", { class: "fields" }, ...parts);
}

function drawTable(fields) {
  const lines = fields.map(([name, value]) => make("tr", null, make("th", { scope: "row" }, name), make("td", null, value)));
  return makeTable(null, [], lines);
}

function drawStrips(issue, columns, cells) {
  const lines = columns.map((column) => make("tr", null,
    make("th", { scope: "row" }, column.name), make("td", null, cells.get(column.name)),
    make("td", null, column.words ? drawShares(issue, column, cells.get(column.name)) : drawStrip(issue, column, cells.get(column.name)))));
  const key = (side) => make("span", { class: `key ${side}` }, readable(issue[side]));
  return makeTable({ class: "strips" }, [...makeHead(["column", "value"]), make("th", { scope: "col" }, key("given"), key("suggested"))], lines);
}

function below(value, percentiles) { // the share of a class, in percent, whose values lie below
  let last = -1;
  percentiles.forEach((at, i) => { if (at <= value) last = i; });
  if (last < 0) return 0;
  if (last === PERCENTILES.length - 1) return 100;
  const [low, high] = [percentiles[last], percentiles[last + 1]];
  return PERCENTILES[last] + ((PERCENTILES[last + 1] - PERCENTILES[last]) * (value - low)) / (high - low);
}

function drawStrip(issue, column, cell) {
  const value = numberOf(cell), sides = ["given", "suggested"];
  const lows = sides.map((side) => column[side][1]), highs = sides.map((side) => column[side][7]);
  let [low, high] = [Math.min(...lows), Math.max(...highs)];
  const width = high - low || 1;
  if (!Number.isNaN(value)) [low, high] = [Math.max(Math.min(low, value), low - width), Math.min(Math.max(high, value), high + width)];
  const at = (x) => Math.min(Math.max((100 * (x - low)) / (high - low || 1), 0), 100);
  const bar = (name, from, to) => {
    const node = make("i", { class: name });
    node.style.left = `${at(from)}%`;
    node.style.width = `${Math.max(at(to) - at(from), 0)}%`;
    return node;
  };
  const classes = sides.map((side) => {
    const p = column[side];
    return make("div", { class: side }, bar("range", p[1], p[7]), bar("half", p[3], p[5]), bar("middle", p[4], p[4]));
  });
  const text = Number.isNaN(value) ? "no value" : sides.map((side) => `above ${Math.round(below(value, column[side]))} % of ${readable(issue[side])}`).join(", ");
  return make("div", { class: "strip", role: "img", "aria-label": `${column.name}: ${text}`, title: text },
    ...classes, Number.isNaN(value) ? null : bar("value", value, value));
}

function drawShares(issue, column, cell) {
  const found = column.words.find(([word]) => word === cell.trim()), sides = ["given", "suggested"];
  const text = found
    ? sides.map((side, i) => `${Math.round(100 * found[i + 1])} % of ${readable(issue[side])}`).join(", ")
    : `rare in ${readable(issue.given)} and ${readable(issue.suggested)}`;
  const bars = sides.map((side, i) => {
    const bar = make("i", { class: "half" });
    bar.style.width = `${100 * (found?.[i + 1] ?? 0)}%`;
    return make("div", { class: side }, bar);
  });
  return make("div", { class: "strip shares", role: "img", "aria-label": `${column.name}: ${text}`, title: text }, ...bars);
}

// --- words

function drawText(issue, text, words = {}) { // words: log P(word | suggested) − log P(word | given)
  const parts = [], ratios = new Map(Object.entries(words));
  let done = 0;
  for (const match of ratios.size ? text.matchAll(/[\p{L}\p{N}_]+/gu) : []) {
    const ratio = ratios.get(match[0].toLowerCase());
    if (ratio === undefined) continue;
    const side = ratio > 0 ? "suggested" : "given", times = Math.exp(Math.abs(ratio));
    const title = `${times < 10 ? times.toFixed(1) : Math.round(times)} times as frequent in other texts of ${readable(issue[side])}`;
    parts.push(text.slice(done, match.index), make("mark", { class: side, title }, match[0]));
    done = match.index + match[0].length;
  }
  const marked = new Set(parts.filter((part) => part.className).map((part) => part.className));
  const keys = ["given", "suggested"].filter((side) => marked.has(side)).map((side) => make("mark", { class: side }, readable(issue[side])));
  const legend = keys.length ? make("span", { class: "faint legend" }, "More frequent in ", ...keys.flatMap((key, i) => (i ? [" and in ", key] : [key]))) : null;
  return make("div", { class: "text" }, make("p", null, ...parts, text.slice(done)), legend);
}

// --- other rows, votes

function drawVotes(votes) {
  const voters = new Map();
  for (const [name, label] of votes) if (label.trim()) voters.set(label, [...(voters.get(label) ?? []), name]);
  const lines = [...voters].sort((one, two) => two[1].length - one[1].length)
    .map(([label, names]) => make("li", null, make("strong", null, readable(label)), ` ${names.length}: ${names.join(", ")}`));
  return lines.length === 0 ? [] : [make("h3", null, "Votes"), make("ul", { class: "votes" }, ...lines)];
}

function drawGroup(issue, title, rows) {
  const items = rows.map((other) => make("li", null, drawOther(issue, other)));
  return make("div", { class: "group" }, make("h3", null, title), make("ul", { class: "others" }, ...items));
}

function drawOther(issue, other) {
  return makeButton([
    other.has_image ? make("img", { src: store.picture(other.row, 96), alt: "", loading: "lazy" }) : null,
    make("span", { class: "faint" }, make("strong", null, readable(other.label)), ` ${named(other)}`, other.is_issue ? make("span", { class: "suspect" }, " suspect") : null),
    other.has_image ? null : make("span", { class: "snippet" }, rowWords(other)),
  ], () => openOther(issue, other), { class: "other-row", title: `Open ${named(other)}` });
}

async function openOther({ given, suggested }, other) { // its values lie among those of the two labels of the issue
  const body = byId("other-row");
  byId("other-title").textContent = `${readable(other.label)}: ${named(other)}`;
  body.replaceChildren("Loading …");
  byId("other").showModal();
  const content = await store.content(other.row).catch((error) => ({ note: error.message }));
  body.replaceChildren(...drawContent({ row: other.row, given, suggested, opened: other.label }, content));
}

// --- zoom

function drawPicture(issue, image) {
  const label = issue.opened ?? issue.given, alt = label === undefined ? "The picture to label" : `Row ${issue.row}, given ${readable(label)}`;
  const picture = make("img", {
    src: image ?? store.picture(issue.row, 640), alt, load: () => picture.classList.toggle("tiny", picture.naturalWidth <= 64),
    error: () => button.replaceWith(make("p", { class: "faint" }, "This picture cannot be shown.")),
  });
  const button = makeButton(picture, () => zoom(picture, image ?? store.picture(issue.row, 1024)), { class: "zoomable", title: "Zoom (z)" });
  return button;
}

function zoom(picture, source) {
  byId("zoom").replaceChildren(make("img", { src: source, alt: picture.alt, class: picture.className }));
  byId("zoom").showModal();
}
