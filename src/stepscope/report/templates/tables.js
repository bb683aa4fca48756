// Tables: sorted by a column's button, filtered by words. Rows without a value come last either way.
(() => {
  const keyOf = (row, column) => {
    let at = -1;
    const cell = [...row.cells].find((each) => (at += each.colSpan) >= column);
    if (!cell || cell.classList.contains("failed")) return null;
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    const text = cell.textContent.trim();
    return text === "" || text === "–" ? null : text;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, undefined, { numeric: true, sensitivity: "base" });
  };
  const sort = (table, heads, column) => {
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, at) => ({ row, at, key: keyOf(row, column) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.at - b.at;
      return (up ? compare(a.key, b.key) : compare(b.key, a.key)) || a.at - b.at;
    });
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows.map((each) => each.row));
  };
  const filter = (box, table, input) => {
    // Words, and phrases in quotes; a row has to have all of them.
    const words = (input.value.toLowerCase().match(/"[^"]+"?|[^\s"]+/g) || []).map((word) => word.replaceAll('"', ""));
    let left = 0;
    for (const row of table.tBodies[0].rows) {
      const text = [...row.cells].map((cell) => cell.textContent.trim()).join(" | ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    const all = table.tBodies[0].rows.length;
    box.querySelector(".count").textContent = words.length ? `${left} of ${all} rows` : `${all} rows`;
  };
  for (const box of document.querySelectorAll(".table")) {
    const table = box.querySelector("table");
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.title = "Sort by this column";
      button.addEventListener("click", () => sort(table, heads, column));
      head.replaceChildren(button);
    });
    const input = box.querySelector("input[type=search]");
    if (input) input.addEventListener("input", () => filter(box, table, input));
  }
})();
