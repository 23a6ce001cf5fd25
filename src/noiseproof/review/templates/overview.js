"use strict";
// The whole: confused pairs of classes, qualities, noise by class, progress, and the map (map.js). Each part leads to its rows.

const MOST_CLASSES = 30, FIRST_CLASSES = 15, FIRST_RATES = 12; // in a matrix; in that of more classes; in the table of rates

const overview = {
  added: [], // classes chosen for the matrix of many
  chosen: null, // number of the class whose histogram is shown
  allRates: false,

  async show() {
    byId("overview").setAttribute("aria-busy", "true"); // numbers of an earlier visit
    const data = await store.overview().catch((error) => { say(error.message, true); });
    if (!data) return;
    this.data = data;
    if (!byId("map")) this.build();
    this.draw();
    byId("overview").removeAttribute("aria-busy");
    await map.show();
  },

  build() {
    const { issues } = this.data.matrix, part = (id, title) => make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), make("div", null));
    const findings = part("findings", issues.length ? "Other issues of the data" : "Issues of the data");
    byId("overview").replaceChildren(
      make("div", { id: "whole" }), ...(issues.length ? [part("matrix", "Suspected confusions")] : [findings]), part("map", "Map of the rows"),
      part("quality", "Quality of the labels"), part("rates", "Noise by class"), part("annotators", "Annotators"), ...(issues.length ? [findings] : []),
    );
  },

  draw() {
    byId("whole").replaceChildren(...this.wholeParts());
    if (byId("matrix")) this.fill("matrix", this.matrixParts());
    this.fill("quality", this.qualityParts());
    this.fill("rates", this.rateParts());
    this.fill("annotators", annotators.parts(this.data.annotators ?? []));
    byId("annotators").hidden = !this.data.annotators?.length;
    this.fill("findings", findingParts(this.data.findings ?? []));
    byId("findings").hidden = !this.data.findings?.length;
  },

  fill(id, parts) {
    byId(id).lastElementChild.replaceChildren(...parts.filter(Boolean));
  },

  async list(filter, name) { // the rows behind a number
    await setFilter(filter);
    if (view.total) return views.show(views.parts.has(name) ? name : "list");
    await setFilter();
    say("There is no label called wrong to show there.");
  },

  // --- the whole in words

  wholeParts() {
    const { noise_rate: rate, measured, classes, progress } = this.data, rows = sum(classes.rows), issues = sum(classes.issues);
    const percent = (value) => `${share(value)} %`;
    const facts = [
      ["called wrong", `${whole(issues)} of ${whole(rows)} labels`],
      rate && ["estimated noise", `${percent(rate.estimate)}, about ${counted(Math.round(rate.estimate * rows), "label")}`, `At least ${percent(rate.low)}, at most ${percent(rate.high)}.`],
      progress.total && ["decided", `${whole(progress.decided)} of ${whole(progress.total)}`],
      measured && ["wrong labels left", withInterval(measured.wrong_left, whole, ""), "Measured: in the data once the decisions are applied."],
    ];
    const begin = makeButton(["Decide, the worst label first ", make("kbd", null, "l")], () => views.show("list"), { class: "begin" });
    const verdict = store.audit.verdict ? [make("p", { id: "verdict", class: "sentence" }, store.audit.verdict)] : [];
    const questions = [
      "Begin with a few questions about rows chosen at random: the answers measure how many labels are wrong and set the cut. In the terminal: ",
      make("code", null, store.audit.first_questions ?? "noiseproof review … --measure 25"),
    ];
    return [
      ...(measured ? [] : [make("p", { id: "first-questions" }, ...questions)]),
      make("dl", null, ...facts.filter(Boolean).map(([name, value, title]) => make("div", { title }, make("dt", null, name), make("dd", null, value)))),
      ...verdict, ...(progress.total ? [begin] : []),
    ];
  },

  // --- classes × classes

  matrixClasses() {
    const { given, suggested, issues } = this.data.matrix, counts = store.audit.classes.map(() => 0);
    given.forEach((g, i) => { counts[g] += issues[i]; counts[suggested[i]] += issues[i]; });
    const all = [...counts.keys()];
    if (all.length <= MOST_CLASSES) return { shown: all, left: [] };
    const byCount = all.filter((k) => counts[k]).sort((one, two) => counts[two] - counts[one] || one - two);
    const first = new Set([...byCount.slice(0, FIRST_CLASSES), ...this.added]);
    return { shown: all.filter((k) => first.has(k)), left: byCount.filter((k) => !first.has(k)).map((k) => ({ k, count: counts[k] })) };
  },

  matrixParts() {
    const { given, suggested, issues, decided } = this.data.matrix, names = store.audit.classes, shownNames = names.map(readable);
    const { shown, left } = this.matrixClasses(), most = Math.max(...issues);
    const cells = new Map(given.map((g, i) => [`${g},${suggested[i]}`, i]));
    const head = (side, k) => make("th", { scope: side === "given" ? "row" : "col" }, this.button({ [side]: names[k] }, shownNames[k], `All ${side} ${shownNames[k]}`));
    const cell = (g, s) => {
      const i = cells.get(`${g},${s}`);
      if (i === undefined) return make("td", { class: g === s ? "same" : null });
      const open = issues[i] - decided[i], text = decided[i] ? `${whole(open)}/${whole(issues[i])}` : whole(open);
      const pair = `${shownNames[g]}, suggested ${shownNames[s]}`;
      const button = this.button({ given: names[g], suggested: names[s] }, open ? text : `✓ ${whole(issues[i])}`, open ? `${text} open: ${pair}` : `✓ ${whole(issues[i])} decided: ${pair}`);
      button.dataset.cell = `${g},${s}`;
      button.style.setProperty("--share", `${Math.round(6 + 36 * Math.sqrt(issues[i] / most))}%`);
      return make("td", null, button);
    };
    const lines = shown.map((g) => make("tr", null, head("given", g), ...shown.map((s) => cell(g, s))));
    const table = makeTable({
      class: shown.some((k) => names[k].length > 3) ? "matrix long" : "matrix", "aria-describedby": "matrix-help", keydown: moveInTable,
    }, [make("td", null), ...shown.map((s) => head("suggested", s))], lines);
    [...table.querySelectorAll("button")].forEach((button, i) => { button.tabIndex = i ? -1 : 0; });
    const help = "Labels called wrong that are open, of all. Rows: given label; columns: suggested. Select a pair to decide on its rows.";
    return [table, make("p", { id: "matrix-help", class: "matrix-help faint" }, help), left.length ? this.moreClasses(left) : null];
  },

  button(filter, text, label) {
    return makeButton(text, () => this.list(filter, "list"), { "aria-label": label, title: label });
  },

  moreClasses(left) {
    const items = left.map(({ k, count }) => ({ text: readable(store.audit.classes[k]), value: k, note: whole(count) }));
    const choose = () => chooser.open("Add a class to the matrix", items, (k) => { this.added.push(k); this.draw(); });
    return makeButton(`${whole(left.length)} more classes …`, choose, { class: "more" });
  },

  // --- qualities

  qualityParts() {
    const { histogram, classes } = this.data, names = store.audit.classes, k = this.chosen;
    const [rows, issues] = [histogram.rows, histogram.issues].map((table) => (k === null ? columnSums(table) : table[k]));
    const cuts = (k === null ? classes.cut.filter((_, at) => classes.rows[at]) : [classes.cut[k]]).filter((cut) => cut !== null);
    const chart = drawHistogram(rows, issues, cuts), [low, high, show] = this.rangeInputs();
    brush(chart, rows.length, (from, to) => { [low.value, high.value] = [from, to]; this.takeRange(low, high); });
    const choice = make("select", { "aria-label": "Labels of" }, make("option", { value: "" }, "All classes"), ...names.map((name, at) => make("option", { value: at }, readable(name))));
    choice.value = k ?? "";
    choice.addEventListener("change", () => { this.chosen = choice.value === "" ? null : Number(choice.value); this.fill("quality", this.qualityParts()); });
    const legend = make("p", { class: "faint" }, make("span", { class: "key issues" }, "called wrong"), make("span", { class: "key rows" }, "all labels"), "Drag over the bars to list their rows.");
    const keydown = (event) => event.stopPropagation(); // typing is no command
    const tools = make("div", { class: "tools", keydown }, choice, make("label", null, "from ", low), make("label", null, "to ", high), show);
    return [chart, legend, tools];
  },

  rangeInputs() {
    const input = (value) => make("input", { type: "number", min: 0, max: 1, step: "any", value });
    const [low, high] = [input(0), input(1)], show = makeButton("Show", () => this.takeRange(low, high));
    return [low, high, show];
  },

  takeRange(low, high) {
    const given = this.chosen === null ? null : store.audit.classes[this.chosen];
    return this.list({ given, low: Number(low.value), high: Number(high.value) }, "grid");
  },

  // --- rates

  rateParts() {
    const { rows, issues, decided, noise_rate: rate } = this.data.classes, names = store.audit.classes;
    const order = [...names.keys()].filter((k) => rows[k]).sort((one, two) => rate[two] - rate[one] || one - two);
    const shown = this.allRates ? order : order.slice(0, FIRST_RATES), most = Math.max(...rate);
    const number = (value) => make("td", { class: "number" }, whole(value));
    const name = (k) => (issues[k] ? this.button({ given: names[k] }, readable(names[k]), `Labels called wrong: ${readable(names[k])}`) : readable(names[k]));
    const lines = shown.map((k) => make("tr", null, make("th", { scope: "row" }, name(k)),
      make("td", null, drawBar(rate[k], most, `${share(rate[k])} %`)), number(issues[k]), number(decided[k]), number(rows[k])));
    const head = makeHead(["given label", "estimated noise", "called wrong", "decided", "rows"], (i) => i > 1);
    const showAll = () => { this.allRates = true; this.fill("rates", this.rateParts()); };
    const more = order.length > shown.length ? makeButton(`All ${whole(order.length)} classes`, showAll, { class: "more" }) : null;
    return [makeTable({ class: "rates" }, head, lines), more];
  },
};

function moveInTable(event) { // arrow keys move between the buttons of a table, which is one stop of the tab key
  const [right, down] = ARROWS[event.key] ?? [];
  if (right === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  const lines = [...event.currentTarget.rows], from = event.target.closest("td, th"), line = from.parentElement;
  for (let y = line.rowIndex + down, x = from.cellIndex + right; lines[y]?.cells[x]; y += down, x += right) {
    const button = lines[y].cells[x].querySelector("button");
    if (!button) continue;
    event.target.tabIndex = -1;
    button.tabIndex = 0;
    return button.focus();
  }
}

views.add("overview", {
  show: () => overview.show(),
  keys: { u: async () => { await undo(); await overview.show(); } },
});

// --- issues of columns, classes and of the whole: a sentence, labelled bars, and what to do

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

// --- those who labelled the data: quality with its interval, what they confuse, and the rows where they stand alone

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

// --- drawing for the overview: shapes, the histogram of qualities with its brush, bars

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
