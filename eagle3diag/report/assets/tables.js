"use strict";
// Tables that sort and filter; without this script they are plain tables. Runs over every table of ours that it has not seen yet.
(() => {
  const MANY = 10; // rows from which on a filter is worth its place
  const number = (text) => {
    const found = text.replace(/,(?=\d{3})/g, "").match(/^[^\w.+-]*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf|nan)/i);
    return found ? (/inf/i.test(found[1]) ? Infinity * (found[1][0] === "-" ? -1 : 1) : parseFloat(found[1])) : NaN;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y || 0;
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  const sortable = (table, body, heads) => heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const told = (row) => row.cells[column].textContent.trim();
      const blank = (row) => ["", "-"].includes(told(row)); // what is missing stays last either way
      const rows = [...body.rows].sort((a, b) => blank(a) - blank(b) || (down ? -1 : 1) * compare(told(a), told(b)));
      body.append(...rows);
    });
  });
  const filterable = (table, body) => {
    const box = table.closest(".scroll"), bar = document.createElement("div");
    const input = document.createElement("input"), said = document.createElement("span");
    bar.className = "filter";
    input.type = "search";
    input.placeholder = "Filter rows";
    input.setAttribute("aria-label", `Filter the rows of ${box.getAttribute("aria-label")}`);
    said.setAttribute("role", "status");
    bar.append(input, said);
    box.before(bar);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      [...body.rows].forEach((row) => {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      });
      said.textContent = words.length ? `${shown} of ${body.rows.length} rows` : "";
    });
  };
  document.querySelectorAll(".scroll > table:not([data-sorts])").forEach((table) => {
    const body = table.tBodies[0], heads = [...(table.tHead?.rows[0]?.cells ?? [])];
    table.dataset.sorts = "yes";
    if (!body || body.rows.length < 2) return;
    sortable(table, body, heads);
    if (body.rows.length >= MANY) filterable(table, body);
  });
})();
