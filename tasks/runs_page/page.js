"use strict";
// Sort and filter the table of runs. Without this script the page shows all runs, the newest first.
const table = document.querySelector("#runs-table"), body = table.tBodies[0], rows = [...body.rows];
const form = document.querySelector("#filter"), count = form.querySelector("output");
const texts = new Map(rows.map((row) => [row, `${row.textContent} ${row.dataset.text}`.toLowerCase()]));

function filter() {
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const model = form.elements.model.value, mark = form.elements.mark.value;
  for (const row of rows) {
    const isOfMark = !mark || row.dataset.mark === mark || (mark === "promoted" && row.dataset.mark === "champion");
    row.hidden = !(isOfMark && (!model || row.dataset.model === model) && words.every((word) => texts.get(row).includes(word)));
  }
  count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} runs`;
}

function sort(header) {
  const descends = header.getAttribute("aria-sort") === "ascending" ? -1 : header.hasAttribute("aria-sort") ? 1 : header.dataset.first === "up" ? 1 : -1;
  const value = (row) => row.cells[header.cellIndex].dataset.value ?? row.cells[header.cellIndex].textContent.trim();
  const isNumber = header.hasAttribute("data-number");
  const compare = (one, other) => {
    if (!one || !other) return descends * (!one - !other) * descends; // runs without a value stay at the end
    return descends * (isNumber ? one - other : one < other ? -1 : one > other ? 1 : 0);
  };
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descends === 1 ? "ascending" : "descending");
  body.append(...rows.sort((one, other) => compare(value(one), value(other))));
}

for (const header of table.tHead.rows[0].cells) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  button.addEventListener("click", () => sort(header));
  header.append(button);
}
form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
filter(); // the browser may have kept what was typed before a reload
