"use strict";
// Choosing from a list by typing; the classes that are one.

const chooser = {
  open(title, items, take, { first = -1, create = null } = {}) { // first: what Enter takes before anything is typed, −1: nothing
    Object.assign(this, { items, take, first, create }); // create: the item for a word that is none of them, or why there is none
    byId("chooser-title").textContent = title;
    byId("chooser-word").value = "";
    this.search();
    byId("chooser").showModal();
    byId("chooser-word").focus();
  },
  search() {
    const word = byId("chooser-word").value.trim().toLowerCase();
    const rank = ({ text }) => {
      const name = text.toLowerCase();
      return name === word ? 0 : name.startsWith(word) ? 1 : name.includes(word) ? 2 : 3;
    };
    this.found = this.items.map((item) => ({ item, rank: rank(item) })).filter(({ rank }) => rank < 3)
      .sort((one, two) => one.rank - two.rank).slice(0, 50).map(({ item }) => item);
    const typed = byId("chooser-word").value.trim().replace(/\s+/g, " ");
    const created = typed && !this.items.some(({ text }) => text === typed) ? this.create?.(typed) ?? null : null;
    if (created?.value) this.found.push({ ...created, isNew: true });
    byId("chooser-answer").textContent = created?.why ?? (this.found.length ? "" : `Nothing is called ${quoted(typed)}.`);
    this.at = word ? 0 : this.first;
    this.isSure = false;
    this.draw();
  },
  draw() {
    byId("chooser-list").replaceChildren(...this.found.map((item, i) =>
      make("li", { role: "option", id: `choice-${i}`, "data-at": i, "aria-selected": i === this.at },
        make("span", null, item.text), make("span", null, item.note ?? ""))));
    const active = byId(`choice-${this.at}`);
    active?.scrollIntoView({ block: "nearest" });
    byId("chooser-word").setAttribute("aria-activedescendant", active?.id ?? "");
  },
  move(step) {
    this.at = Math.min(Math.max(this.at + step, 0), this.found.length - 1);
    this.isSure = false;
    this.draw();
  },
  choose(i = this.at) {
    const item = this.found[i];
    if (!item) return;
    if (item.isNew && !(this.isSure && i === this.at)) { // a typo must not make a class
      Object.assign(this, { at: i, isSure: true });
      byId("chooser-answer").textContent = `Enter again makes the new class ${quoted(item.value)}.`;
      return this.draw();
    }
    byId("chooser").close();
    this.take(item.value, item.isNew);
  },
};

const allClasses = () => [...store.audit.classes, ...(store.audit.new_classes ?? [])];
const classItems = (names) => names.map((name) => ({ text: readable(name), value: name }));

function chooseOther() {
  const issue = issueAt(view.current);
  if (!issue) return;
  const note = new Map("given" in issue ? [[issue.given, "given"], [issue.suggested, "suggested"]] : []);
  const names = allClasses().filter((name) => name !== issue.given);
  const items = classItems([...names.filter((name) => !note.has(name)), ...names.filter((name) => note.has(name))])
    .map((item) => ({ ...item, note: note.get(item.value) }));
  const title = note.size ? `Another label than ${readable(issue.given)} or ${readable(issue.suggested)}` : "The label of this row";
  const create = store.audit.measure ? null : (name) =>
    (name === issue.given.trim() ? { why: `${quoted(name)} is the given label: keep it with k.` } : { text: `New class ${quoted(name)}`, value: name });
  chooser.open(title, items, (label, isNew) => {
    if (issueAt(view.current)?.row === issue.row) decide("other", label, isNew);
  }, { create });
}

function chooseFilter() {
  if (store.audit.measure) return;
  const all = { text: "All pairs", value: NO_FILTER, note: String(store.audit.total) };
  const pairs = store.audit.pairs.map(({ given, suggested, issues }) =>
    ({ text: `${readable(given)} → ${readable(suggested)}`, value: { given, suggested }, note: String(issues) }));
  chooser.open("Only issues of one pair of classes", [all, ...pairs], async (filter) => {
    await setFilter(filter);
    if (issueAt(view.current)?.decision) await showNextOpen();
  }, { first: 0 });
}

// --- classes that are probably one, spelled differently: asked about in a line at the top; `m` merges any two

const spellings = {
  draw() {
    const [pair] = store.audit.measure ? [] : store.audit.spellings ?? [];
    byId("spelling").hidden = !pair;
    if (!pair) return;
    const rows = (count) => (count ? counted(count, "row") : "too few rows to audit");
    byId("spelling-question").textContent =
      `${quoted(pair.spelling)} (${rows(pair.rows)}) and ${quoted(pair.label)} (${rows(pair.label_rows)}): are they one?`;
    byId("spelling-yes").textContent = `Yes, make them ${quoted(pair.label)}`;
  },

  async answer(isOne) {
    const [{ spelling, label }] = store.audit.spellings;
    await this.merge(spelling, isOne ? label : spelling);
  },

  async merge(spelling, label) {
    const hadFocus = byId("spelling").contains(document.activeElement);
    try {
      await store.merge(spelling, label);
    } catch (error) {
      return say(`Not saved: ${error.message}`, true);
    }
    say(spelling === label ? "They stay two classes." : `${quoted(spelling)} becomes ${quoted(label)}.`);
    await reload();
    if (hadFocus && byId("spelling").hidden) byId("list").focus();
  },

  open() {
    if (store.audit.measure) return;
    if (!byId("spelling").hidden) return byId("spelling-yes").focus();
    chooser.open("A class that is another one, spelled differently", classItems(store.audit.classes), (spelling) => {
      const others = classItems(allClasses().filter((name) => name !== spelling));
      chooser.open(`${quoted(spelling)} becomes`, others, (label) => this.merge(spelling, label));
    });
  },
};

const quoted = (name) => `“${readable(name)}”`;

byId("spelling-yes").addEventListener("click", () => spellings.answer(true));
byId("spelling-no").addEventListener("click", () => spellings.answer(false));
