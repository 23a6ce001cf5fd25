"use strict";
// Classes that are probably one, spelled differently: asked about in a line at the top; `m` merges any two.

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
