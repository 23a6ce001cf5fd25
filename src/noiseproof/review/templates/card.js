"use strict";
// The card: one issue, large.

async function drawCard() {
  const at = view.current, issue = issueAt(at), card = byId("card");
  if (!issue) {
    card.replaceChildren(make("p", null, view.total ? "Loading …" : isFiltered() ? "No issue meets this filter." : `No issues. ${store.audit.verdict}`));
    return;
  }
  const row = make("div", { id: "row", "data-row": issue.row });
  const fresh = card.querySelector("#row")?.dataset.row !== String(issue.row);
  const judged = "given" in issue ? [drawLabels(issue), ...chips.draw(issue), make("p", { class: "sentence" }, issue.why)] : []; // not where it is asked blind
  const note = issue.note ? [drawNote(issue.note)] : [];
  card.replaceChildren(drawLine(at, issue), drawOthers(issue), ...judged, ...note, fresh ? row : card.querySelector("#row"));
  if (!fresh) return;
  card.scrollTop = 0;
  people.at(people.row);
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

function likely(p) { // a probability in plain words
  if (p === null || p === undefined) return "";
  return p < 0.0005 ? "< 0.1 %" : p > 0.995 ? "> 99 %" : `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;
}

function drawLabels(issue) {
  const label = (title, name, quality, chosen) =>
    make("div", { class: chosen ? "label chosen" : "label", title: quality && "How likely this label is right, by all evidence." },
      title, make("strong", null, readable(name)), make("span", { class: "faint" }, quality && `right: ${quality}`));
  const chosen = resulting(issue);
  const labels = make("div", { class: "labels" },
    label("given", issue.given, likely(issue.label_quality), chosen === issue.given),
    label("suggested", issue.suggested, likely(issue.suggestion_quality), chosen === issue.suggested),
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
