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
