"use strict";
// The card: one issue, large, with chips for several labels, its row, and what to compare that with.

async function drawCard() {
  const at = view.current, issue = issueAt(at), card = byId("card");
  if (!issue) {
    card.replaceChildren(make("p", null, view.total ? "Loading …" : isFiltered() ? "No issue meets this filter." : `No issues. ${store.audit.verdict}`));
    return;
  }
  const row = make("div", { id: "row", "data-row": issue.row });
  const fresh = card.querySelector("#row")?.dataset.row !== String(issue.row);
  const judged = "given" in issue ? [drawLabels(issue), ...chips.draw(issue), make("p", { class: "sentence" }, issue.why)] : []; // not where it is asked blind
  const note = issue.note ? [drawNote(issue.note)] : [];
  card.replaceChildren(drawLine(at, issue), drawOthers(issue), ...judged, ...note, fresh ? row : card.querySelector("#row"));
  if (!fresh) return;
  card.scrollTop = 0;
  people.at(people.row);
  const content = await store.content(issue.row).catch((error) => ({ note: error.message }));
  row.replaceChildren(...drawContent(issue, content)); // if another issue is shown by now, nobody sees it
  context.show(row, issue, content);
}

function drawLine(at, issue) {
  const where = store.audit.measure ? `Question ${issue.number}` : `Issue ${at + 1} of ${view.total}`;
  return make("div", { class: "labels" },
    make("span", { class: "faint" }, "id" in issue ? `${where} · ${named(issue)}` : where),
    ...(issue.marks ?? []).map((mark) => make("span", { class: "mark" }, mark)),
    issue.decision ? done(issue) : null,
  );
}

function likely(p) { // a probability in plain words
  if (p === null || p === undefined) return "";
  return p < 0.0005 ? "< 0.1 %" : p > 0.995 ? "> 99 %" : `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;
}

function drawLabels(issue) {
  const label = (title, name, quality, chosen) =>
    make("div", { class: chosen ? "label chosen" : "label", title: quality && "How likely this label is right, by all evidence." },
      title, make("strong", null, readable(name)), make("span", { class: "faint" }, quality && `right: ${quality}`));
  const chosen = resulting(issue);
  const labels = make("div", { class: "labels" },
    label("given", issue.given, likely(issue.label_quality), chosen === issue.given),
    label("suggested", issue.suggested, likely(issue.suggestion_quality), chosen === issue.suggested),
  );
  if (issue.decision === "other") labels.append(label("your label", issue.label, "", true));
  return labels;
}

function drawContent(issue, { text, fields, predictions, note, has_image, image }) {
  return [
    has_image || image ? drawPicture(issue, image) : null,
    text === undefined ? null : drawText(issue, text),
    fields?.length ? drawFields(issue, fields) : null,
    predictions ? make("div", { class: "fields" }, drawTable(predictions)) : null,
    note ? make("p", { class: "faint" }, note) : null,
  ].filter(Boolean);
}

// --- the labels of a row with several of them: a chip each, on or off; suggested additions and removals are marked

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

// --- what a row is (columns that matter first, marked words, zoom) and what to compare it with, requested after the row

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
