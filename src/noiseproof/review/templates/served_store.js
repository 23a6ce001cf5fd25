"use strict";
// A server on this machine; what it has not yet confirmed waits here, in order, and is counted on the page.
class ServedStore {
  static async open() {
    const store = new ServedStore();
    const answer = await store.ask("/api/audit");
    store.audit = answer;
    store.progress = answer.progress;
    store.measured = answer.measured;
    store.next = `\`${answer.apply}\` in the terminal`;
    store.version = answer.version;
    store.where = `Every decision is saved at once in ${answer.saved_in}.`;
    return store;
  }

  waiting = [];
  busy = null;

  get unsaved() {
    return this.waiting.length;
  }

  get searched() {
    return this.audit.searches_cells ? "ids and cells" : "ids only"; // pictures and numbers have no words
  }

  async ask(path, options) {
    // Another audit may be served at this address by now: the server refuses requests with the key of another audit.
    const headers = { "noiseproof-tab": people.tab, ...options?.headers, ...(this.audit && { "noiseproof-audit": this.audit.key }) };
    const answer = await fetch(`.${path}`, { credentials: "same-origin", ...options, headers }).catch(() => {
      throw new Error("The server does not answer. Is it still running?");
    });
    if (answer.ok) return answer.json();
    const detail = await answer.json().then((body) => body.detail, () => answer.statusText);
    throw Object.assign(new Error(typeof detail === "string" ? detail : JSON.stringify(detail)), { status: answer.status });
  }

  async send(path, body, options) {
    return this.ask(path, { ...options, method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  }

  async read() {
    this.update(await this.ask("/api/audit"));
  }

  update({ progress, measured, new_classes = this.audit.new_classes, spellings = this.audit.spellings }) {
    Object.assign(this, { progress, measured });
    Object.assign(this.audit, { new_classes, spellings });
  }

  kept = new WeakMap(); // filter → the key of its rows: they stay listed when they are decided

  async conditions(filter, more) { // by the names of the query's parameters
    const { rows, state, ...rest } = filter, query = { ...more };
    for (const [name, value] of Object.entries(rest)) {
      if (value !== NO_FILTER[name]) query[name] = ["given", "suggested"].includes(name) ? this.audit.classes.indexOf(value) : value;
    }
    if (rows || state) {
      if (!this.kept.has(filter)) this.kept.set(filter, this.keep(rows, state));
      query.selection = await this.kept.get(filter);
    }
    return query;
  }

  async keep(rows, state) {
    await this.busy;
    return (await this.send("/api/selections", { rows, filter: { state } })).selection;
  }

  async list(path, filter, more) {
    const list = async () => this.ask(`${path}?${new URLSearchParams(await this.conditions(filter, more))}`);
    return list().catch((error) => {
      const hadKept = this.kept.delete(filter);
      if (!hadKept || error.status !== 410) throw error;
      return list(); // the server was started anew
    });
  }

  async page(filter, offset) {
    return this.list("/api/issues", filter, { offset, limit: PAGE });
  }

  async nextOpen(filter, after) {
    await this.busy; // what waits is decided, too
    const { position, waiting_for = [] } = await this.list("/api/issues/next", filter, { after });
    this.waitingFor = waiting_for;
    return position;
  }

  async content(row) {
    return this.ask(`/api/rows/${row}`);
  }

  async context(row) {
    return this.ask(`/api/context/${row}`);
  }

  async overview() {
    await this.busy; // what waits is decided, too
    return this.ask("/api/overview");
  }

  async map() {
    return this.ask("/api/map");
  }

  async brief(row) {
    return this.ask(`/api/map/${row}`);
  }

  picture(row, side) {
    return `./api/rows/${row}/picture?side=${side}&audit=${this.audit.key}`; // browsers cache pictures by their address
  }

  save(row, decision, more) { // more: label, new_class, note or settles, where they belong to the decision
    this.post({ row, decision, ...more });
  }

  async decideMany({ filter, ...body }) { // decision, label, rows or a filter with ranges; one undo takes all back
    return this.act("/api/decisions/many", filter ? { ...body, filter: await this.conditions(filter) } : body);
  }

  async merge(given_label, label) {
    return this.act("/api/merges", { given_label, label });
  }

  async undo() { // the last action of this reviewer by the log of the server, also before the page was opened
    return this.act("/api/undo", {});
  }

  async act(path, body) {
    await this.busy; // what waits comes first
    const answer = await this.send(path, body);
    this.update(answer);
    return answer;
  }

  post(body) {
    this.waiting.push(body);
    this.busy ??= this.sendWaiting().finally(() => { this.busy = null; });
    showProgress();
  }

  async sendWaiting() {
    for (let tries = 0; this.waiting.length; showProgress()) {
      const answer = await this.send("/api/decisions", this.waiting[0]).catch((error) => ({ error }));
      const { error } = answer;
      if (!error || [404, 409, 422].includes(error.status)) {
        const { row } = this.waiting.shift();
        error ? this.refused(row, error) : this.saved(answer, tries);
        tries = 0;
      } else {
        tries++;
        say(`Not saved yet: ${this.waiting.length}. ${error.message}`, true);
        await pause(Math.min(500 * tries, 5000));
      }
    }
  }

  saved(answer, tries) {
    this.update(answer);
    if (tries) say("Saved.");
    if (this.audit.measure) measuring.show(answer);
  }

  refused(row, error) {
    view.words.delete(row);
    drawSoon();
    say(`Refused: ${error.message}`, true);
    if (this.audit.measure) measuring.read().catch((again) => say(again.message, true));
  }
}
