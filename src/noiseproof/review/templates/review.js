"use strict";
// One page, two ways to keep decisions: a server that answers when they are on its disk, or this browser's storage.

// --- all keys, in groups, as far as they do something in this review

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

// --- the page

const KEYS = { // of all views; each of them adds its own
  u: () => undo(), f: chooseFilter, e: () => store.export?.(), d: () => theme.set(theme.dark ? "light" : "dark"),
  v: () => views.show("overview"), l: () => views.show("list"), g: () => views.show("grid"),
  m: () => spellings.open(), "/": () => filterBar.focus(), "?": () => showHelp(), Escape: () => { if (isFiltered()) setFilter(); },
};
const LIST_KEYS = {
  a: () => decideByLabel("accept"), k: () => decideByLabel("keep"), o: () => chooseOther(), s: () => decide("skip"),
  x: () => decide("exclude"), c: () => decide("unclear"), t: () => writeNote(),
  j: () => move(1), ArrowDown: () => move(1), ArrowRight: () => move(1), ArrowUp: () => move(-1), ArrowLeft: () => move(-1),
  PageDown: () => move(10), PageUp: () => move(-10), Home: () => move(-Infinity), End: () => move(Infinity),
  n: () => showNextOpen(), z: () => document.querySelector("#row .zoomable")?.click(),
};
for (let number = 1; number <= FEW; number++) LIST_KEYS[number] = () => answerByNumber(number);
views.add("list", { show: () => show(Math.max(view.current, 0)), keys: LIST_KEYS });

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
  const field = event.target.closest("input, select, textarea");
  // A field of a dialog that was just closed keeps the focus until the page is drawn again.
  if (field && !field.closest("dialog")) return field.closest("#filters") && filterBar.leave(event);
  const undoing = (event.ctrlKey || event.metaKey) && event.key === "z";
  const chord = event.ctrlKey || event.metaKey;
  const act = undoing ? undo : chord ? views.chord(event) : event.altKey ? null : views.keys[event.key] ?? KEYS[event.key];
  if (!act || ([" ", "Enter"].includes(event.key) && event.target.closest("button, a, summary"))) return;
  event.preventDefault();
  if (event.repeat && store?.audit.measure) return; // a key that is held down answers one question
  act(event);
});

async function showFirst() {
  const first = await store.nextOpen(view.filter, -1);
  if (first === null && store.audit.total) say(finished());
  const shown = show(first ?? 0);
  view.finished = first === null && store.audit.total > 0;
  await shown;
}

async function start() {
  const packed = byId("data").textContent;
  store = packed ? new FileStore(JSON.parse(await unpack(packed))) : await ServedStore.open();
  const name = store.audit.name ? `Review of ${store.audit.name}` : "Review";
  document.title = name;
  document.querySelector("h1").textContent = name;
  byId("where").textContent = store.where;
  byId("export").hidden = !store.export;
  byId("choices").hidden = store.audit.total === 0;
  showProgress();
  if (!store.audit.measure) filterBar.start();
  await (store.audit.measure ? measuring.start() : showFirst());
  await views.start();
  await people.start();
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
  else if (choice) ({ other: chooseOther, undo, note: writeNote }[choice] ?? (() => decide(choice)))();
});
byId("filter").addEventListener("click", chooseFilter);
byId("clear").addEventListener("click", () => setFilter());
byId("export").addEventListener("click", () => store.export());
byId("help").addEventListener("click", showHelp);
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
  reload();
}
document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") refresh(); });
addEventListener("storage", refresh);
start().catch((error) => say(`The review cannot be shown: ${error.message}`, true));
