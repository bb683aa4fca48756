// Spans of a timeline: unpacked, and drawn by what covers each column of pixels. No page, no clock: pure functions.
stepscope.spans = (() => {
  // base64 of LEB128 numbers, by turns gap and length in units -> starts and ends in ns.
  const unpack = (packed, unit) => {
    const raw = atob(packed);
    const numbers = [];
    let value = 0, scale = 1;
    for (let i = 0; i < raw.length; i += 1) {
      const byte = raw.charCodeAt(i);
      value += (byte & 127) * scale;
      scale *= 128;
      if (byte < 128) { numbers.push(value); value = 0; scale = 1; }
    }
    const count = numbers.length >> 1;
    const starts = new Float64Array(count), ends = new Float64Array(count);
    let at = 0;
    for (let i = 0; i < count; i += 1) {
      at += numbers[2 * i] * unit;
      starts[i] = at;
      at += numbers[2 * i + 1] * unit;
      ends[i] = at;
    }
    return { starts, ends };
  };

  // Index of the first span that ends after t.
  const firstAfter = ({ ends }, t) => {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] > t) high = middle; else low = middle + 1;
    }
    return low;
  };

  // The span at t, or null.
  const spanAt = (spans, t) => {
    const i = firstAfter(spans, t);
    return i < spans.starts.length && spans.starts[i] <= t ? { start: spans.starts[i], end: spans.ends[i] } : null;
  };

  // Share of each of `columns` equal parts of [from, to) that the spans cover, added to `into`. Returns spans looked at.
  const cover = (spans, from, to, columns, into) => {
    const { starts, ends } = spans, scale = columns / (to - from), count = starts.length;
    let i = firstAfter(spans, from);
    const first = i;
    for (; i < count && starts[i] < to; i += 1) {
      const a = Math.max(0, (starts[i] - from) * scale), b = Math.min(columns, (ends[i] - from) * scale);
      const left = a | 0, right = b | 0;
      if (left === right) { into[left] += b - a; continue; }
      into[left] += left + 1 - a;
      for (let column = left + 1; column < right; column += 1) into[column] += 1;
      if (right < columns) into[right] += b - right;
    }
    return i - first;
  };

  // Rectangles {kind: [x, y, width, height, ...]} of one row: in each column kinds are stacked by their share, and equal
  // neighbouring columns are one rectangle. Kinds that together cover more than the column (closed gaps) are scaled down.
  const stacked = (shares, columns, height, into) => {
    const kinds = Object.keys(shares), list = kinds.map((kind) => shares[kind]);
    const held = new Int32Array(kinds.length), now = new Int32Array(kinds.length);
    let since = 0;
    for (let column = 0; column <= columns; column += 1) {
      let same = column < columns;
      if (same) {
        let total = 0;
        for (const share of list) total += share[column];
        const fit = total > 1 ? height / total : height;
        let filled = 0, said = 0;
        for (let k = 0; k < list.length; k += 1) {
          filled += list[k][column] * fit;
          // A kind that is there at all is seen.
          const edge = Math.min(height, Math.round(filled));
          now[k] = Math.max(edge - said, list[k][column] > 0.02 && said < height ? 1 : 0);
          said += now[k];
          if (now[k] !== held[k]) same = false;
        }
      }
      if (same && column > 0) continue;
      if (column > since) {
        let y = height;
        for (let k = 0; k < list.length; k += 1) {
          if (!held[k]) continue;
          y -= held[k];
          into[kinds[k]].push(since, y, column - since, held[k]);
        }
      }
      since = column;
      held.set(now);
    }
  };
  return { unpack, spanAt, cover, stacked, firstAfter };
})();

// The timeline of all ranks: a canvas that is dragged, zoomed, walked by keys, and printed as a picture.
(() => {
  const box = document.getElementById("timeline");
  if (!box) return;
  const { unpack, spanAt, cover, stacked, firstAfter } = stepscope.spans;
  const canvas = document.getElementById("timeline-canvas"), tip = document.getElementById("timeline-tip");
  const legend = document.getElementById("timeline-legend"), live = document.getElementById("timeline-live");
  const GUTTER = 72, AXIS = 24, TALLEST = 40, SHORTEST = 12, ROOM = 560, PAD = 4, CLOSEST = 20, CLICK = 3;
  const BELOW = ["hidden_wait", "hidden_comm"];
  const isBelow = (kind) => BELOW.includes(kind);

  const duration = (ns) => {
    const [scale, unit] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "us"] : [1, "ns"];
    return `${Number((ns / scale).toPrecision(4))} ${unit}`;
  };
  // A moment in the unit of what is shown, with as many decimals as tell it from the next one that can be seen.
  const moment = (t, apart) => {
    const size = view[1], [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "us"] : [1, "ns"];
    const decimals = Math.min(9, Math.max(0, Math.ceil(-Math.log10(apart / scale) - 1e-9)));
    return `${(t / scale).toFixed(scale === 1 ? 0 : decimals)} ${unit}`;
  };
  const percent = (share) => `${(share * 100).toFixed(share < 0.095 ? 1 : 0)}%`;

  // A job as the page has it -> rows of {label, start, end, spans by kind, totals, named, steps}, times from the job's start.
  const prepared = (job) => {
    const rows = job.rows.map((row) => {
      if (job.kind === "phases") {
        const spans = {}, totals = {};
        let at = 0;
        job.kinds.forEach(([kind], n) => {
          spans[kind] = { starts: Float64Array.of(at), ends: Float64Array.of(at + row.phases[n]) };
          totals[kind] = row.phases[n];
          at += row.phases[n];
        });
        return { label: row.label, start: 0, end: at, spans, totals, named: [], steps: [], gaps: [] };
      }
      const spans = {};
      for (const [kind] of job.kinds) {
        const found = typeof row.spans[kind] === "string" ? unpack(row.spans[kind], row.unit) : row.spans[kind];
        if (row.start) for (const edges of [found.starts, found.ends]) for (let i = 0; i < edges.length; i += 1) edges[i] += row.start;
        spans[kind] = found;
      }
      const named = row.named.map(([at, length, name]) => ({ start: at + row.start, end: at + row.start + length, name: job.names[name] }));
      const steps = row.steps.map(([number, at]) => ({ number, at: at + row.start }));
      const gaps = (row.gaps || []).map(([at, length, cause]) => ({ start: at + row.start, end: at + row.start + length, why: job.causes[cause] }));
      return { label: row.label, start: row.start, end: row.start + row.window, spans, totals: row.totals, named, steps, gaps };
    });
    return { kinds: job.kinds, rows, notes: job.notes || [], name: job.name, merged: job.merged, end: Math.max(1, ...rows.map((row) => row.end)) };
  };

  let job = null, view = [0, 1], chosen = { row: 0, span: null }, pinned = false;
  const off = new Set();

  const colors = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const found = { ink: read("--ink"), faint: read("--faint"), rule: read("--rule"), idle: read("--k-idle"), accent: read("--accent") };
    const probe = document.createElement("i");
    legend.append(probe);
    for (const [kind] of job.kinds) {
      probe.className = `k-${kind}`;
      found[kind] = getComputedStyle(probe).color;
    }
    probe.remove();
    return found;
  };
  const rowHeight = () => Math.max(SHORTEST, Math.min(TALLEST, Math.floor(ROOM / job.rows.length)));
  const height = () => AXIS + job.rows.length * rowHeight() + 2;

  const steps = (from, to, width) => {
    const rough = (to - from) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    const found = [];
    for (let n = Math.ceil(from / step); n * step <= to; n += 1) found.push(n * step);
    return found;
  };

  // Everything between view[0] and view[1] on `context`, `ratio` device pixels a unit. Returns what it took.
  const paint = (context, width, [from, to], ratio, color) => {
    const columns = Math.max(1, Math.round((width - GUTTER) * ratio)), tall = rowHeight();
    const work = { primitives: 0, spans: 0 };
    const rect = (style, x, y, w, h) => { context.fillStyle = style; context.fillRect(x, y, w, h); work.primitives += 1; };
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height());
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    const scale = (width - GUTTER) / (to - from);
    const times = steps(from, to, width - GUTTER), apart = times.length > 1 ? times[1] - times[0] : to - from;
    for (const t of times) {
      const x = GUTTER + (t - from) * scale;
      rect(color.rule, x, AXIS - 5, 1, 5);
      context.fillStyle = color.faint;
      if (x > GUTTER + 20 && x < width - 20) context.fillText(t === 0 ? "0" : moment(t, apart), x, AXIS / 2 - 1);
    }
    const kinds = job.kinds.map(([kind]) => kind).filter((kind) => !off.has(kind));
    const above = kinds.filter((kind) => !isBelow(kind)), below = kinds.filter(isBelow);
    job.rows.forEach((row, number) => {
      const y = AXIS + number * tall;
      context.textAlign = "right";
      context.fillStyle = number === chosen.row && document.activeElement === canvas ? color.accent : color.ink;
      if (tall >= 12) context.fillText(row.label, GUTTER - 8, y + tall / 2, GUTTER - 10);
      const lower = job.kinds.some(([kind]) => isBelow(kind)) && tall >= 18 ? Math.max(3, Math.round((tall - PAD) / 4)) : 0;
      const main = tall - PAD - lower;
      const a = Math.max(from, row.start), b = Math.min(to, row.end);
      if (b > a) rect(color.idle, GUTTER + (a - from) * scale, y + PAD / 2, Math.max((b - a) * scale, 1), main);
      const lane = (names, top, high) => {
        const shares = {}, rects = {}, deep = Math.max(1, Math.round(high * ratio));
        for (const kind of names) {
          shares[kind] = new Float32Array(columns + 1);
          rects[kind] = [];
          work.spans += cover(row.spans[kind], from, to, columns, shares[kind]);
        }
        stacked(shares, columns, deep, rects);
        context.setTransform(1, 0, 0, 1, Math.round(GUTTER * ratio), Math.round(top * ratio));
        for (const kind of names) {
          context.fillStyle = color[kind];
          const list = rects[kind];
          for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
          work.primitives += list.length / 4;
        }
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
      };
      lane(above, y + PAD / 2, main);
      if (lower && below.length) lane(below, y + PAD / 2 + main, lower);
      for (const step of row.steps) {
        if (step.at < from || step.at > to) continue;
        const x = GUTTER + (step.at - from) * scale;
        rect(color.ink, Math.round(x), y, 1, tall - 1);
      }
    });
    const span = chosen.span;
    if (span && span.end >= from && span.start <= to) {
      const x = GUTTER + Math.max(0, (span.start - from) * scale), end = GUTTER + Math.min(width - GUTTER, (span.end - from) * scale);
      context.strokeStyle = color.ink;
      context.lineWidth = 2;
      context.strokeRect(x, AXIS + chosen.row * tall + 1, Math.max(end - x, 2), tall - 2);
      work.primitives += 1;
    }
    return work;
  };

  // Where a viewer of the merged file finds what is seen: the steps by name, as it numbers time from another moment.
  const spot = document.getElementById("perfetto-place");
  const sayPlace = () => {
    if (!spot) return;
    const row = job.rows[chosen.row], seen = row.steps.filter((each) => each.at < view[1]);
    const last = seen[seen.length - 1], first = seen.filter((each) => each.at <= view[0]).pop() || seen[0];
    const steps = !last ? "" : first.number === last.number ? `ProfilerStep#${first.number}` : `ProfilerStep#${first.number} to ProfilerStep#${last.number}`;
    const apart = (view[1] - view[0]) / 100;
    spot.textContent = `${row.label}, ${steps ? steps + ", " : ""}${moment(view[0], apart)} to ${moment(view[1], apart)} after the first work`;
    const how = document.getElementById("perfetto-merge");
    how.textContent = job.merged || "";
    how.closest("li").hidden = !job.merged;
  };

  let waiting = false;
  const draw = () => {
    waiting = false;
    if (!job) return null;
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    if (!width) return null;
    const w = Math.round(width * ratio), h = Math.round(height() * ratio);
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.height = `${height()}px`;
    }
    const began = performance.now();
    const work = paint(canvas.getContext("2d"), width, view, ratio, colors());
    work.ms = performance.now() - began;
    sayPlace();
    Object.assign(canvas.dataset, { primitives: work.primitives, spans: work.spans, from: view[0], to: view[1] });
    return work;
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  const look = (from, to) => {
    const length = Math.min(job.end, Math.max(CLOSEST, to - from));
    const start = Math.min(job.end - length, Math.max(0, from));
    view = [start, start + length];
    later();
  };
  const middle = () => {
    const span = chosen.span, at = span && (span.start + span.end) / 2;
    return span && at > view[0] && at < view[1] ? at : (view[0] + view[1]) / 2;
  };
  const zoom = (factor, at = middle()) => look(at - (at - view[0]) / factor, at + (view[1] - at) / factor);
  const move = (share) => look(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));

  const kindName = (kind) => job.kinds.find(([key]) => key === kind)[1];
  const order = ["exposed_wait", "exposed_comm", "copies"];
  const kindAt = (row, t) => {
    const kinds = job.kinds.map(([kind]) => kind).filter((kind) => !isBelow(kind) && !off.has(kind));
    kinds.sort((a, b) => order.indexOf(b) - order.indexOf(a));
    for (const kind of kinds) {
      const span = spanAt(row.spans[kind], t);
      if (span) return { kind, ...span };
    }
    return null;
  };
  const described = (row, found, t) => {
    const said = [row.label, `at ${moment(t, (view[1] - view[0]) / 1000)}`];
    if (found) said.push(`${kindName(found.kind)}, ${duration(found.end - found.start)}`);
    else if (t < row.start || t >= row.end) said.push("nothing recorded");
    else {
      const gap = row.gaps.find((each) => each.start <= t && t < each.end);
      said.push(gap ? `idle, ${duration(gap.end - gap.start)}: ${gap.why}` : "idle, a short gap");
    }
    for (const kind of found && isBelow(found.kind) ? [] : BELOW) {
      const under = row.spans[kind] && !off.has(kind) ? spanAt(row.spans[kind], t) : null;
      if (under) said.push(`${kindName(kind)} under it, ${duration(under.end - under.start)}`);
    }
    const names = row.named.filter((each) => each.start <= t && t < each.end);
    if (names.length) {
      const shortest = names.reduce((a, b) => (a.end - a.start <= b.end - b.start ? a : b));
      said.push(`${shortest.name} (${duration(shortest.end - shortest.start)})`);
    }
    const step = row.steps.filter((each) => each.at <= t).pop();
    if (step) said.push(`step ${step.number}`);
    return said.join(" · ");
  };

  // Pointer
  const place = (event) => {
    const frame = canvas.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
    const t = view[0] + ((x - GUTTER) / (frame.width - GUTTER)) * (view[1] - view[0]);
    return { x, y, t, row: Math.floor((y - AXIS) / rowHeight()), inside: x >= GUTTER && y >= AXIS };
  };
  const under = ({ t, row, inside }) => {
    if (!inside || !job.rows[row]) return null;
    // Within a pixel either side, so that spans thinner than one can be met.
    const pixel = (view[1] - view[0]) / Math.max(1, canvas.clientWidth - GUTTER), mine = job.rows[row];
    const found = kindAt(mine, t) || kindAt(mine, t + pixel) || kindAt(mine, t - pixel);
    const gap = found ? null : mine.gaps.find((each) => each.start <= t && t < each.end);
    return { span: found || gap || null, text: described(mine, found, t) };
  };
  const hover = (event) => {
    if (pinned) return;
    const at = place(event), { x, y } = at, met = under(at);
    tip.hidden = !met;
    if (!met) return;
    tip.textContent = met.text;
    tip.style.left = `${Math.max(0, Math.min(x + 14, canvas.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${y + 18}px`;
  };
  let drag = null;
  const unpin = () => {
    pinned = false;
    tip.hidden = true;
    tip.classList.remove("pinned");
  };
  // A click pins what is under it until the next click or Escape; the line below the picture keeps it.
  const pin = (event) => {
    unpin();
    hover(event);
    const at = place(event), met = under(at);
    chosen = { row: met ? at.row : chosen.row, span: met && met.span };
    live.textContent = met ? met.text : "";
    pinned = Boolean(met);
    tip.classList.toggle("pinned", pinned);
    later();
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, view: [...view] };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const shift = ((event.clientX - drag.x) / (canvas.clientWidth - GUTTER)) * (drag.view[1] - drag.view[0]);
    if (Math.abs(event.clientX - drag.x) <= CLICK) return;
    unpin();
    look(drag.view[0] - shift, drag.view[1] - shift);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && Math.abs(event.clientX - drag.x) <= CLICK) pin(event);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { if (!pinned) tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => zoom(4, place(event).t));
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(1.3 ** (-Math.sign(event.deltaY)), place(event).t);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 800);
    else return;
    event.preventDefault();
  }, { passive: false });

  // Keys
  const walk = (direction) => {
    const row = job.rows[chosen.row], kinds = job.kinds.map(([kind]) => kind).filter((kind) => !off.has(kind));
    const from = chosen.span ? chosen.span.start : direction > 0 ? view[0] - 1 : view[1];
    let best = null;
    for (const kind of kinds) {
      const { starts, ends } = row.spans[kind];
      let i = firstAfter(row.spans[kind], from);
      if (direction > 0) while (i < starts.length && starts[i] <= from) i += 1;
      else { i = Math.min(i, starts.length - 1); while (i >= 0 && starts[i] >= from) i -= 1; }
      if (i < 0 || i >= starts.length || ends[i] === starts[i]) continue;
      if (!best || (starts[i] - best.start) * direction < 0) best = { kind, start: starts[i], end: ends[i] };
    }
    if (!best) return;
    chosen.span = best;
    if (best.start < view[0] || best.end > view[1]) {
      const half = Math.max((view[1] - view[0]) / 2, (best.end - best.start) * 0.6), center = (best.start + best.end) / 2;
      look(center - half, center + half);
    }
    live.textContent = described(row, best, best.start);
  };
  const choose = (number) => {
    chosen = { row: Math.min(job.rows.length - 1, Math.max(0, number)), span: null };
    const row = job.rows[chosen.row], window = row.end - row.start;
    const parts = job.kinds.map(([kind, name]) => `${name} ${percent(row.totals[kind] / window)}`);
    live.textContent = `${row.label}: ${duration(window)}, ${parts.join(", ")}`;
  };
  const keys = {
    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6),
    0: () => look(0, job.end), Home: () => look(0, job.end), ArrowUp: () => choose(chosen.row - 1), ArrowDown: () => choose(chosen.row + 1),
    n: () => walk(1), p: () => walk(-1),
    Escape: () => { chosen.span = null; live.textContent = ""; },
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    unpin();
    keys[event.key]();
    later();
    event.preventDefault();
  });
  for (const kind of ["focus", "blur"]) canvas.addEventListener(kind, later);
  for (const button of box.querySelectorAll("[data-do]")) {
    const act = { in: () => zoom(1.6), out: () => zoom(1 / 1.6), all: () => look(0, job.end) };
    button.addEventListener("click", act[button.dataset.do]);
  }

  const makeLegend = () => {
    legend.replaceChildren();
    for (const [kind, name] of job.kinds) {
      const button = document.createElement("button"), swatch = document.createElement("i");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!off.has(kind)));
      button.title = "Show or hide";
      swatch.className = `k-${kind}`;
      button.append(swatch, Object.assign(document.createElement("span"), { textContent: name }));
      button.addEventListener("click", () => {
        if (!off.delete(kind)) off.add(kind);
        button.setAttribute("aria-pressed", String(!off.has(kind)));
        later();
      });
      legend.append(button);
    }
  };
  // Shows a job (as in the page's data; spans may also be {starts, ends} arrays) and says what drawing it took.
  const show = (data) => {
    job = prepared(data);
    off.clear();
    unpin();
    chosen = { row: 0, span: null };
    view = [0, job.end];
    live.textContent = "";
    makeLegend();
    canvas.setAttribute("aria-label", `Time budget of ${job.name}: ${job.rows.length} ranks over ${duration(job.end)}`);
    const notes = document.getElementById("timeline-notes");
    notes.replaceChildren(...job.notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
    return draw();
  };
  stepscope.showTimeline = show;
  stepscope.drawTimeline = draw;

  const { jobs } = JSON.parse(document.getElementById("timeline-data").textContent);
  const select = document.getElementById("timeline-job");
  if (select) select.addEventListener("change", () => show(jobs[Number(select.value)]));
  show(jobs[select ? Number(select.value) : 0]);
  // A finding's place: its job, its rank chosen, its stretch of time with as much again around it.
  for (const link of document.querySelectorAll("a[data-job]")) {
    link.addEventListener("click", () => {
      const { job: number, row, from, to } = link.dataset;
      if (select) select.value = number;
      show(jobs[Number(number)]);
      if (row === undefined) return;
      choose(Number(row));
      if (from === undefined) return;
      const start = Number(from), end = Number(to), room = (end - start) / 2;
      look(start - room, end + room);
      chosen.span = { start, end };
    });
  }
  stepscope.onTheme(later);
  new ResizeObserver(later).observe(canvas);

  // Printed: the whole job as a picture in light colours, each kind named.
  addEventListener("beforeprint", () => {
    const theme = document.documentElement.dataset.theme, width = 1000, picture = document.createElement("canvas");
    document.documentElement.dataset.theme = "light";
    picture.width = width * 2;
    picture.height = height() * 2;
    const span = chosen.span;
    chosen.span = null;
    const color = colors();
    paint(picture.getContext("2d"), width, view, 2, color);
    chosen.span = span;
    if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
    const image = new Image();
    image.src = picture.toDataURL("image/png");
    image.alt = canvas.getAttribute("aria-label");
    const names = document.createElement("ul");
    names.className = "legend";
    for (const [kind, name] of job.kinds) {
      const item = document.createElement("li");
      item.className = `k-${kind}`;
      item.innerHTML = '<svg class="swatch" width="12" height="12"><rect width="12" height="12"/></svg><span></span>';
      item.lastChild.textContent = name;
      names.append(item);
    }
    const title = Object.assign(document.createElement("p"), { textContent: job.name });
    document.getElementById("timeline-print").replaceChildren(title, image, names);
  });
})();
