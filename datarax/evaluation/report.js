"use strict";

// Tables: a click on a header sorts, up, down, and as it was; cells without a number stay last.
const text = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function key(row, column, numeric) {
  const cell = row.cells[column];
  return numeric ? parseFloat(cell.dataset.v) : cell.textContent;
}

function sort(body, rows, column, numeric, direction) {
  const keyed = rows.map((row) => [key(row, column, numeric), row]);
  if (direction) {
    keyed.sort(([a], [b]) => {
      if (!numeric) return direction * text.compare(a, b);
      return isNaN(a) || isNaN(b) ? isNaN(a) - isNaN(b) : direction * (a - b || 0);
    });
  }
  body.append(...keyed.map(([, row]) => row));
}

for (const table of document.querySelectorAll(".table table")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    if (!header.dataset.sort || rows.length < 2) return;
    const numeric = header.dataset.sort === "number";
    const button = document.createElement("button");
    button.type = "button";
    button.append(header.firstChild);
    header.prepend(button);
    // Large numbers first, names from A.
    const turns = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    button.addEventListener("click", () => {
      const next = turns[turns.indexOf(header.getAttribute("aria-sort")) + 1];
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) header.setAttribute("aria-sort", next);
      sort(body, rows, column, numeric, { ascending: 1, descending: -1 }[next] || 0);
    });
  });
}

for (const search of document.querySelectorAll(".search")) {
  const rows = [...search.parentNode.querySelectorAll("tbody tr")];
  const names = rows.map((row) => row.cells[0].textContent.toLowerCase());
  const output = search.querySelector("output");
  const all = output.textContent;
  search.hidden = false;
  search.querySelector("input").addEventListener("input", (event) => {
    const sought = event.target.value.trim().toLowerCase();
    rows.forEach((row, i) => { row.hidden = !names[i].includes(sought); });
    const found = rows.filter((row) => !row.hidden).length;
    output.textContent = sought ? `${found} of ${all}` : all;
  });
}

// A hint where columns go on to the right.
for (const region of document.querySelectorAll(".scroll")) {
  const look = () => {
    const left = region.scrollWidth - region.clientWidth;
    region.parentNode.classList.toggle("more", left - region.scrollLeft > 1);
    region.previousElementSibling.hidden = left <= 1;
  };
  region.addEventListener("scroll", look);
  new ResizeObserver(look).observe(region);
}

// The colours, until the page is closed.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const other = () => ((root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark");
const label = () => {
  theme.textContent = other() === "dark" ? "Dark" : "Light";
  theme.title = `Show this page in ${other()} colours`;
};
theme.addEventListener("click", () => { root.dataset.theme = other(); label(); });
dark.addEventListener("change", label);
label();
theme.hidden = false;

// Nothing is folded on paper.
const folded = () => document.querySelectorAll("details:not([open])");
let opened = [];
addEventListener("beforeprint", () => { opened = [...folded()]; opened.forEach((fold) => { fold.open = true; }); });
addEventListener("afterprint", () => { opened.forEach((fold) => { fold.open = false; }); });
