"use strict";
// Decisions on the issue in view, and taking them back.

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
  return last.filter === view.filter ? show(last.at) : useFilter(last.filter, last.at);
}
