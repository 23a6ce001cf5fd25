"use strict";
// All keys, in groups, as far as they do something in this review.

const isReview = () => !store.audit.measure, seesLabels = () => !store.audit.measure?.blind;
const HELP = [ // title, when it is shown, [keys, what they do, when they are shown]
  ["Decide", null, [
    ["a", "Accept the suggested label", seesLabels], ["k", "Keep the given label", seesLabels],
    ["1 … 9", "The label, where there are few classes", () => !seesLabels()],
    ["o", "Another label: type, then Enter; twice for a new class"], ["x", "Exclude: it should not be in the dataset"],
    ["c", "Unclear: nobody can say which label is right"], ["s", "Skip: you pass, it stays as it is"], ["t", "Write a note", isReview],
    ["m", "Merge two spellings of a class", isReview], ["u Ctrl+z", "Undo what you did last"],
  ]],
  ["Move", isReview, [
    ["↓ → j", "Next issue"], ["↑ ←", "Previous issue"], ["PgDn PgUp", "Ten issues on or back; in the grid a screen"],
    ["Home End", "First or last issue"], ["n", "Next undecided issue (list)"],
  ]],
  ["Select in the grid", isReview, [
    ["Space", "Select the issue in focus, or not; a click does the same"], ["Shift+arrow", "Select up to there; Shift+click, too"],
    ["Ctrl+a", "Select all that the filter lists"], ["Esc", "Select nothing"], ["Enter", "Open the issue in the list"],
    ["a k o s x c", "Accept, keep, other label, skip, exclude or unclear, for all that is selected"],
  ]],
  ["Filter", isReview, [
    ["/", "Search"], ["f", "Only one pair of classes"], ["Esc", "All issues again"],
  ]],
  ["Page", null, [
    ["v l g", "Overview, list, grid", isReview], ["z", "Zoom the picture"], ["e", "Export decisions.csv", () => store.export],
    ["d", "Dark or light"], ["?", "These keys"],
  ]],
];

function showHelp() {
  const shown = (when) => !when || when();
  const groups = HELP.filter(([, when]) => shown(when)).map(([title, , lines]) => make("section", null, make("h4", null, title),
    make("dl", null, ...lines.filter(([, , when]) => shown(when)).flatMap(([keys, what]) => [make("dt", null, ...keys.split(" ").flatMap(drawKey)), make("dd", null, what)]))));
  byId("key-groups").replaceChildren(...groups);
  byId("keys").showModal();
}

function drawKey(key) {
  return key === "…" ? ["… "] : [make("kbd", null, key), " "];
}
