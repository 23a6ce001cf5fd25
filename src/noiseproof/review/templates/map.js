"use strict";
// The map: all rows in the plane on a canvas, labels called wrong as rings; a lasso or the keyboard selects among these.

const COLORED = 10, PADDING = 12, NEAR = 50; // classes; pixels; rows selected around one
const MANY = 3000; // labels called wrong that are squares: rings take longer to draw
const MAP_HELP = "Drag around rows to select them, click one to open it; Shift and drag moves the map. Keys: arrows move between labels called wrong, Enter opens one, "
  + `Space at two of them selects the rectangle between, n the ${NEAR} nearest.`;

function decodeNumbers(text, Kind) { // base64 of little-endian numbers
  return new Kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

function insideOf(polygon) { // whether a point is inside, by the even-odd rule
  const xs = Float64Array.from(polygon, ([x]) => x), ys = Float64Array.from(polygon, ([, y]) => y), count = xs.length;
  return ([x, y]) => {
    let inside = false;
    for (let i = 0, j = count - 1; i < count; j = i++) {
      if (ys[i] > y !== ys[j] > y && x < ((xs[j] - xs[i]) * (y - ys[i])) / (ys[j] - ys[i]) + xs[i]) inside = !inside;
    }
    return inside;
  };
}

const map = {
  points: null, // columns of the map: row, given, x, y; the first `issues` of them are called wrong
  lit: null, // colour that is not dimmed
  at: null, // point under the keyboard's cursor
  corner: null, // first corner of a rectangle
  lasso: null,

  async show() {
    if (this.points) return this.resize();
    for (;;) {
      const answer = await store.map().catch((error) => ({ note: error.message }));
      if (answer.row) return this.open(answer);
      overview.fill("map", [make("p", { class: "faint", role: "status" }, answer.note ?? "The map is computed …")]);
      if (!answer.pending || this.waiting) return;
      this.waiting = pause(700).then(() => { this.waiting = null; if (views.current === "overview") this.show(); });
      return;
    }
  },

  open(answer) {
    const kinds = { row: Uint32Array, given: Uint16Array, x: Uint16Array, y: Uint16Array };
    this.points = { ...answer, ...Object.fromEntries(Object.entries(kinds).map(([name, Kind]) => [name, decodeNumbers(answer[name], Kind)])) };
    this.everything = store.audit.total >= store.audit.rows; // others can be decided, too
    this.color = this.colors();
    overview.fill("map", this.parts());
    new ResizeObserver(() => this.resize()).observe(byId("map-frame"));
    document.addEventListener("themechange", () => this.draw());
    this.listen(byId("map-top"));
    this.resize();
  },

  colors() { // of each class: the most frequent ten, then 10 for all others
    const counts = store.audit.classes.map(() => 0);
    for (const k of this.points.given) counts[k]++;
    const order = [...counts.keys()].filter((k) => counts[k]).sort((one, two) => counts[two] - counts[one] || one - two);
    const first = order.slice(0, COLORED).sort((one, two) => one - two);
    this.names = first.map((k) => readable(store.audit.classes[k]));
    if (order.length > COLORED) this.names.push(counted(order.length - COLORED, "other"));
    const color = new Uint8Array(counts.length).fill(COLORED);
    first.forEach((k, i) => { color[k] = i; });
    return color;
  },

  parts() {
    const { method, by, rows, row, beyond } = this.points;
    const sampled = row.length < rows ? `${whole(row.length)} of ${whole(rows)} rows: labels called wrong first, then a random sample. ` : `${counted(rows, "row")}. `;
    const far = beyond ? `${counted(beyond, "far row")} at the edge. ` : "";
    const legend = this.names.map((name, i) => {
      const color = make("i", { class: `color-${i < COLORED ? i : "other"}` });
      return makeButton([color, name], () => this.light(i), { "aria-pressed": "false", class: "swatch" });
    });
    const near = makeButton([`${NEAR} nearest `, make("kbd", null, "n")], () => this.selectNearest());
    const label = `Map of ${counted(row.length, "row")} by their given labels; ${counted(this.points.issues, "label")} called wrong. Arrow keys move.`;
    return [
      make("div", { id: "map-frame" }, make("canvas", { id: "map-points", "aria-hidden": "true" }),
        make("canvas", { id: "map-top", tabindex: 0, role: "application", "aria-label": label, "aria-describedby": "map-help" }),
        make("div", { id: "map-hint", "aria-hidden": "true", hidden: "" })),
      make("div", { class: "tools", role: "group", "aria-label": "Given labels" }, ...legend),
      make("p", { id: "map-status", class: "faint", role: "status" }, this.points.issues ? `${this.points.issues > MANY ? "Squares with an edge" : "Rings"} are labels called wrong.` : ""),
      make("div", { class: "tools" }, ...this.zoomTools(), near),
      make("p", { id: "map-help", class: "faint" }, `${sampled}${far}${method} of the ${by}. ${MAP_HELP}`),
    ];
  },

  light(i) { // one class alone, or all again
    this.lit = this.lit === i ? null : i;
    [...document.querySelectorAll("#map .swatch")].forEach((button, at) => button.setAttribute("aria-pressed", at === this.lit));
    this.draw();
  },

  // --- drawing

  resize() {
    const frame = byId("map-frame"), { x, y } = this.points;
    if (!frame?.clientWidth) return;
    const width = frame.clientWidth, height = frame.clientHeight, ratio = devicePixelRatio;
    let [wide, high] = [1, 1];
    for (let i = 0; i < x.length; i++) { wide = Math.max(wide, x[i]); high = Math.max(high, y[i]); }
    const scale = Math.min((width - 2 * PADDING) / wide, (height - 2 * PADDING) / high);
    this.whole = scale;
    this.layout = { scale, left: (width - scale * wide) / 2, bottom: (height + scale * high) / 2, width, height, ratio };
    for (const id of ["map-points", "map-top"]) Object.assign(byId(id), { width: width * ratio, height: height * ratio });
    this.draw();
  },

  place(i) { // pixels of the canvas; y points up
    const { scale, left, bottom } = this.layout;
    return [left + scale * this.points.x[i], bottom - scale * this.points.y[i]];
  },

  brushOf(id) {
    const pen = byId(id).getContext("2d"), { width, height, ratio } = this.layout;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  },

  draw() {
    if (!this.layout) return;
    const pen = this.brushOf("map-points"), { given, row, issues } = this.points, ink = getComputedStyle(byId("map")).color;
    const colors = [...document.querySelectorAll("#map .swatch i")].map((swatch) => getComputedStyle(swatch).backgroundColor);
    const size = row.length > 20000 ? 2 : row.length > 3000 ? 3 : 4, alpha = (color) => (this.lit === null || this.lit === color ? 0.8 : 0.07);
    const square = (i, side) => { const [x, y] = this.place(i); return [x - side / 2, y - side / 2, side, side]; };
    for (let color = 0; color < colors.length; color++) {
      pen.fillStyle = colors[color];
      pen.globalAlpha = alpha(color);
      for (let i = issues; i < row.length; i++) if (this.color[given[i]] === color) pen.fillRect(...square(i, size));
    }
    pen.strokeStyle = ink;
    for (let i = issues - 1; i >= 0; i--) { // the worst on top
      pen.fillStyle = colors[this.color[given[i]]];
      pen.globalAlpha = alpha(this.color[given[i]]);
      if (issues > MANY) {
        pen.fillRect(...square(i, 5));
        pen.strokeRect(...square(i, 5));
        continue;
      }
      pen.beginPath();
      pen.arc(...this.place(i), 4.5, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    }
    this.drawTop();
  },

  drawTop() {
    const pen = this.brushOf("map-top"), style = getComputedStyle(byId("map-top"));
    pen.strokeStyle = pen.fillStyle = style.color; // the accent
    pen.lineWidth = 2;
    if (this.lasso?.length > 1) {
      pen.beginPath();
      this.lasso.forEach(([x, y]) => pen.lineTo(x, y));
      pen.closePath();
      pen.stroke();
      pen.globalAlpha = 0.12;
      pen.fill("evenodd");
      pen.globalAlpha = 1;
    }
    for (const i of [this.at, this.corner]) {
      if (i === null) continue;
      const [x, y] = this.place(i);
      pen.strokeRect(x - 9, y - 9, 18, 18);
    }
  },
};

// --- choosing rows on the map: by pointer, by lasso, by keyboard

Object.assign(map, {
  listen(canvas) {
    const at = (event) => {
      const { left, top } = canvas.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.shiftKey) this.panning = true;
      else this.lasso = [at(event)];
      canvas.setPointerCapture(event.pointerId);
      this.hint(null);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.panning) return this.pan(event.movementX, event.movementY);
      if (!this.lasso) return this.hint(this.nearest(at(event), 10));
      this.lasso.push(at(event));
      this.drawTop();
    });
    canvas.addEventListener("pointerup", (event) => {
      this.panning = false;
      if (!this.lasso) return;
      const path = [...this.lasso, at(event)], [x, y] = path[0];
      this.lasso = null;
      this.drawTop();
      if (path.some(([px, py]) => Math.hypot(px - x, py - y) > 6)) return this.select(this.within(path));
      const i = this.nearest([x, y], 10);
      if (i !== null) this.enter(i);
    });
    canvas.addEventListener("pointercancel", () => { this.lasso = this.panning = null; this.drawTop(); });
    canvas.addEventListener("wheel", (event) => this.turn(event, at(event)), { passive: false });
    canvas.addEventListener("pointerleave", () => this.hint(null));
    canvas.addEventListener("keydown", (event) => this.press(event));
  },

  decidable() { // how many of the points can be decided: the labels called wrong come first
    return this.everything ? this.points.row.length : this.points.issues;
  },

  within(polygon) {
    const isInside = insideOf(polygon);
    return [...this.points.row.keys()].filter((i) => isInside(this.place(i)));
  },

  async select(inside) {
    const rows = inside.filter((i) => i < this.decidable()).map((i) => this.points.row[i]);
    if (rows.length) return overview.list({ rows }, "grid");
    say(`There is no label called wrong among ${counted(inside.length, "row")}.`);
  },

  nearest(to, within = Infinity) { // point, labels called wrong before others that are as near
    let [best, least] = [null, within];
    for (let i = 0; i < this.points.row.length; i++) {
      const [x, y] = this.place(i), apart = Math.hypot(x - to[0], y - to[1]) + (i < this.points.issues ? 0 : 2);
      if (apart < least) [best, least] = [i, apart];
    }
    return best;
  },

  // --- one row

  async brief(i) { // what a row is, in short
    const row = this.points.row[i];
    this.known ??= new Map();
    if (!this.known.has(row)) this.known.set(row, store.brief(row).catch(() => ({ row, id: String(row) })));
    const about = await this.known.get(row), label = store.audit.classes[this.points.given[i]];
    return { ...about, label, is_issue: i < this.points.issues };
  },

  async hint(i) {
    const box = byId("map-hint");
    if (i === this.hinted) return;
    this.hinted = i;
    box.hidden = true;
    await pause(60); // whoever passes over many rows asks for none
    if (i === null || this.hinted !== i) return;
    const about = await this.brief(i);
    if (this.hinted !== i) return;
    const [x, y] = this.place(i), { width } = this.layout;
    const image = about.image ?? (about.has_image ? store.picture(about.row, 96) : null);
    box.replaceChildren(...[image ? make("img", { src: image, alt: "" }) : null, make("strong", null, briefly(about)), image ? null : make("span", { class: "snippet" }, rowWords(about))].filter(Boolean));
    box.style.left = `${x < width / 2 ? x + 12 : x - 12}px`;
    box.style.top = `${y}px`;
    box.classList.toggle("leftward", x >= width / 2);
    box.hidden = false;
  },

  async enter(i) {
    if (i < this.decidable()) return overview.list({ rows: [this.points.row[i]] }, "list");
    const about = await this.brief(i);
    return openOther({ given: about.label, suggested: about.label }, about);
  },

  // --- the keyboard

  press(event) {
    const [right, down] = ARROWS[event.key] ?? [];
    const act = this.zoomKey(event) ?? {
      Enter: () => { if (this.at !== null) this.enter(this.at); }, " ": () => this.putCorner(), n: () => this.selectNearest(),
      Escape: this.corner === null ? null : () => { this.corner = null; this.drawTop(); },
    }[event.key] ?? (right === undefined ? null : () => this.move(right, down));
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    return act();
  },

  async move(right, down) { // to the nearest label called wrong in this direction
    const count = this.points.issues || this.points.row.length, [x, y] = this.center();
    let [best, least] = [null, Infinity];
    for (let i = 0; i < count; i++) {
      const [px, py] = this.place(i), along = (px - x) * right + (py - y) * down, across = Math.abs((px - x) * down + (py - y) * right);
      const apart = along + 2 * across;
      if (along > 0 && apart < least) [best, least] = [i, apart];
    }
    if (best === null) return;
    this.at = best;
    this.drawTop();
    const about = await this.brief(best);
    if (this.at === best) byId("map-status").textContent = briefly(about);
  },

  putCorner() {
    if (this.at === null) return;
    if (this.corner === null) {
      this.corner = this.at;
      byId("map-status").textContent = "One corner is set. Move on, and press Space for the other.";
      return this.drawTop();
    }
    const [[ax, ay], [bx, by]] = [this.place(this.corner), this.place(this.at)], [left, right] = [Math.min(ax, bx), Math.max(ax, bx)];
    this.corner = null;
    const inside = [...this.points.row.keys()].filter((i) => {
      const [x, y] = this.place(i);
      return x >= left && x <= right && y >= Math.min(ay, by) && y <= Math.max(ay, by);
    });
    return this.select(inside);
  },

  selectNearest() {
    const [x, y] = this.center();
    const apart = (i) => { const [px, py] = this.place(i); return Math.hypot(px - x, py - y); };
    const points = [...Array(this.decidable()).keys()].map((i) => [apart(i), i]).sort(([one], [two]) => one - two);
    return this.select(points.slice(0, NEAR).map(([, i]) => i));
  },
});

function briefly({ label, suggested, is_issue: isIssue, ...row }) {
  const more = isIssue ? (suggested ? `, suggested ${readable(suggested)}` : ", called wrong") : "";
  return `${named(row)}: ${readable(label)}${more}`;
}

// --- zoom and pan of the map: buttons, the keys + − 0 and Shift with the arrows or with a drag, Ctrl with the wheel

const CLOSEST = 64; // times as large as the whole map

Object.assign(map, {
  zoomBy(factor, [x, y] = this.center()) { // what is at (x, y) stays there
    const { layout } = this, { scale } = layout;
    const times = Math.min(factor, (CLOSEST * this.whole) / scale);
    if (scale * times <= this.whole) return this.resize(); // all of it again
    Object.assign(layout, { scale: scale * times, left: x - (x - layout.left) * times, bottom: y - (y - layout.bottom) * times });
    this.drawSoon();
  },

  center() { // the row under the keyboard's cursor, or the middle
    return this.at === null ? [this.layout.width / 2, this.layout.height / 2] : this.place(this.at);
  },

  pan(right, down) {
    if (this.layout.scale === this.whole) return;
    this.layout.left += right;
    this.layout.bottom += down;
    this.drawSoon();
  },

  drawSoon() {
    this.drawing ??= requestAnimationFrame(() => { this.drawing = null; this.draw(); });
  },

  zoomTools() {
    const button = (sign, key, label, act) => makeButton(sign, act, { "aria-label": label, title: `${label} (${key})` });
    return [button("+", "+", "Zoom in", () => this.zoomBy(1.5)), button("−", "-", "Zoom out", () => this.zoomBy(1 / 1.5)),
      button("All", "0", "Show all of the map", () => this.resize())];
  },

  zoomKey({ key, shiftKey }) { // what a key does, if anything
    const [right, down] = ARROWS[key] ?? [];
    if (right !== undefined) return shiftKey ? () => this.pan(-60 * right, -60 * down) : null;
    return { "+": () => this.zoomBy(1.5), "-": () => this.zoomBy(1 / 1.5), 0: () => this.resize() }[key] ?? null;
  },

  turn(event, at) { // the wheel, with Ctrl, as trackpads send a pinch
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY / 300), at);
  },
});
