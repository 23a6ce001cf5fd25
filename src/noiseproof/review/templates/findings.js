"use strict";
// Issues of columns, classes and of the whole: a sentence, labelled bars, and what to do.

const ACTION = 0.5; // score from which on something should be done

function findingParts(findings) {
  return findings.map((one, i) => {
    const isFirst = findings.findIndex(({ type }) => type === one.type) === i; // the remedy is said once
    const fix = one.fixes ? [" ", make("code", null, `noiseproof apply … --fix ${one.type}`), ` ${one.fixes}`] : [];
    return make("article", { class: one.score >= ACTION ? "finding" : "finding minor", "aria-label": `${one.type}: ${one.about}` },
      make("p", { class: "sentence" }, make("strong", null, `${one.type} `), one.sentence),
      one.picture ? findingBars(one.picture) : null,
      one.examples?.length ? findingRows(one.examples) : null,
      isFirst ? make("p", { class: "faint" }, one.remedy, ...fix) : null);
  });
}

function findingRows(examples) { // to look at
  return make("p", { class: "faint" }, "Look at ", ...examples.flatMap((other, i) => {
    const button = makeButton(named(other), () => openOther({ given: other.label, suggested: other.label }, other), { class: "example" });
    return i ? [", ", button] : [button];
  }));
}

function findingBars({ title, bars, unit, marked }) {
  const most = Math.max(...bars.map(([, value]) => value));
  const lines = bars.map(([name, value], i) => make("tr", { class: marked.includes(i) ? "marked" : null },
    make("th", { scope: "row" }, readable(name), marked.includes(i) ? make("span", { class: "faint" }, " ◂") : null),
    make("td", null, drawBar(value, most, `${value.toLocaleString("en")} ${unit}`))));
  return make("div", { class: "wide" }, make("table", { class: "bars" }, make("caption", { class: "faint" }, title), make("tbody", null, ...lines)));
}
