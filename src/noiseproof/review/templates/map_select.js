"use strict";
// Choosing rows on the map: by pointer, by lasso, by keyboard.

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
