"use strict";
// What was decided in a page that is a file: in localStorage, one entry per row, so that a crash loses only the last one.
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
