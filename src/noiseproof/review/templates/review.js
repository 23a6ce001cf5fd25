"use strict";
// One page, two ways to keep decisions: a server that answers when they are on its disk, or this browser's storage.

const PAGE = 100, HEIGHT = 52, TALLEST = 8e6; // issues requested at once; pixels of an item; of a list that browsers can show
const SIGNS = { accept: "✓", keep: "=", other: "→", skip: "?" };
const byId = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(() => resolve(false), milliseconds));

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null)); // strings become text, never markup
  return node;
}

// Everything inside the page; decisions in localStorage, one entry per row, so that a crash loses only the last one.
class FileStore {
  constructor(data) {
    this.data = data;
    this.audit = data.audit;
    this.position = new Map(data.row.map((row, i) => [row, i]));
    this.marks = Object.entries(data.marks).map(([mark, positions]) => [mark, new Set(positions)]);
    this.prefix = `noiseproof:${data.audit.key}:`;
    this.unkept = new Map(); // what did not fit into the storage
    this.read();
    this.where = "Decisions are kept in this browser. Export them before you clear its data.";
    this.unsaved = 0;
  }

  read() { // other tabs write there, too
    this.words = new Map();
    for (let i = 0; i < localStorage.length; i++) {
      const name = localStorage.key(i);
      if (!name.startsWith(this.prefix)) continue;
      const [decision, ...label] = localStorage.getItem(name).split("\t");
      this.words.set(Number(name.slice(this.prefix.length)), { decision, label: label.join("\t") });
    }
    for (const [row, word] of this.unkept) this.words.set(row, word);
  }

  get progress() {
    const counts = { total: this.audit.total, decided: 0, accept: 0, keep: 0, other: 0, skip: 0 };
    for (const [row, word] of this.words) {
      if (!this.position.has(row)) continue;
      counts.decided++;
      counts[word.decision]++;
    }
    return counts;
  }

  issue(i) {
    const data = this.data, at = (name) => data[name][i], word = this.words.get(at("row"));
    return {
      row: at("row"), id: at("id"), why: at("why"), decision: word?.decision ?? null, label: word?.label ?? null,
      given: this.audit.classes[at("given")], suggested: this.audit.classes[at("suggested")],
      marks: this.marks.filter(([, positions]) => positions.has(i)).map(([mark]) => mark),
      label_quality: at("label_quality"), margin: at("margin"), neighbour_agreement: at("neighbour_agreement"),
      confidence: at("confidence"), suggested_confidence: at("suggested_confidence"),
    };
  }

  select({ given, suggested }) {
    const name = `${given}\n${suggested}`;
    if (this.selected?.name !== name) {
      const g = this.audit.classes.indexOf(given), s = this.audit.classes.indexOf(suggested);
      const all = [...this.data.row.keys()];
      const keep = (i) => (given === null || this.data.given[i] === g) && (suggested === null || this.data.suggested[i] === s);
      this.selected = { name, positions: all.filter(keep) };
    }
    return this.selected.positions;
  }

  async page(filter, offset) {
    const positions = this.select(filter);
    return { total: positions.length, issues: positions.slice(offset, offset + PAGE).map((i) => this.issue(i)) };
  }

  async nextOpen(filter, after) {
    const positions = this.select(filter), n = positions.length;
    for (let step = 1; step <= n; step++) {
      const at = (after + step) % n;
      if (!this.words.has(this.data.row[positions[at]])) return at;
    }
    return null;
  }

  async content(row) {
    return this.data.rows[row] ?? { note: "Not in this page, which has a limit: `noiseproof review` without --html shows it." };
  }

  picture(row) {
    return this.data.rows[row]?.image ?? null;
  }

  save(row, decision, label) {
    try {
      if (decision === "undo") {
        this.words.delete(row);
        this.unkept.delete(row);
        localStorage.removeItem(this.prefix + row);
      } else {
        this.words.set(row, { decision, label });
        this.unkept.set(row, { decision, label }); // first: an export has it even where the storage is full
        localStorage.setItem(this.prefix + row, label === null ? decision : `${decision}\t${label}`);
        this.unkept.delete(row);
      }
    } catch (error) {
      say(`Not saved: ${error.message} Export the decisions now.`, true);
    }
    showProgress();
  }

  export() {
    this.read();
    const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const lines = ["row,id,given_label,decision,label"];
    for (let i = 0; i < this.data.row.length; i++) {
      if (!this.words.has(this.data.row[i])) continue;
      const issue = this.issue(i);
      lines.push([String(issue.row), issue.id, issue.given, issue.decision, resulting(issue)].map(cell).join(","));
    }
    saveAs("decisions.csv", lines.join("\n") + "\n", "text/csv");
  }
}

// A server on this machine; what it has not yet confirmed waits here, in order, and is counted on the page.
class ServedStore {
  static async open() {
    const store = new ServedStore();
    const answer = await store.ask("/api/audit");
    store.audit = answer;
    store.progress = answer.progress;
    store.measured = answer.measured;
    store.where = `Every decision is saved at once in ${answer.saved_in}.`;
    return store;
  }

  waiting = [];
  busy = null;

  get unsaved() {
    return this.waiting.length;
  }

  async ask(path, options) {
    // Another audit may be served at this address by now: the server refuses requests with the key of another audit.
    const headers = { ...options?.headers, ...(this.audit && { "noiseproof-audit": this.audit.key }) };
    const answer = await fetch(`.${path}`, { credentials: "same-origin", ...options, headers }).catch(() => {
      throw new Error("The server does not answer. Is it still running?");
    });
    if (answer.ok) return answer.json();
    const detail = await answer.json().then((body) => body.detail, () => answer.statusText);
    throw Object.assign(new Error(typeof detail === "string" ? detail : JSON.stringify(detail)), { status: answer.status });
  }

  async read() {
    const { progress, measured } = await this.ask("/api/audit");
    Object.assign(this, { progress, measured });
  }

  query(filter, more) {
    const query = new URLSearchParams(more);
    for (const side of ["given", "suggested"]) {
      if (filter[side] !== null) query.set(side, this.audit.classes.indexOf(filter[side]));
    }
    return query;
  }

  async page(filter, offset) {
    return this.ask(`/api/issues?${this.query(filter, { offset, limit: PAGE })}`);
  }

  async nextOpen(filter, after) {
    await this.busy; // what waits is decided, too
    return (await this.ask(`/api/issues/next?${this.query(filter, { after })}`)).position;
  }

  async content(row) {
    return this.ask(`/api/rows/${row}`);
  }

  async context(row) {
    return this.ask(`/api/context/${row}`);
  }

  picture(row, side) {
    return `./api/rows/${row}/picture?side=${side}&audit=${this.audit.key}`; // browsers cache pictures by their address
  }

  save(row, decision, label) {
    this.post(decision === "other" ? { row, decision, label } : { row, decision });
  }

  post(body) {
    this.waiting.push(body);
    this.busy ??= this.send().finally(() => { this.busy = null; });
    showProgress();
  }

  async send() {
    const headers = { "content-type": "application/json" };
    for (let tries = 0; this.waiting.length; showProgress()) {
      const body = JSON.stringify(this.waiting[0]);
      const answer = await this.ask("/api/decisions", { method: "POST", headers, body }).catch((error) => ({ error }));
      const { error } = answer;
      if (!error || [404, 409, 422].includes(error.status)) {
        const { row } = this.waiting.shift();
        error ? this.refused(row, error) : this.saved(answer, tries);
        tries = 0;
      } else {
        tries++;
        say(`Not saved yet: ${this.waiting.length}. ${error.message}`, true);
        await pause(Math.min(500 * tries, 5000));
      }
    }
  }

  saved(answer, tries) {
    Object.assign(this, { progress: answer.progress, measured: answer.measured });
    if (tries) say("Saved.");
    if (this.audit.measure) measuring.show(answer);
  }

  refused(row, error) {
    view.words.delete(row);
    drawSoon();
    say(`Refused: ${error.message}`, true);
    if (this.audit.measure) measuring.read().catch((again) => say(again.message, true));
  }
}

let store;
const view = {
  filter: { given: null, suggested: null },
  total: 0,
  pages: new Map(), // number → issues, or the promise of them
  words: new Map(), // row → what was decided here since its page was loaded
  current: -1, // −1 while nothing is shown: keys decide nothing then
  done: [], // what undo takes back
};

function resulting({ decision, label, given, suggested }) {
  return { accept: suggested, keep: given, other: label }[decision] ?? "";
}

function named({ id, row }) {
  return id === String(row) ? `row ${row}` : id;
}

function say(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}

function showProgress() {
  const { value, max, text } = (store.audit.measure ? progressOfMeasuring : progressOfReview)(store.progress);
  byId("progress").max = Math.max(max, 1);
  byId("progress").value = value;
  byId("counts").textContent = text + (store.unsaved ? ` · ${store.unsaved} not saved yet` : "");
  drawMeasured(store.measured);
}

function progressOfReview({ total, decided, accept, keep, other, skip }) {
  const parts = Object.entries({ accept, keep, other, skip }).filter(([, n]) => n).map(([name, n]) => `${name} ${n}`);
  return { value: decided, max: total, text: [`${decided} of ${total} decided`, ...parts].join(" · ") };
}

// --- issues, page by page

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
  if (!issueAt(i)) view.current = -1;
  for (let loaded = false; !loaded; ) {
    loaded = await load(Math.floor(i / PAGE)).then?.(() => true, () => pause(1000)) ?? true;
    if (view.going !== going) return;
  }
  view.current = view.total ? Math.min(Math.max(i, 0), view.total - 1) : -1;
  scrollTo(view.current);
  drawList();
  await drawCard();
  const ahead = Math.floor((view.current + PAGE / 2) / PAGE);
  if (ahead * PAGE < view.total) load(ahead);
}

async function showNextOpen() {
  const from = view.current;
  if (from < 0 || store.audit.measure) return;
  for (let i = from + 1; i < view.total; i++) {
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
  if (next === null) say(view.filter.given === null ? "Everything is decided." : "This pair is decided. Press f for another.");
  await show(next ?? from);
}

// --- decisions

function put(row, decision, label) {
  view.words.set(row, decision === "undo" ? { decision: null, label: null } : { decision, label });
  store.save(row, decision, label);
}

function decide(decision, label = null) {
  if (store.audit.measure) return measuring.answer(decision, label);
  const issue = issueAt(view.current);
  if (!issue) return;
  say("");
  view.done.push({ row: issue.row, at: view.current, filter: view.filter, decision: issue.decision, label: issue.label });
  put(issue.row, decision, label);
  showNextOpen();
}

function decideByLabel(decision) { // asked blind, there is no given and no suggested label to decide on
  if (!store.audit.measure?.blind) decide(decision);
}

async function undo() {
  if (store.audit.measure) return measuring.undo();
  const issue = issueAt(view.current);
  const last = view.done.pop() ?? (issue?.decision ? { row: issue.row, at: view.current, filter: view.filter, decision: null } : null);
  if (!last) return say("There is nothing to undo.");
  put(last.row, last.decision ?? "undo", last.decision === "other" ? last.label : null);
  say(`Undone: row ${last.row}.`);
  if (last.filter !== view.filter) setFilter(last.filter);
  return show(last.at);
}

function setFilter(filter) {
  Object.assign(view, { filter, pages: new Map(), current: -1 });
  byId("filtered").textContent = filter.given === null ? "" : `only ${filter.given} → ${filter.suggested}`;
  byId("list").scrollTop = 0;
}

// --- the list: a few nodes, whatever its length

function geometry() {
  const list = byId("list"), full = view.total * HEIGHT, height = Math.min(full, TALLEST);
  const seen = list.clientHeight || 1;
  const stretch = height > seen ? (full - seen) / (height - seen) : 1; // pixels of the true list for one of the bar
  return { list, full, height, seen, stretch };
}

function scrollTo(i) {
  byId("space").style.height = `${geometry().height}px`;
  const { list, seen, stretch } = geometry(), top = list.scrollTop * stretch, at = i * HEIGHT;
  if (at < top) list.scrollTop = at / stretch;
  else if (at + HEIGHT > top + seen) list.scrollTop = (at + HEIGHT - seen) / stretch;
}

function drawList() {
  if (store?.audit.measure) return; // it would be an invitation to choose, and chosen rows are no random sample
  const { list, seen, stretch } = geometry(), top = list.scrollTop * stretch;
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
      make("span", null, issue ? `${issue.given} → ${issue.suggested}` : "…"),
      make("span", { class: "faint" }, issue ? named(issue) : ""),
    ));
    if (issue?.decision) item.append(done(issue));
    items.push(item);
  }
  byId("space").replaceChildren(...items);
  list.setAttribute("aria-activedescendant", view.current < 0 ? "" : `item-${view.current}`);
}

function done(issue) {
  const word = issue.decision === "other" ? `${SIGNS.other} ${issue.label}` : `${SIGNS[issue.decision]} ${issue.decision}`;
  return make("span", { class: `done ${issue.decision === "skip" ? "skip-word" : issue.decision}` }, word);
}

let drawing = false;
function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawList(); });
}

// --- the card: one issue, large

async function drawCard() {
  const at = view.current, issue = issueAt(at), card = byId("card");
  if (!issue) {
    card.replaceChildren(make("p", null, view.total ? "Loading …" : `No issues. ${store.audit.verdict}`));
    return;
  }
  const row = make("div", { id: "row", "data-row": issue.row });
  const fresh = card.querySelector("#row")?.dataset.row !== String(issue.row);
  const judged = "given" in issue ? [drawLabels(issue), make("p", null, issue.why)] : []; // not where it is asked blind
  card.replaceChildren(drawLine(at, issue), ...judged, fresh ? row : card.querySelector("#row"));
  if (!fresh) return;
  card.scrollTop = 0;
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

function drawLabels(issue) {
  const percent = (p) => (p === null ? "" : `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} % likely`);
  const label = (title, name, more, chosen) =>
    make("div", { class: chosen ? "label chosen" : "label" }, title, make("strong", null, name), make("span", { class: "faint" }, more));
  const chosen = resulting(issue);
  const labels = make("div", { class: "labels" },
    label("given", issue.given, percent(issue.confidence), chosen === issue.given),
    label("suggested", issue.suggested, percent(issue.suggested_confidence), chosen === issue.suggested),
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

// --- choosing from a list by typing

const chooser = {
  open(title, items, take, first = -1) { // first: what Enter takes before anything is typed, −1: nothing
    Object.assign(this, { items, take, first });
    byId("chooser-title").textContent = title;
    byId("chooser-word").value = "";
    this.search();
    byId("chooser").showModal();
    byId("chooser-word").focus();
  },
  search() {
    const word = byId("chooser-word").value.trim().toLowerCase();
    const rank = ({ text }) => {
      const name = text.toLowerCase();
      return name === word ? 0 : name.startsWith(word) ? 1 : name.includes(word) ? 2 : 3;
    };
    this.found = this.items.map((item) => ({ item, rank: rank(item) })).filter(({ rank }) => rank < 3)
      .sort((one, two) => one.rank - two.rank).slice(0, 50).map(({ item }) => item);
    this.at = word ? 0 : this.first;
    this.draw();
  },
  draw() {
    byId("chooser-list").replaceChildren(...this.found.map((item, i) =>
      make("li", { role: "option", id: `choice-${i}`, "data-at": i, "aria-selected": i === this.at },
        make("span", null, item.text), make("span", null, item.note ?? ""))));
    const active = byId(`choice-${this.at}`);
    active?.scrollIntoView({ block: "nearest" });
    byId("chooser-word").setAttribute("aria-activedescendant", active?.id ?? "");
  },
  move(step) {
    this.at = Math.min(Math.max(this.at + step, 0), this.found.length - 1);
    this.draw();
  },
  choose(i = this.at) {
    const item = this.found[i];
    if (!item) return;
    byId("chooser").close();
    this.take(item.value);
  },
};

function chooseOther() {
  const issue = issueAt(view.current);
  if (!issue) return;
  const note = new Map("given" in issue ? [[issue.given, "given"], [issue.suggested, "suggested"]] : []);
  const others = store.audit.classes.filter((name) => !note.has(name));
  const items = [...others, ...note.keys()].map((text) => ({ text, value: text, note: note.get(text) }));
  const title = note.size ? `Another label than ${issue.given} or ${issue.suggested}` : "The label of this row";
  chooser.open(title, items, (label) => {
    if (issueAt(view.current)?.row === issue.row) decide("other", label);
  });
}

function chooseFilter() {
  if (store.audit.measure) return;
  const all = { text: "All pairs", value: { given: null, suggested: null }, note: String(store.audit.total) };
  const pairs = store.audit.pairs.map(({ given, suggested, issues }) =>
    ({ text: `${given} → ${suggested}`, value: { given, suggested }, note: String(issues) }));
  chooser.open("Only issues of one pair of classes", [all, ...pairs], async (filter) => {
    setFilter(filter);
    await show(0);
    if (issueAt(view.current)?.decision) await showNextOpen();
  }, 0);
}

// --- keys

const KEYS = {
  a: () => decideByLabel("accept"), k: () => decideByLabel("keep"), o: chooseOther, s: () => decide("skip"), u: undo,
  j: () => move(1), ArrowDown: () => move(1), ArrowRight: () => move(1), ArrowUp: () => move(-1), ArrowLeft: () => move(-1),
  PageDown: () => move(10), PageUp: () => move(-10), Home: () => move(-Infinity), End: () => move(Infinity),
  n: showNextOpen, f: chooseFilter, e: () => store.export?.(), d: () => theme.set(theme.dark ? "light" : "dark"),
  z: () => document.querySelector("#row .zoomable")?.click(), "?": () => byId("keys").showModal(),
};
for (let number = 1; number <= FEW; number++) KEYS[number] = () => answerByNumber(number);

function move(step) {
  if (view.current >= 0 && !store.audit.measure) show(Math.min(Math.max(view.current + step, 0), view.total - 1));
}

document.addEventListener("keydown", (event) => {
  if (byId("chooser").open) {
    const keys = { ArrowDown: () => chooser.move(1), ArrowUp: () => chooser.move(-1), Enter: () => chooser.choose() };
    if (!keys[event.key] || event.isComposing) return;
    event.preventDefault();
    return keys[event.key]();
  }
  const dialog = document.querySelector("dialog[open]");
  if (dialog) {
    if (event.key === { keys: "?", zoom: "z" }[dialog.id]) dialog.close();
    return;
  }
  const undoing = (event.ctrlKey || event.metaKey) && event.key === "z";
  const act = undoing ? undo : event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  if (event.repeat && store?.audit.measure) return; // a key that is held down answers one question
  act();
});

async function showFirst() {
  const first = await store.nextOpen(view.filter, -1);
  if (first === null && store.audit.total) say("Everything is decided.");
  await show(first ?? 0);
}

async function start() {
  const packed = byId("data").textContent;
  store = packed ? new FileStore(JSON.parse(await unpack(packed))) : await ServedStore.open();
  const name = store.audit.name ? `Review of ${store.audit.name}` : "Review";
  document.title = name;
  document.querySelector("h1").textContent = name;
  byId("where").textContent = store.where;
  byId("export").hidden = !store.export;
  showProgress();
  await (store.audit.measure ? measuring.start() : showFirst());
  document.body.dataset.ready = "true";
}

byId("list").addEventListener("scroll", drawSoon, { passive: true });
byId("list").addEventListener("click", (event) => {
  const item = event.target.closest(".item");
  if (item) show(Number(item.dataset.at));
});
new ResizeObserver(drawSoon).observe(byId("list"));
byId("choices").addEventListener("click", (event) => {
  const { choice, label } = event.target.closest("button")?.dataset ?? {};
  if (label !== undefined) decide(choice, label);
  else if (choice) ({ other: chooseOther, undo }[choice] ?? (() => decide(choice)))();
});
byId("filter").addEventListener("click", chooseFilter);
byId("export").addEventListener("click", () => store.export());
byId("help").addEventListener("click", KEYS["?"]);
byId("zoom").addEventListener("click", () => byId("zoom").close());
byId("chooser-word").addEventListener("input", () => chooser.search());
byId("chooser-list").addEventListener("click", (event) => {
  const item = event.target.closest("li");
  if (item) chooser.choose(Number(item.dataset.at));
});
addEventListener("beforeunload", (event) => { if (store?.unsaved) event.preventDefault(); });
async function refresh() { // another tab may have decided meanwhile
  if (!store || store.unsaved || view.current < 0) return;
  try {
    if (store.audit.measure) return await measuring.read();
    await store.read();
  } catch (error) {
    return say(error.message, true);
  }
  if (view.current < 0) return;
  Object.assign(view, { pages: new Map(), words: new Map() });
  showProgress();
  show(view.current);
}
document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") refresh(); });
addEventListener("storage", refresh);
start().catch((error) => say(`The review cannot be shown: ${error.message}`, true));
