"use strict";
// Everything inside the page, and what was decided in this browser (FileLog).

class FileStore {
  constructor(data) {
    this.data = data;
    this.audit = data.audit;
    this.position = new Map(data.row.map((row, i) => [row, i]));
    this.marks = Object.entries(data.marks).map(([mark, positions]) => [mark, new Set(positions)]);
    this.log = new FileLog(`noiseproof:${data.audit.key}:`);
    this.all = data.audit.spellings;
    this.read();
    this.next = "“Export”, then `noiseproof apply FOLDER --decisions decisions.csv`, with the folder of the audit,";
    this.where = "Decisions are kept in this browser. Export them before you clear its data.";
    this.unsaved = 0;
  }

  read() { // other tabs write there, too
    this.log.read();
    this.update();
  }

  get words() {
    return this.log.words;
  }

  update() { // what decisions change about the classes
    const labels = [...this.words.values()].filter(({ decision }) => decision === "other").map(({ label }) => label);
    this.audit.new_classes = [...new Set(labels)].filter((name) => !this.audit.classes.includes(name));
    this.audit.spellings = this.all.filter(({ spelling }) => !this.log.merges.has(spelling));
  }

  get searched() {
    if (!this.audit.searches_cells) return "ids only";
    const missing = this.data.row.filter((row) => !this.data.rows[row]).length;
    return missing ? `ids, and cells of all but ${counted(missing, "row")}` : "ids and cells";
  }

  get progress() {
    const counts = { total: this.audit.total, decided: 0, accept: 0, keep: 0, other: 0, skip: 0, exclude: 0, unclear: 0 };
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
      row: at("row"), id: at("id"), why: at("why"), snippet: this.snippet(at("row")),
      decision: word?.decision ?? null, label: word?.label ?? null,
      note: this.log.notes.get(at("row")) ?? null,
      given: this.audit.classes[at("given")], suggested: this.audit.classes[at("suggested")],
      marks: this.marks.filter(([, positions]) => positions.has(i)).map(([mark]) => mark),
      label_quality: at("label_quality"), margin: at("margin"), neighbour_agreement: at("neighbour_agreement"),
      suggestion_quality: at("suggestion_quality"),
      confidence: at("confidence"), suggested_confidence: at("suggested_confidence"),
    };
  }

  snippet(row) { // as the server makes it
    const { text, fields, predictions, image } = this.data.rows[row] ?? {};
    if (image) return { has_image: true };
    if (text !== undefined) return { text: text.slice(0, 400).replace(/\s+/g, " ").trim().slice(0, 200) };
    const { leading, unsaid } = this.data, cells = new Map(fields ?? predictions ?? []);
    const first = leading.filter((name) => cells.has(name));
    const names = first.length ? first : [...cells.keys()].filter((name) => !["", "0"].includes(cells.get(name)));
    return { fields: names.filter((name) => !unsaid.includes(name)).slice(0, 4).map((name) => [name, cells.get(name).slice(0, 200)]) };
  }

  select(filter) { // once for a filter: its rows stay listed when they are decided
    if (this.selected?.filter !== filter) this.selected = { filter, positions: this.sorted(filter).filter(this.condition(filter)) };
    return this.selected.positions;
  }

  condition({ given, suggested, state, low, high, search, rows }) {
    const { data, audit } = this, [g, s] = [given, suggested].map((name) => audit.classes.indexOf(name));
    const chosen = rows && new Set(rows), words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const states = { open: (word) => !word, decided: (word) => word, conflict: () => false };
    const inState = states[state] ?? ((word) => word?.decision === state);
    return (i) => {
      const row = data.row[i], quality = data.label_quality[i];
      return (given === null || data.given[i] === g) && (suggested === null || data.suggested[i] === s)
        && (low === null || quality >= low) && (high === null || quality <= high) && (!chosen || chosen.has(row))
        && (state === null || inState(this.words.get(row))) && (!words.length || this.matches(i, words));
    };
  }

  matches(i, words) {
    this.texts ??= this.data.row.map((row, at) => {
      const { text, fields } = this.data.rows[row] ?? {};
      return [this.data.id[at], text ?? "", ...(fields ?? []).map(([, cell]) => cell)].join("\n").toLowerCase();
    });
    return words.every((word) => this.texts[i].includes(word));
  }

  sorted({ sort, descending }) { // equal ones stay in the order of the audit
    const { data } = this, positions = [...data.row.keys()], sign = descending ? -1 : 1;
    const number = (id) => (/^[0-9]+$/.test(id) ? Number(id) : Infinity);
    const byWord = (one, two) => (one < two ? -1 : one > two ? 1 : 0);
    const orders = {
      quality: (i, j) => i - j, row: (i, j) => data.row[i] - data.row[j],
      id: (i, j) => byWord(number(data.id[i]), number(data.id[j])) || byWord(data.id[i], data.id[j]),
      given: (i, j) => data.given[i] - data.given[j], suggested: (i, j) => data.suggested[i] - data.suggested[j],
    };
    const other = { given: data.suggested, suggested: data.given }[sort];
    return positions.sort((i, j) => sign * orders[sort](i, j) || (other ? other[i] - other[j] : 0) || i - j);
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

  async overview() {
    const { matrix, classes, ...rest } = this.data.overview, pairs = new Map(matrix.given.map((g, i) => [`${g},${matrix.suggested[i]}`, i]));
    const [byPair, byClass] = [matrix.issues.map(() => 0), classes.rows.map(() => 0)], issues = sum(matrix.issues);
    for (const row of this.words.keys()) {
      const i = this.position.get(row);
      if (i === undefined || i >= issues) continue; // issues come before the other rows
      byPair[pairs.get(`${this.data.given[i]},${this.data.suggested[i]}`)]++;
      byClass[this.data.given[i]]++;
    }
    return { ...rest, matrix: { ...matrix, decided: byPair }, classes: { ...classes, decided: byClass }, progress: this.progress };
  }

  async map() {
    return this.data.map;
  }

  async brief(row) {
    const i = this.position.get(row);
    return i === undefined ? { row, id: String(row) } : { ...this.issue(i), ...this.data.rows[row] };
  }

  picture(row) {
    return this.data.rows[row]?.image ?? null;
  }

  save(row, decision, { label = null, note = "" } = {}) {
    const entry = decision === "note" ? [`note:${row}`, note || null] : [String(row), label === null ? decision : `${decision}\t${label}`];
    this.log.act(decision, [row], [entry]);
    this.update();
    showProgress();
  }

  async decideMany({ decision, label = null, rows, filter, ranges, also_decided = false }) { // as one, for undo
    const listed = () => ranges.flatMap(([from, to]) => this.select(filter).slice(from, to).map((i) => this.data.row[i]));
    const open = (rows ?? listed()).filter((row) => also_decided || !this.words.has(row));
    if (open.length) this.log.act(decision, open, open.map((row) => [String(row), label === null ? decision : `${decision}\t${label}`]));
    this.update();
    return { batch: null, saved: open.length, progress: this.progress };
  }

  async merge(spelling, label) { // undecided issues about this difference alone become kept
    const { merges } = this.log, becomes = (name, passed = []) => {
      const next = name === spelling ? label : merges.get(name) ?? name;
      return next === name || passed.includes(next) ? name : becomes(next, [...passed, name]);
    };
    if (becomes(label) === spelling && label !== spelling) throw new Error(`${label} is to become ${spelling}. Undo that.`);
    const same = this.audit.classes.map((name) => becomes(name)), { row, given, suggested } = this.data;
    const moot = label === spelling ? [] : row.filter((number, i) => same[given[i]] === same[suggested[i]] && !this.words.has(number));
    this.log.act("merge", moot, [[`merge:${spelling}`, label], ...moot.map((number) => [String(number), "keep"])]);
    this.update();
  }

  async undo(row) {
    const last = this.log.undo(row);
    this.update();
    if (!last) return { undone: [], choice: null };
    const position = this.position.get(last.rows[0]) ?? null;
    return { undone: last.rows, choice: last.choice, position, now: position === null ? null : this.issue(position) };
  }

  export() {
    this.read();
    saveAs("decisions.csv", this.log.lines((i) => this.issue(i), this.data.row.keys()), "text/csv");
  }
}

// --- what was decided in a page that is a file: in localStorage, one entry per row, so that a crash loses only the last one
// Entries: "12" → "accept" or "other⇥label", "note:12" → text, "merge:Gentoo " → "Gentoo".

class FileLog {
  constructor(prefix) {
    this.prefix = prefix;
    this.unkept = new Map(); // what did not fit into the storage
    this.past = []; // what undo takes back: { choice, rows, before: [[entry, value]] }
    this.read();
  }

  read() { // other tabs write there, too
    Object.assign(this, { words: new Map(), notes: new Map(), merges: new Map() });
    for (let i = 0; i < localStorage.length; i++) {
      const name = localStorage.key(i);
      if (name.startsWith(this.prefix)) this.take(name.slice(this.prefix.length), localStorage.getItem(name));
    }
    for (const [entry, value] of this.unkept) this.take(entry, value);
  }

  take(entry, value) {
    const [, kind, key] = entry.match(/^(note:|merge:)?(.*)$/s);
    const map = { "note:": this.notes, "merge:": this.merges }[kind] ?? this.words, id = kind === "merge:" ? key : Number(key);
    if (value === null) map.delete(id);
    else if (kind) map.set(id, value);
    else {
      const [decision, ...label] = value.split("\t");
      map.set(id, { decision, label: label.join("\t") });
    }
  }

  value(entry) {
    return this.unkept.has(entry) ? this.unkept.get(entry) : localStorage.getItem(this.prefix + entry);
  }

  act(choice, rows, entries) { // [[entry, value or null]], undone as one
    this.past.push({ choice, rows, before: entries.map(([entry]) => [entry, this.value(entry)]) });
    this.put(entries);
  }

  put(entries) {
    for (const [entry, value] of entries) { // first: an export has it even where the storage is full
      this.unkept.set(entry, value);
      this.take(entry, value);
    }
    try {
      for (const [entry, value] of entries) {
        if (value === null) localStorage.removeItem(this.prefix + entry);
        else localStorage.setItem(this.prefix + entry, value);
        this.unkept.delete(entry);
      }
    } catch (error) {
      say(`Not saved: ${error.message} Export the decisions now.`, true);
    }
  }

  undo(row) { // the last action since the page was opened, else the decision on this row
    const decided = row !== undefined && this.words.has(row) ? { choice: "undo", rows: [row], before: [[String(row), null]] } : null;
    const last = this.past.pop() ?? decided;
    if (last) this.put(last.before);
    return last;
  }

  lines(issue, positions) { // of decisions.csv
    const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const line = (row, id, given, decision, label, note = "") => [String(row), id, given, decision, label, "", "", "", "", note].map(cell).join(",");
    const lines = ["row,id,given_label,decision,label,reviewer,asked,probability,batch,note"];
    for (const [spelling, label] of this.merges) lines.push(line("", "", spelling, "merge", label));
    for (const i of positions) {
      const { row, id, given, decision, note, ...rest } = issue(i);
      if (decision) lines.push(line(row, id, given, decision, resulting({ decision, given, ...rest })));
      if (note) lines.push(line(row, id, given, "note", "", note));
    }
    return lines.join("\n") + "\n";
  }
}
