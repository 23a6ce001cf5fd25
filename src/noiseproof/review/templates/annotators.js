"use strict";
// Those who labelled the data: quality with its interval, what they confuse, and the rows where they stand alone.

const FIRST_ANNOTATORS = 12;

const annotators = {
  all: false,

  parts(lines) {
    const shown = this.all ? lines : lines.slice(0, FIRST_ANNOTATORS);
    const titles = ["annotator", "right labels", "labels", "most frequent error", "disputed", "advice"];
    const head = titles.map((title, i) => make("th", { scope: "col", class: [2, 4].includes(i) ? "number" : null }, title));
    const table = make("table", { class: "rates annotators" }, make("thead", null, make("tr", null, ...head)), make("tbody", null, ...shown.map((one) => this.line(one))));
    const more = lines.length > shown.length ? make("button", { type: "button", class: "more" }, `All ${whole(lines.length)} annotators`) : null;
    more?.addEventListener("click", () => { this.all = true; overview.fill("annotators", this.parts(lines)); });
    const note = "Quality with its 95 % interval. Disputed: labels called wrong where the annotator disagrees with the consensus.";
    return [make("p", { class: "faint" }, note), make("div", { class: "wide" }, table), more];
  },

  line(one) {
    const interval = `${share(one.quality)} % (${share(one.low)} to ${share(one.high)})`;
    const error = one.confuses ? `${readable(one.confuses)} as ${readable(one.with)}, ${whole(Math.round(one.confused))}` : "";
    return make("tr", null, make("th", { scope: "row" }, one.annotator), make("td", null, drawBar(one.quality, 1, interval)),
      make("td", { class: "number" }, whole(one.labels)), make("td", null, error), make("td", { class: "number" }, this.rows(one)), make("td", null, one.advice));
  },

  rows(one) {
    if (!one.rows.length) return "0";
    const button = make("button", { type: "button", "aria-label": `${one.rows.length} disputed rows of ${one.annotator}` }, whole(one.rows.length));
    button.addEventListener("click", () => overview.list({ rows: one.rows }, "list"));
    return button;
  },
};
