"use strict";
const ACROSS = 3; // panels side by side
const NARROW = 640; // px: below this width panels are stacked
const drawn = new Map(); // plot element → { table, plot }
const off = new Set(); // series that are switched off, as "column\nvalue"
let plotlyReady = null;

// The columns of a figure's CSV, as text.
function parseCsv(text) {
  const rows = [[]];
  const cell = /("(?:[^"]|"")*"|[^,\n]*)(,|\n|$)/y;
  while (cell.lastIndex < text.length) {
    const [, raw, end] = cell.exec(text);
    rows.at(-1).push(raw.startsWith('"') ? raw.slice(1, -1).replaceAll('""', '"') : raw);
    if (end === "\n" && cell.lastIndex < text.length) rows.push([]);
    if (end === "," && cell.lastIndex === text.length) rows.at(-1).push("");
  }
  const names = rows.shift();
  return Object.fromEntries(names.map((name, n) => [name, rows.map((row) => row[n])]));
}

const escapeText = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function number(cell) {
  const value = cell === "" ? NaN : Number(cell);
  return Number.isFinite(value) ? value : null;
}

class Table {
  constructor({ csv, numbers }) {
    this.csv = csv;
    this.columns = parseCsv(csv);
    this.numbers = new Set(numbers);
  }

  rows(where) {
    const conditions = Object.entries(where).map(([name, cell]) => [this.columns[name], cell]);
    return Object.values(this.columns)[0].map((_, row) => row)
      .filter((row) => conditions.every(([cells, cell]) => cells[row] === cell));
  }

  at(name, rows) {
    const cells = this.columns[name];
    return rows.map((row) => (this.numbers.has(name) ? number(cells[row]) : escapeText(cells[row])));
  }

  column({ $column, minus, where }) {
    const rows = this.rows(where);
    const found = this.at($column, rows);
    if (!minus) return found;
    const less = this.at(minus, rows);
    return found.map((value, n) => (value === null || less[n] === null ? null : value - less[n]));
  }

  grid({ $grid, of, where }) {
    const rows = this.rows(where).filter((row) => this.columns[of[2]][row] !== "");
    const [xs, ys] = of.slice(0, 2).map((name) => {
      const distinct = [...new Set(this.at(name, rows))];
      return this.numbers.has(name) ? distinct.sort((a, b) => a - b) : distinct;
    });
    if ($grid !== "z") return $grid === "x" ? xs : ys;
    const z = ys.map(() => xs.map(() => null));
    const [x, y, value] = of.map((name) => this.at(name, rows));
    const [column, line] = [xs, ys].map((names) => new Map(names.map((name, n) => [name, n])));
    rows.forEach((_, n) => { z[line.get(y[n])][column.get(x[n])] = value[n]; });
    return z;
  }

  // A trace with columns in place of their names.
  fill(value) {
    if (Array.isArray(value)) return value.map((part) => this.fill(part));
    if (value === null || typeof value !== "object") return value;
    if ("$column" in value) return this.column(value);
    if ("$grid" in value) return this.grid(value);
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, this.fill(part)]));
  }
}

function hasWebGL() {
  const canvas = document.createElement("canvas");
  return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
}

// Surfaces as contours, in a browser without WebGL.
function flatten(plot) {
  for (const trace of plot.data) {
    const n = suffix(trace.meta.panel);
    Object.assign(trace, { type: "contour", xaxis: `x${n}`, yaxis: `y${n}` });
    delete trace.scene;
    const { xaxis, yaxis } = plot.layout[`scene${n}`] ?? {};
    if (xaxis) Object.assign(plot.layout, { [`xaxis${n}`]: { ...xaxis, anchor: `y${n}` }, [`yaxis${n}`]: { ...yaxis, anchor: `x${n}` } });
    delete plot.layout[`scene${n}`];
  }
}

function loadPlotly() {
  plotlyReady ??= unpack(document.getElementById("_plotly").textContent).then((code) => {
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
  });
  return plotlyReady;
}

const isNarrow = (element) => element.clientWidth < NARROW;
const isOff = ({ keys }) => keys.some(([column, value]) => off.has(`${column}\n${value}`));
const suffix = (panel) => (panel ? String(panel + 1) : "");

// Colours of the dark theme in place of the light ones.
function recolor(value, colors) {
  if (typeof value === "string" && value.startsWith("#")) return (colors[value.slice(0, 7)] ?? value.slice(0, 7)) + value.slice(7);
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, recolor(part, colors)]));
}

// A layout with only these panels.
function arrange(layout, panels, across) {
  const rows = Math.ceil(panels.length / across);
  const columns = Math.ceil(panels.length / rows);
  const axes = (panel) => [`xaxis${suffix(panel)}`, `yaxis${suffix(panel)}`, `scene${suffix(panel)}`];
  const kept = new Set(panels.flatMap(axes));
  for (const name of Object.keys(layout)) if (/^([xy]axis|scene)\d*$/.test(name) && !kept.has(name)) delete layout[name];
  layout.annotations = layout.annotations.filter(({ xref }) => kept.has(xref.replace(" domain", "").replace("x", "xaxis")));
  const cells = Array.from({ length: rows }, () => Array(columns).fill(""));
  const leader = `y${suffix(panels[0])}`;
  panels.forEach((panel, n) => {
    const [row, column] = [Math.floor(n / columns), n % columns];
    const [, y, scene] = axes(panel).map((name) => layout[name]);
    if (scene) { scene.domain = { row, column }; return; }
    cells[row][column] = `x${suffix(panel)}y${suffix(panel)}`;
    if (y.matches) { if (n) y.matches = leader; else delete y.matches; }
    if (y.matches && column) delete y.title;
  });
  layout.grid = { ...layout.grid, rows, columns, subplots: cells };
  layout.height = (across === 1 && rows > 1 ? 60 : 110) + (across === 1 && rows > 1 ? 270 : 310) * rows;
}

// The visible series of a figure, for its width and theme.
function look(element, { traces, plot }) {
  const css = getComputedStyle(element);
  const narrow = isNarrow(element);
  let data = traces.map((trace) => ({ ...recolor(trace, theme.dark ? plot.dark : {}), visible: !isOff(trace.meta) }));
  const layout = structuredClone(plot.layout);
  const shown = new Set(data.filter((trace) => trace.visible).map((trace) => trace.meta.panel));
  if (shown.size) data = data.filter((trace) => shown.has(trace.meta.panel)); // without empty axes
  const panels = [...new Set(data.map((trace) => trace.meta.panel))].sort((a, b) => a - b);
  arrange(layout, panels.length ? panels : [0], narrow ? 1 : ACROSS);
  const lines = { gridcolor: css.borderTopColor, zerolinecolor: css.borderTopColor, linecolor: css.borderTopColor };
  for (const [name, part] of Object.entries(layout)) {
    if (/^[xy]axis\d*$/.test(name)) Object.assign(part, lines, { automargin: true });
    if (/^scene\d*$/.test(name)) for (const along of "xyz") Object.assign(part[`${along}axis`], lines, { tickfont: { size: 10 } });
  }
  Object.assign(layout, {
    autosize: true, showlegend: false, uirevision: "keep", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css.color, family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 13 },
    hoverlabel: { bgcolor: css.backgroundColor, bordercolor: css.borderTopColor, font: { color: css.color }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css.color, activecolor: css.color },
  });
  if (narrow) layout.margin = { ...layout.margin, l: 45, r: 10 };
  if (narrow && layout.coloraxis) {
    const title = { ...layout.coloraxis.colorbar.title, side: "top" };
    const flat = { orientation: "h", y: 1, yref: "container", yanchor: "top", x: 0.5, xanchor: "center", len: 0.9, title };
    layout.coloraxis.colorbar = { ...layout.coloraxis.colorbar, ...flat };
    layout.margin.t = 90;
    layout.height += 60;
  }
  return [data, layout];
}

const CONFIG = { responsive: false, displaylogo: false, displayModeBar: "hover" };

async function draw(element) {
  if (drawn.has(element)) return;
  drawn.set(element, null); // in progress
  const { table, plot } = await read(element.dataset.figure);
  await loadPlotly();
  if (plot.data.some((trace) => trace.type === "surface") && !hasWebGL()) flatten(plot);
  const figure = { traces: table.fill(plot.data), plot };
  drawn.set(element, figure);
  figure.narrow = isNarrow(element);
  await Plotly.newPlot(element, ...look(element, figure), CONFIG);
  element.style.minHeight = "";
  element.dataset.drawn = String(element.clientWidth);
}

function redraw(element, figure) {
  if (!figure) return;
  if (figure.narrow !== isNarrow(element)) Plotly.purge(element); // plotly keeps parts of a colour bar that turns
  figure.narrow = isNarrow(element);
  Plotly.react(element, ...look(element, figure), CONFIG);
}

async function read(id) {
  const { plot, ...data } = JSON.parse(await unpack(document.getElementById(`${id}-data`).textContent));
  return { table: new Table(data), plot };
}

function show(column, value, on) {
  const key = `${column}\n${value}`;
  if (on) off.delete(key); else off.add(key);
  for (const button of document.querySelectorAll(".switch")) {
    if (button.dataset.column === column && button.dataset.value === value) button.setAttribute("aria-pressed", String(on));
  }
}

function update(column) {
  for (const [element, figure] of drawn) {
    if (figure?.traces.some((trace) => trace.meta.keys.some(([name]) => name === column))) redraw(element, figure);
  }
}

for (const button of document.querySelectorAll(".switch")) {
  const { column, value } = button.dataset;
  button.addEventListener("click", () => {
    show(column, value, off.has(`${column}\n${value}`));
    update(column);
  });
  button.addEventListener("dblclick", () => { // only this one, or all if only this one is shown
    const others = [...document.querySelectorAll(".switch")]
      .filter((other) => other.dataset.column === column && other.dataset.value !== value);
    const alone = others.every((other) => off.has(`${column}\n${other.dataset.value}`));
    for (const other of others) show(column, other.dataset.value, alone);
    show(column, value, true);
    update(column);
  });
}

for (const button of document.querySelectorAll("[data-csv]")) {
  button.addEventListener("click", async () => {
    const { table } = await read(button.dataset.csv);
    saveAs(`${button.dataset.csv}.csv`, table.csv, "text/csv");
  });
}

const plots = document.querySelectorAll(".plot");
if (typeof DecompressionStream === "undefined") {
  for (const element of plots) element.textContent = "This browser is too old to draw the plot (it has no DecompressionStream).";
} else {
  const nearby = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "800px" });
  for (const element of plots) nearby.observe(element);
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.dataset.drawn && target.dataset.drawn !== String(target.clientWidth)) {
        target.dataset.drawn = String(target.clientWidth);
        redraw(target, drawn.get(target));
      }
    }
  });
  for (const element of plots) sized.observe(element);
  document.addEventListener("themechange", () => drawn.forEach((figure, element) => redraw(element, figure)));
  addEventListener("beforeprint", () => plots.forEach(draw));
}
if (matchMedia("(max-width: 60rem)").matches) {
  for (const details of document.querySelectorAll("nav details")) details.open = false;
}
