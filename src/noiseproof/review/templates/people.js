"use strict";
// Other people, and other tabs of one person: who is where, what they decided, how far they agree.

const people = {
  seconds: 3, // between two looks at what others did
  tab: Math.random().toString(36).slice(2), // each tab is at a row of its own
  state: null,
  isActive: false, // a key or the mouse was used since the last look: only then the row stays this person's

  async start() {
    if (!store.send || store.audit.measure) return drawWho(store.audit.reviewer); // a page in a file has no reviewers
    for (const sign of ["keydown", "pointermove", "pointerdown", "wheel"]) {
      addEventListener(sign, () => { this.isActive = true; }, { passive: true, capture: true });
    }
    addEventListener("pagehide", () => this.at(null, { keepalive: true }));
    setInterval(() => this.look(), 1000 * this.seconds);
    await this.look();
  },

  get row() { // that this tab works on: nobody needs one that is decided
    const issue = views.current === "list" ? issueAt(view.current) : null;
    return issue && (!issue.decision || issue.conflict) ? issue.row : null;
  },

  async look() {
    if (document.hidden || store.unsaved) return;
    if (this.isActive && store.audit.several) return this.at(this.row);
    const answer = await store.ask(`/api/people?since=${store.version}`).catch(() => null); // decisions say so when it is gone
    if (answer) this.take(answer);
  },

  async at(row, options) { // this tab shows the row now, or none
    if (!store.audit.several) return;
    this.isActive = false;
    const answer = await store.send("/api/people", { row, since: store.version }, options).catch(() => null);
    if (answer) this.take(answer);
  },

  take({ changes, version, progress, ...state }) {
    this.state = state;
    this.others = new Map(state.reviewers.filter(({ name, at }) => at !== null && name !== state.reviewer).map(({ name, at }) => [at, name]));
    drawPeople(state);
    drawSoon();
    if (changes === null) return this.reload(version);
    if (version < store.version) return; // overtaken by a later answer
    const waiting = new Set(store.waiting.map(({ row }) => row));
    for (const { row, ...word } of changes) if (!waiting.has(row)) view.words.set(row, word);
    store.version = version;
    if (changes.length) {
      store.progress = progress;
      showProgress();
    }
    const issue = issueAt(view.current);
    if (issue) byId("others")?.replaceWith(drawOthers(issue));
  },

  reload(version) { // too much changed to be told, or the server was started anew
    store.version = version;
    return refresh();
  },

  isHere(row) {
    return this.others?.get(row);
  },
};

function drawWho(name) {
  byId("people").hidden = !name;
  byId("people").replaceChildren(make("span", null, `Reviewer: ${name}`));
}

function drawPeople({ reviewer, reviewers, conflicts, agreement, second_opinions: second }) {
  byId("people").hidden = reviewers.length < 2 && !reviewer;
  const person = ({ name, decided, at }) => {
    const words = [`${name || "no name"}${name === reviewer ? " (you)" : ""} ${decided}`, at !== null && name !== reviewer ? `at row ${at}` : null];
    return make("span", { class: name === reviewer ? "you" : null }, words.filter(Boolean).join(", "));
  };
  const parts = [...reviewers.map(person)];
  if (second.total) parts.push(make("span", null, `second opinions ${second.done} of ${second.total}`));
  if (agreement) parts.push(make("span", { title: "The share of rows decided by two people who did not see each other's decision, and Cohen's kappa." }, `agreement ${agreed(agreement)}`));
  if (conflicts) parts.push(makeButton(counted(conflicts, "conflict"), null, { id: "conflicts" }));
  const hadFocus = document.activeElement?.id === "conflicts";
  byId("people").replaceChildren(...parts);
  if (hadFocus) byId("conflicts")?.focus();
}

function drawOthers(issue) { // of one row: who is there, who decided what
  const here = people.isHere(issue.row), by = issue.by ?? [], me = people.state?.reviewer;
  const words = ({ reviewer, decision, label }) => `${reviewer || "no name"}${reviewer === me ? " (you)" : ""}: ${label ? `${decision} ${readable(label)}` : decision}`;
  const isTold = issue.conflict || by.some(({ reviewer }) => reviewer !== me);
  return make("div", { id: "others", class: "labels" },
    here ? make("span", { class: "mark" }, `${here} is here`) : null,
    isTold ? make("span", { class: issue.conflict ? "mark" : "faint" }, by.map(words).join(" · ")) : null,
    issue.conflict ? make("span", { class: "faint" }, "Decide again to settle it.") : null,
  );
}

function peopleMark(issue) { // in a line of the list
  const here = issue && people.isHere(issue.row);
  const word = here ? `${here} is here` : issue?.conflict ? "conflict" : null;
  return word ? make("span", { class: "mark" }, word) : null;
}

byId("people").addEventListener("click", (event) => {
  if (event.target.id === "conflicts") setFilter({ state: "conflict" }).then(() => views.show("list"));
});
