"use strict";
// Drawing for the overview: shapes, the histogram of qualities with its brush, bars.

const BARS = { width: 480, height: 190, left: 44, right: 12, top: 18, bottom: 38 }; // of the histogram

function shape(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const columnSums = (table) => table.reduce((total, line) => total.map((value, i) => value + line[i]), table[0].map(() => 0));

const qualityAt = (x) => BARS.left + x * (BARS.width - BARS.left - BARS.right); // in [0, 1] → pixels of the drawing

function drawHistogram(rows, issues, cuts) { // counts in equal bins of [0, 1]; issues are among the rows
  const { width, height, top, bottom, left, right } = BARS, floor = height - bottom;
  const most = Math.max(...rows, 1), up = (count) => ((floor - top) * Math.log1p(count)) / Math.log1p(most);
  const step = 1 / rows.length, parts = [];
  for (let count = 1; count <= most; count *= 10) {
    parts.push(shape("line", { class: "rule", x1: left, x2: width - right, y1: floor - up(count), y2: floor - up(count) }),
      shape("text", { x: left - 6, y: floor - up(count) + 4, "text-anchor": "end" }, whole(count)));
  }
  rows.forEach((count, i) => {
    const x = qualityAt(i * step) + 0.5, size = { x, width: qualityAt((i + 1) * step) - x - 0.5 };
    const title = `${(i * step).toFixed(3)} to ${((i + 1) * step).toFixed(3)}: ${counted(count, "label")}, ${whole(issues[i])} called wrong`;
    const bar = (name, n) => shape("rect", { class: name, ...size, y: floor - up(n), height: up(n) });
    parts.push(shape("g", null, shape("title", null, title), bar("rows", count), bar("issues", issues[i])));
  });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    parts.push(shape("text", { x: qualityAt(tick), y: floor + 14, "text-anchor": "middle" }, String(tick)));
  }
  parts.push(shape("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "label quality: P(the given label is right)"));
  const words = cutWords(cuts);
  return shape("svg", {
    class: "histogram", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Histogram of label quality: ${counted(sum(rows), "label")}, ${whole(sum(issues))} called wrong; ${words}`,
  }, ...parts, ...drawCut(cuts, words, floor), shape("rect", { class: "brush", y: top, height: floor - top, width: 0 }));
}

function cutWords(cuts) {
  if (!cuts.length) return "no cut is known";
  const [low, high] = [Math.min(...cuts), Math.max(...cuts)].map((cut) => cut.toFixed(2));
  return low === high ? `cut ${low}` : `cuts ${low} to ${high}, by class`;
}

function drawCut(cuts, words, floor) {
  if (!cuts.length) return [];
  const low = qualityAt(Math.min(...cuts, 1)), high = qualityAt(Math.min(Math.max(...cuts), 1)), half = 3.2 * words.length; // pixels, about
  const middle = Math.min(Math.max((low + high) / 2, half), BARS.width - half);
  const line = (x) => shape("line", { class: "cut", x1: x, x2: x, y1: BARS.top - 4, y2: floor });
  return [
    shape("rect", { class: "cuts", x: low, width: high - low, y: BARS.top - 4, height: floor - BARS.top + 4 }), line(low), line(high),
    shape("text", { class: "cut-words", x: middle, y: BARS.top - 6, "text-anchor": "middle" }, words),
  ];
}

function brush(histogram, bins, take) { // drag over bars, or click one: whole bars
  const box = histogram.querySelector(".brush");
  let from = null;
  const at = (event) => {
    const { left, width } = histogram.getBoundingClientRect(), x = ((event.clientX - left) / width) * BARS.width;
    return Math.min(Math.max((x - BARS.left) / (BARS.width - BARS.left - BARS.right), 0), 1);
  };
  const range = (event) => {
    const [low, high] = [from, at(event)].sort((one, two) => one - two);
    const first = Math.min(Math.floor(low * bins), bins - 1);
    return [first / bins, Math.max(Math.ceil(high * bins), first + 1) / bins];
  };
  const show = ([low, high]) => {
    box.setAttribute("x", qualityAt(low));
    box.setAttribute("width", qualityAt(high) - qualityAt(low));
  };
  histogram.addEventListener("pointerdown", (event) => {
    from = at(event);
    histogram.setPointerCapture(event.pointerId);
    show(range(event));
  });
  histogram.addEventListener("pointermove", (event) => { if (from !== null) show(range(event)); });
  histogram.addEventListener("pointerup", (event) => {
    const taken = range(event);
    from = null;
    take(...taken);
  });
  histogram.addEventListener("pointercancel", () => { from = null; box.setAttribute("width", 0); });
}

function drawBar(value, most, text) {
  const bar = make("i", null);
  bar.style.width = `${(100 * value) / (most || 1)}%`;
  return make("div", { class: "bar" }, bar, make("span", null, text));
}
