"use strict";

const value = (row, column) => {
  const cell = row.cells[column];
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
};

const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));

/* Numbers begin with the largest, names with the first; the second press turns the order around. */
const sort = (header) => {
  const body = header.closest("table").tBodies[0];
  const column = header.cellIndex;
  const isNumber = "value" in (body.rows[0]?.cells[column].dataset ?? {});
  const first = isNumber ? "descending" : "ascending";
  const second = isNumber ? "ascending" : "descending";
  const order = header.ariaSort === first ? second : first;
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].sort((a, b) => sign * compare(value(a, column), value(b, column)));
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  body.append(...rows);
};

for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sort(button.parentElement));
}

const find = document.getElementById("find");
const onlyWrong = document.getElementById("only-wrong");
const onlyDifferent = document.getElementById("only-different");

const filter = () => {
  const rows = [...document.querySelector("#rows tbody").rows];
  const wanted = find.value.toLowerCase();
  for (const row of rows) {
    row.hidden =
      (onlyWrong.checked && !row.classList.contains("wrong")) ||
      (onlyDifferent.checked && !row.classList.contains("different")) ||
      !row.textContent.toLowerCase().includes(wanted);
  }
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("count").textContent =
    (shown === rows.length ? "" : `${shown} of `) + `${rows.length} utterance${rows.length === 1 ? "" : "s"}`;
};

for (const control of [find, onlyWrong, onlyDifferent]) control.addEventListener("input", filter);
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
