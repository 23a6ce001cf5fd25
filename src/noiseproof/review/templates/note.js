"use strict";
// A note on the issue in view: free text, beside its decision.

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
