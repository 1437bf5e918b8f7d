// Tables that sort by the column whose heading is pressed: numbers as numbers, what has none last.
"use strict";
(() => {
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function key(row, column) {
    const cell = row.cells[column];
    const text = (cell.dataset.value ?? cell.textContent).trim().replace(/^−/, "-");
    const number = text === "" ? NaN : Number(text);
    return { text, number };
  }

  function compare(a, b, ascending) {
    const sign = ascending ? 1 : -1;
    const missing = (k) => k.text === "" || k.text === "–" || k.text === "n/a";
    if (missing(a) !== missing(b)) return missing(a) ? 1 : -1;
    const numbers = [!Number.isNaN(a.number), !Number.isNaN(b.number)];
    if (numbers[0] && numbers[1]) return sign * (a.number - b.number);
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1;
    return sign * collator.compare(a.text, b.text);
  }

  function sort(table, column) {
    const headings = [...table.tHead.rows[0].cells];
    const ascending = headings[column].getAttribute("aria-sort") !== "ascending";
    headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    headings[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, position) => ({ row, position, key: key(row, column) }));
    rows.sort((a, b) => compare(a.key, b.key, ascending) || a.position - b.position);
    body.append(...rows.map((entry) => entry.row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      heading.querySelector("button")?.addEventListener("click", () => sort(table, column));
    });
  }
})();
