"use strict";
// Decisions on the issue in view, and taking them back; notes.

function put(row, decision, more = {}) {
  const word = decision === "note" ? { note: more.note || null } : { decision, label: more.label ?? null };
  view.words.set(row, { ...view.words.get(row), ...word });
  store.save(row, decision, more);
}

function decide(decision, label = null, isNew = false) {
  if (store.audit.measure) return measuring.answer(decision, label);
  const issue = issueAt(view.current);
  if (!issue) return;
  if (view.finished) return say(finished());
  const here = people.isHere(issue.row); // the server would save it: what was decided before it was killed comes late
  if (here) return say(`${here} is at this row now. Press n for another one.`, true);
  say("");
  view.done.push({ row: issue.row, at: view.current, filter: view.filter });
  if (isNew && !store.audit.new_classes.includes(label)) store.audit.new_classes.push(label);
  const more = label === null ? {} : { label, ...(isNew && { new_class: true }) };
  put(issue.row, decision, { ...more, ...(issue.conflict && { settles: true }) });
  showNextOpen();
}

function decideByLabel(decision) { // asked blind, there is no given and no suggested label to decide on
  if (!store.audit.measure?.blind) decide(decision);
}

function finished() { // what is said when nothing is left to decide
  if (isFiltered()) return `${filterWords()}: everything is decided.`;
  return `Everything is decided. ${store.next} writes the corrected data.`;
}

let undoing = Promise.resolve();
function undo() {
  if (store.audit.measure) return measuring.undo();
  return (undoing = undoing.catch(() => {}).then(undoLast)); // one after the other
}

async function undoLast() {
  const from = view.current, issue = issueAt(from);
  view.current = -1; // keys decide nothing until the issue is shown
  const undone = await store.undo(issue?.row).catch((error) => ({ error }));
  if (undone.error || !undone.choice) {
    view.current = from;
    return undone.error ? say(`Not undone: ${undone.error.message}`, true) : say("There is nothing to undo.");
  }
  const { undone: rows, choice, position, now } = undone, [row] = rows;
  view.current = from;
  showProgress();
  if (choice === "merge" || rows.length !== 1) {
    say(choice === "merge" ? "Undone: the spellings." : `Undone: ${counted(rows.length, "decision")}.`);
    return reload();
  }
  view.words.set(row, now);
  say(choice === "note" ? `Undone: the note on row ${row}.` : `Undone: row ${row}.`);
  if (view.done.at(-1)?.row !== row) view.done = [{ row, filter: NO_FILTER, at: position }]; // decided before the page was opened
  const { filter, at } = view.done.pop();
  return filter === view.filter ? show(at) : useFilter(filter, at);
}

// --- a note on the issue in view: free text, beside its decision

function writeNote() {
  const issue = issueAt(view.current);
  if (!issue || store.audit.measure) return;
  byId("note-title").textContent = `Note on ${named(issue)}`;
  byId("note-text").value = issue.note ?? "";
  byId("note").dataset.row = issue.row;
  byId("note").showModal();
  byId("note-text").focus();
}

function saveNote() {
  const row = Number(byId("note").dataset.row), note = byId("note-text").value.trim(), issue = issueAt(view.current);
  byId("note").close();
  if (issue?.row !== row || note === (issue.note ?? "")) return;
  view.done.push({ row, at: view.current, filter: view.filter });
  put(row, "note", { note });
  say(note ? "Noted." : "The note is removed.");
  drawList();
  drawCard();
}

const drawNote = (note) => make("p", { class: "note" }, make("span", { "aria-hidden": true }, "✎ "), note);

byId("note").addEventListener("submit", (event) => {
  event.preventDefault();
  saveNote();
});
byId("note-text").addEventListener("keydown", (event) => { // Shift+Enter: a new line
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  saveNote();
});
byId("note-cancel").addEventListener("click", () => byId("note").close());
