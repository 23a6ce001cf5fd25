"use strict";
for (const button of document.querySelectorAll("[data-csv]")) {
  const name = button.dataset.csv;
  button.addEventListener("click", async () => {
    const csv = await unpack(document.getElementById(`${name}-data`).textContent);
    saveAs(`${name}.csv`, csv, "text/csv");
  });
}
if (matchMedia("(max-width: 60rem)").matches) {
  for (const details of document.querySelectorAll("nav details")) details.open = false;
}
