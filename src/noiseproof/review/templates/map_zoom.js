"use strict";
// Zoom and pan of the map: buttons, the keys + − 0 and Shift with the arrows or with a drag, Ctrl with the wheel.

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
