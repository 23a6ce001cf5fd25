"use strict";
// Those who labelled the data: quality with its interval, what they confuse, and the rows where they stand alone.

const FIRST_ANNOTATORS = 12;

const annotators = {
  all: false,

  parts(lines) {
    const shown = this.all ? lines : lines.slice(0, FIRST_ANNOTATORS);
    const titles = ["annotator", "right labels", "labels", "most frequent error", "disputed", "advice"], head = makeHead(titles, (i) => [2, 4].includes(i));
    const table = makeTable({ class: "rates annotators" }, head, shown.map((one) => this.line(one)));
    const showAll = () => { this.all = true; overview.fill("annotators", this.parts(lines)); };
    const more = lines.length > shown.length ? makeButton(`All ${whole(lines.length)} annotators`, showAll, { class: "more" }) : null;
    const note = "Quality with its 95 % interval. Disputed: labels called wrong where the annotator disagrees with the consensus.";
    return [make("p", { class: "faint" }, note), table, more];
  },

  line(one) {
    const interval = `${share(one.quality)} % (${share(one.low)} to ${share(one.high)})`;
    const error = one.confuses ? `${readable(one.confuses)} as ${readable(one.with)}, ${whole(Math.round(one.confused))}` : "";
    return make("tr", null, make("th", { scope: "row" }, one.annotator), make("td", null, drawBar(one.quality, 1, interval)),
      make("td", { class: "number" }, whole(one.labels)), make("td", null, error), make("td", { class: "number" }, this.rows(one)), make("td", null, one.advice));
  },

  rows(one) {
    if (!one.rows.length) return "0";
    return overview.button({ rows: one.rows }, whole(one.rows.length), `${one.rows.length} disputed rows of ${one.annotator}`);
  },
};
