"use strict";
// The list: a few nodes, whatever its length.

const HEIGHT = 52, TALLEST = 8e6; // pixels of an item; of a list that browsers can show
const SIGNS = { accept: "✓", keep: "=", other: "→", skip: "?", exclude: "✕", unclear: "≈" };

function scrolled(box, full) { // which part of a list is seen, whose full height browsers may be unable to show
  const height = Math.min(full, TALLEST), seen = box.clientHeight || 1;
  const stretch = height > seen ? (full - seen) / (height - seen) : 1; // pixels of the true list for one of the bar
  return { height, seen, stretch, top: box.scrollTop * stretch };
}

function scrollInto(box, full, at, size) { // so that what is at these pixels of the true list is seen
  box.firstElementChild.style.height = `${scrolled(box, full).height}px`;
  const { seen, stretch, top } = scrolled(box, full);
  if (at < top) box.scrollTop = at / stretch;
  else if (at + size > top + seen) box.scrollTop = (at + size - seen) / stretch;
}

function drawList() {
  if (store?.audit.measure) return; // it would be an invitation to choose, and chosen rows are no random sample
  const list = byId("list"), { seen, top } = scrolled(list, view.total * HEIGHT);
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
      make("span", null, issue ? `${readable(issue.given)} → ${readable(issue.suggested)}` : "…"),
      make("span", { class: "faint" }, issue ? snippetWords(issue) : ""),
    ));
    if (issue?.note) item.append(make("span", { class: "noted", title: issue.note, role: "img", "aria-label": "has a note" }, "✎"));
    if (issue) item.title = named(issue);
    const quality = issue && make("span", { class: "quality", title: `The given label is right: ${likely(issue.label_quality)}` }, likely(issue.label_quality));
    item.append(...[peopleMark(issue), issue?.decision ? done(issue) : quality].filter(Boolean));
    items.push(item);
  }
  byId("space").replaceChildren(...items);
  list.setAttribute("aria-activedescendant", view.current < 0 ? "" : `item-${view.current}`);
}

function snippetWords(issue) { // a few words of the row; its name where it has none
  return rowWords(issue.snippet ?? {}) || named(issue);
}

const rowWords = ({ text, fields }) => text || (fields ?? []).map(([name, cell]) => `${name} ${cell}`).join(" · ");

function done(issue) {
  const word = issue.decision === "other" ? `${SIGNS.other} ${readable(issue.label)}` : `${SIGNS[issue.decision]} ${issue.decision}`;
  return make("span", { class: `done ${issue.decision === "skip" ? "skip-word" : issue.decision}` }, word);
}

let drawing = false;
function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; views.current === "grid" ? grid.draw() : drawList(); });
}
