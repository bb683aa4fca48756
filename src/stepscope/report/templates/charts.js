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
