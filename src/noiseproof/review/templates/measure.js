"use strict";
// Measuring: the server asks one question after the other; and the panel of what was measured, on every page.

const FEW = 9; // classes that have a key each

const measuring = {
  last: null, // the answer that undo takes back

  async start() {
    document.body.classList.add("measuring");
    byId("choices").querySelector("[data-choice=note]").remove();
    if (store.audit.measure.blind) byId("choices").replaceChildren(...blindChoices(store.audit.classes));
    await this.read();
  },

  async read() {
    this.show(await store.ask("/api/question"));
  },

  show({ question, last, progress, measured, waiting_for: names = [] }) {
    Object.assign(store, { progress, measured });
    this.last = last;
    const questions = question ? [{ ...question, decision: null, label: null }] : [];
    Object.assign(view, { pages: new Map([[0, questions]]), words: new Map(), total: questions.length, current: questions.length - 1 });
    for (const button of byId("choices").children) button.disabled = !question && button.dataset.choice !== "undo";
    showProgress();
    clearTimeout(this.again);
    if (!question && names.length) return this.wait(names);
    return question ? drawCard() : drawEnd(progress, measured);
  },

  wait(names) { // which question comes next depends on what the others answer
    byId("card").replaceChildren(make("p", null, `Waiting for ${names.join(" and ")}, who ${names.length > 1 ? "have" : "has"} the last questions of this round.`));
    this.again = setTimeout(() => this.read().catch(() => this.wait(names)), 1000 * people.seconds);
  },

  answer(decision, label = null) {
    const issue = issueAt(view.current);
    if (issue) this.send({ row: issue.row, question: issue.number, decision, ...(decision === "other" && { label }) }, "");
  },

  undo() {
    if (!this.last) return say("There is nothing to undo.");
    this.send({ ...this.last, decision: "undo" }, "Undone: the question is asked again.");
    this.last = null;
  },

  send(body, message) { // keys decide nothing until the server has answered with the next question
    view.current = -1;
    say(message);
    store.post(body);
  },
};

function progressOfMeasuring({ measured, total }) {
  return { value: measured, max: total, text: `${measured} of ${total} ${store.audit.measure.done ?? "measured"}` };
}

// --- blind: the label is chosen among all classes

function blindChoices(classes) {
  const button = (choice, key, text, label) => makeButton([make("kbd", null, key), ` ${text}`], null, { "data-choice": choice, "data-label": label });
  const labels = classes.length <= FEW
    ? classes.map((name, i) => button("other", String(i + 1), readable(name), name))
    : [button("other", "o", "Label …")];
  return [...labels, button("exclude", "x", "Exclude"), button("unclear", "c", "Unclear"), button("skip", "s", "Skip"), button("undo", "u", "Undo")];
}

function answerByNumber(number) {
  const classes = store.audit.classes;
  if (store.audit.measure?.blind && classes.length <= FEW && classes[number - 1] !== undefined) decide("other", classes[number - 1]);
}

// --- the panel

function drawMeasured(measured) {
  byId("measured").hidden = !measured;
  if (!measured) return;
  byId("measured").replaceChildren(...measuredParts(measured).map(([name, value, title]) =>
    make("div", { title }, make("dt", null, name), make("dd", null, value))));
}

function measuredParts({ rate, wrong_left: left, precision, agreement, to_halve: more, decisions }) {
  return [
    ["noise rate", withInterval(rate, share, " %"), `From ${counted(decisions, "measured row")}; in brackets: the 95 % interval.`],
    ["wrong labels left", withInterval(left, whole, ""), "Wrong labels that are in the data once the decisions are applied."],
    precision && ["precision", withInterval(precision, share, " %"), "The share of wrong labels among those that are called wrong."],
    agreement && ["agreement", agreed(agreement), "The share of rows asked twice that have the same answer, and Cohen's kappa."],
    ["to halve the interval", counted(more, "more decision"), "Measured rows until the interval of the noise rate is half as wide."],
  ].filter(Boolean);
}

const share = (value) => (100 * value).toFixed(1);
const whole = (value) => Math.round(value).toLocaleString("en");
const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

function withInterval({ value, low, high }, format, unit) {
  return `${format(value)}${unit} [${format(low)}, ${format(high)}]`;
}

function agreed({ same, rows, kappa }) {
  return `${share(same)} % of ${counted(rows, "row")}` + (kappa === null ? "" : `, κ ${kappa.toFixed(2)}`); // null: one class only
}

// --- the end

function drawEnd({ measured: rows }, measured) {
  const parts = measured ? measuredParts(measured).map(([name, value]) => make("li", null, `${name}: ${value}`)) : [];
  const commands = store.audit.measure.next.map(({ command, why }) => make("li", null, make("code", null, command), ` ${why}`));
  byId("card").replaceChildren(
    make("h2", null, `Done: ${counted(rows, "row")} ${store.audit.measure.done ?? "measured"}.`), make("ul", null, ...parts),
    make("p", null, "Next, in the terminal (Ctrl+C ends this server):"), make("ul", { id: "next" }, ...commands),
  );
}
