"use strict";
// One decision on many rows: a batch, which one undo takes back.

const CAREFUL = 50; // rows from which on a decision is confirmed
const QUESTIONS = {
  accept: (n) => `Accept ${counted(n, "suggestion")}?`, keep: (n) => `Keep ${counted(n, "given label")}?`,
  skip: (n) => `Skip ${counted(n, "row")}?`, exclude: (n) => `Exclude ${counted(n, "row")} from the dataset?`,
  unclear: (n) => `Mark ${counted(n, "row")} as unclear?`, other: (n, label) => `Label ${counted(n, "row")} as ${readable(label)}?`,
};

const bulk = {
  get places() { // in the order of the list; without a selection, what is in focus
    return grid.selected.size ? [...grid.selected].sort((i, j) => i - j) : view.total ? [grid.focus] : [];
  },

  draw() {
    const n = grid.selected.size;
    byId("selected").textContent = n ? `${whole(n)} of ${whole(view.total)} selected` : "Nothing selected: keys act on the row in focus";
    byId("select-none").disabled = !n;
    byId("select-all").disabled = !view.total;
    for (const button of byId("bulk").querySelectorAll("[data-many]")) button.disabled = !view.total && button.dataset.many !== "undo";
  },

  other() {
    const places = this.places;
    if (!places.length) return;
    chooser.open(`The label of ${counted(places.length, "row")}`, classItems(allClasses()), (label) => this.decide("other", label, places));
  },

  async decide(decision, label = null, places = this.places) {
    if (!places.length) return;
    const issues = places.map(issueAt), decided = issues.filter((issue) => issue?.decision).length, isLoaded = issues.every(Boolean);
    const isOne = places.length === 1;
    const answer = places.length <= CAREFUL && (isOne || !decided) ? { yes: true, also: isOne }
      : await confirmMany(QUESTIONS[decision](places.length, label), isLoaded ? decided : null);
    if (answer.yes) await this.send({ decision, label, places, issues, also: answer.also });
  },

  async send({ decision, label, places, issues, also }) {
    const { filter } = view, changed = issues.filter((issue) => issue && (also || !issue.decision));
    for (const { row } of changed) view.words.set(row, { decision, label });
    say("Saving …");
    grid.none();
    const which = issues.every(Boolean) ? { rows: issues.map(({ row }) => row) } : { filter, ranges: toRanges(places) };
    try {
      const { saved } = await store.decideMany({ decision, also_decided: also, ...which, ...(decision === "other" && { label }) });
      if (saved && places.length === 1) view.done.push({ row: issues[0].row, at: places[0], filter });
      const left = places.length - saved;
      say(`${counted(saved, "decision")} saved. Press u to take ${saved === 1 ? "it" : "all of them"} back.` + (left ? ` ${counted(left, "row")} stayed: decided already, or someone is at them.` : ""));
    } catch (error) {
      for (const { row } of changed) view.words.delete(row);
      say(`Not saved: ${error.message}`, true);
    }
    showProgress();
    await reloadPages();
  },
};

function toRanges(places) { // sorted places as [first, behind the last]
  const ranges = [];
  for (const at of places) {
    if (ranges.at(-1)?.[1] === at) ranges.at(-1)[1]++;
    else ranges.push([at, at + 1]);
  }
  return ranges;
}

function confirmMany(question, decided) { // decided: how many already are, null: not known
  const dialog = byId("confirm"), also = byId("confirm-also");
  byId("confirm-question").textContent = question;
  byId("confirm-decided").hidden = decided === 0;
  byId("confirm-also-text").textContent = decided === null ? "also rows that have a decision" : `also ${counted(decided, "row")} with a decision`;
  also.checked = view.filter.state !== null && view.filter.state !== "open"; // whoever lists decided rows wants to change them
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve({ yes: dialog.returnValue === "yes", also: also.checked }), { once: true }));
}

byId("bulk").addEventListener("click", (event) => {
  const choice = event.target.closest("button")?.dataset.many;
  if (choice === "undo") undo();
  else if (choice === "other") bulk.other();
  else if (choice) bulk.decide(choice);
});
byId("select-all").addEventListener("click", () => grid.all());
byId("select-none").addEventListener("click", () => grid.none());
