// Charts: the value under the pointer or the arrow keys, lines switched off by the legend, zoom into a stretch of x.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };
  const plain = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e6 || size < 1e-4 ? value.toPrecision(3) : String(Number(value.toPrecision(6)));
  };
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = (value) => {
    const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(value) / 10)));
    return `${Number((value / 2 ** (10 * power)).toPrecision(3))} ${units[power]}`;
  };
  const text = (value, unit) =>
    unit === "bytes" ? bytes(value) : unit === "percent" ? `${plain(Number((value * 100).toPrecision(6)))} %` : plain(value);
  const ticks = (low, high, scale) => {
    if (scale === "linear") {
      const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.7) * power;
      const found = [];
      for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(n * step);
      return found;
    }
    const base = scale === "log2" ? 2 : 10;
    const first = Math.ceil(Math.log(low) / Math.log(base)), last = Math.floor(Math.log(high) / Math.log(base));
    const every = Math.max(1, Math.ceil((last - first + 1) / 7));
    const found = [];
    for (let n = first; n <= last; n += every) found.push(base ** n);
    return found.length > 1 ? found : [low, Math.sqrt(low * high), high];
  };

  const enhance = (figure) => {
    const outer = figure.querySelector("svg");
    const plot = figure.querySelector(".plot"), marks = figure.querySelector(".marks");
    const width = plot.viewBox.baseVal.width, height = plot.viewBox.baseVal.height;
    const axes = JSON.parse(figure.dataset.domain);
    const series = [...figure.querySelectorAll(".series")].map((group) => ({ group, points: JSON.parse(group.dataset.points) }));
    const names = [...figure.querySelectorAll(".legend li")];
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("aria-live", "polite");
    figure.append(tip);
    const cursor = make("circle", { class: "cursor", r: 6, visibility: "hidden" }, plot);
    const view = { x: 0, y: 0, kx: 1, ky: 1 };
    let at = null;

    const show = (found) => {
      at = found;
      if (!found) {
        tip.hidden = true;
        cursor.setAttribute("visibility", "hidden");
        return;
      }
      const [px, py, said] = series[found.line].points[found.mark];
      const x = (px - view.x) * view.kx, y = (py - view.y) * view.ky;
      cursor.setAttribute("cx", x);
      cursor.setAttribute("cy", y);
      cursor.setAttribute("visibility", "visible");
      tip.textContent = said;
      tip.hidden = false;
      const box = plot.getBoundingClientRect(), own = figure.getBoundingClientRect();
      const left = box.left - own.left + (x / width) * box.width, top = box.top - own.top + (y / height) * box.height;
      tip.style.left = `${Math.max(0, Math.min(left + 10, own.width - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(0, top - tip.offsetHeight - 10)}px`;
    };
    const inside = (x, y) => x >= 0 && x <= width && y >= -1 && y <= height + 1;
    const nearest = (x, y) => {
      let best = null, distance = 40 * 40;
      series.forEach((line, number) => {
        if (line.group.classList.contains("off")) return;
        line.points.forEach(([px, py], mark) => {
          const vx = (px - view.x) * view.kx, vy = (py - view.y) * view.ky;
          const d = (vx - x) ** 2 + (vy - y) ** 2;
          if (inside(vx, vy) && d < distance) { best = { line: number, mark }; distance = d; }
        });
      });
      return best;
    };
    const where = (event) => {
      const box = plot.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
    };

    const value = (fraction, [low, high, scale]) =>
      scale === "linear" ? low + fraction * (high - low) : low * (high / low) ** fraction;
    const fraction = (v, [low, high, scale]) =>
      scale === "linear" ? (v - low) / (high - low) : Math.log(v / low) / Math.log(high / low);
    const redraw = () => {
      marks.setAttribute("transform", `scale(${view.kx} ${view.ky}) translate(${-view.x} ${-view.y})`);
      for (const axis of ["x", "y"]) {
        const domain = axes[axis], group = figure.querySelector(`.ticks.${axis}`);
        const size = axis === "x" ? width : height, k = axis === "x" ? view.kx : view.ky, from = view[axis];
        const ends = [from / size, (from + size / k) / size].map((f) => value(axis === "x" ? f : 1 - f, domain));
        group.replaceChildren();
        for (const tick of ticks(Math.min(...ends), Math.max(...ends), domain[2])) {
          const f = fraction(tick, domain), place = ((axis === "x" ? f : 1 - f) * size - from) * k;
          const each = make("g", { transform: axis === "x" ? `translate(${place} 0)` : `translate(0 ${place})` }, group);
          make("line", axis === "x" ? { y2: height } : { x2: width }, each);
          make("text", axis === "x" ? { y: height + 16 } : { x: -6, dy: "0.32em" }, each).textContent = text(tick, domain[3]);
        }
      }
      reset.hidden = view.kx === 1 && view.ky === 1;
      figure.classList.toggle("zoomed", !reset.hidden);
      show(null);
    };
    const zoomTo = (from, to) => {
      // y follows what is left of the lines.
      const seen = series.filter((line) => !line.group.classList.contains("off"))
        .flatMap((line) => line.points.filter(([px]) => px >= from && px <= to).map(([, py]) => py));
      if (to - from < width / 200 || !seen.length) return;
      const low = Math.min(...seen), high = Math.max(...seen), room = Math.max((high - low) * 0.1, height / 500);
      Object.assign(view, { x: from, kx: width / (to - from), y: low - room, ky: height / (high - low + 2 * room) });
      redraw();
    };
    const reset = document.createElement("button");
    reset.type = "button";
    reset.className = "reset";
    reset.textContent = "Everything";
    reset.hidden = true;
    reset.addEventListener("click", () => {
      Object.assign(view, { x: 0, y: 0, kx: 1, ky: 1 });
      redraw();
      outer.focus();
    });
    figure.append(reset);

    let drag = null;
    plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      drag = { from: where(event)[0], box: make("rect", { class: "zoom", y: 0, height, width: 0 }, plot) };
      plot.setPointerCapture(event.pointerId);
      event.preventDefault();
      outer.focus({ preventScroll: true });
    });
    outer.addEventListener("pointermove", (event) => {
      const [x, y] = where(event);
      if (!drag) return show(nearest(x, y));
      drag.box.setAttribute("x", Math.min(x, drag.from));
      drag.box.setAttribute("width", Math.abs(x - drag.from));
    });
    plot.addEventListener("pointerup", (event) => {
      if (!drag) return;
      const ends = [drag.from, where(event)[0]].map((x) => Math.min(width, Math.max(0, x)) / view.kx + view.x).sort((a, b) => a - b);
      drag.box.remove();
      drag = null;
      if ((ends[1] - ends[0]) * view.kx > 8) zoomTo(ends[0], ends[1]);
    });
    plot.addEventListener("pointercancel", () => { if (drag) drag.box.remove(); drag = null; });
    outer.addEventListener("pointerleave", () => show(null));

    outer.setAttribute("tabindex", "0");
    outer.addEventListener("keydown", (event) => {
      const lines = series.map((_, n) => n).filter((n) => !series[n].group.classList.contains("off"));
      if (!lines.length) return;
      const here = at && lines.includes(at.line) ? at : { line: lines[0], mark: -1 };
      const count = series[here.line].points.length;
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], change = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) show({ line: here.line, mark: Math.min(count - 1, Math.max(0, here.mark + step)) });
      else if (change) {
        const line = lines[(lines.indexOf(here.line) + change + lines.length) % lines.length];
        const x = series[here.line].points[Math.max(0, here.mark)][0];
        let mark = 0;
        series[line].points.forEach(([px], n) => { if (Math.abs(px - x) < Math.abs(series[line].points[mark][0] - x)) mark = n; });
        show({ line, mark });
      } else if (event.key === "Escape") {
        if (reset.hidden) show(null); else reset.click();
      } else if (event.key === "+" || event.key === "-") {
        const middle = at ? series[at.line].points[at.mark][0] : view.x + width / view.kx / 2;
        const half = width / view.kx / (event.key === "+" ? 4 : 1);
        if (event.key === "-" && half * 2 >= width) reset.click();
        else zoomTo(Math.max(0, middle - half), Math.min(width, middle + half));
      } else return;
      event.preventDefault();
    });
    outer.addEventListener("blur", () => show(null));

    names.forEach((item, number) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.title = "Show or hide";
      button.append(...item.childNodes);
      button.addEventListener("click", () => {
        const off = series[number].group.classList.toggle("off");
        button.setAttribute("aria-pressed", String(!off));
        show(null);
      });
      item.append(button);
    });
  };
  for (const figure of document.querySelectorAll("figure.chart")) enhance(figure);
})();
