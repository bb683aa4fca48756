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
