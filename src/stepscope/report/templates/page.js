// What every part of the page shares: colours, copying, folded parts opened for printing.
"use strict";
const stepscope = {};
window.stepscope = stepscope;

(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const names = { "": "system", light: "light", dark: "dark" };
  const next = { "": "light", light: "dark", dark: "" };
  const button = document.getElementById("theme");
  const watchers = [];
  stepscope.onTheme = (watcher) => watchers.push(watcher);

  // Storage is refused in some viewers of local files: the choice then lasts as long as the page.
  const stored = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("stepscope-theme") || "";
      localStorage.setItem("stepscope-theme", value);
    } catch (refused) { /* nothing to keep it in */ }
    return value || "";
  };
  const apply = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    button.textContent = "Colours: " + names[theme];
    for (const watcher of watchers) watcher();
  };
  apply(stored() in names ? stored() : "");
  button.addEventListener("click", () => apply(stored(next[root.dataset.theme || ""])));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const watcher of watchers) watcher();
  });

  const copied = (text) => {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("not allowed"));
  };
  for (const copy of document.querySelectorAll(".copy")) {
    copy.setAttribute("aria-live", "polite");
    copy.addEventListener("click", () => {
      const say = (word) => {
        copy.textContent = word;
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      };
      copied(copy.parentElement.querySelector("pre").textContent).then(() => say("Copied"), () => say("Select it by hand"));
    });
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });
})();

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

// Charts: what the mark under the pointer, or under the arrow keys, tells. Without this script its <title> does.
(() => {
  for (const figure of document.querySelectorAll("figure.chart")) {
    const svg = figure.querySelector("svg");
    const marks = [...svg.querySelectorAll("title")].map((title) => {
      const mark = title.parentElement;
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
      return mark;
    });
    if (!marks.length) continue;
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("aria-live", "polite");
    figure.append(tip);
    let at = -1;
    const show = (mark) => {
      for (const other of marks) other.classList.toggle("at", other === mark);
      tip.hidden = !mark;
      if (!mark) return;
      at = marks.indexOf(mark);
      const box = mark.getBoundingClientRect(), around = figure.getBoundingClientRect();
      tip.textContent = mark.getAttribute("aria-label");
      const left = box.left + box.width / 2 - around.left - tip.offsetWidth / 2;
      tip.style.left = `${Math.max(0, Math.min(left, around.width - tip.offsetWidth))}px`;
      tip.style.top = `${box.top - around.top - tip.offsetHeight - 6}px`;
    };
    svg.addEventListener("pointermove", (event) => {
      const far = (mark) => {
        const box = mark.getBoundingClientRect();
        const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
        const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
        return dx * dx + dy * dy;
      };
      const [distance, mark] = marks.map((each) => [far(each), each]).reduce((a, b) => (b[0] < a[0] ? b : a));
      show(distance < 200 ? mark : null);
    });
    svg.addEventListener("pointerleave", () => show(null));
    svg.addEventListener("blur", () => show(null));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") show(null);
      if (!step) return;
      event.preventDefault();
      show(marks[(at + step + marks.length) % marks.length]);
    });
  }
})();
