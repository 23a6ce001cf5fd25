"use strict";
// Light or dark: the system's setting until the switch is used. The document gets a "themechange" event.
const theme = {
  key: "noiseproof-theme",
  system: matchMedia("(prefers-color-scheme: dark)"),
  get dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : this.system.matches;
  },
  set(chosen) {
    document.documentElement.dataset.theme = chosen;
    try { localStorage.setItem(this.key, chosen); } catch { /* a private window remembers nothing */ }
    this.tell();
  },
  tell() {
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      (button.querySelector("span") ?? button).textContent = this.dark ? "Light" : "Dark"; // what it does
    }
    document.dispatchEvent(new Event("themechange"));
  },
};
try {
  const chosen = localStorage.getItem(theme.key);
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* the system's choice */ }
theme.system.addEventListener("change", () => theme.tell());
document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll("[data-theme-switch]")) {
    button.addEventListener("click", () => theme.set(theme.dark ? "light" : "dark"));
  }
  theme.tell();
});

// Text from base64 of gzip.
async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function saveAs(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
