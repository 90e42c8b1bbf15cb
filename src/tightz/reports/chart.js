// Charts of a tightz report: plain SVG, no library, no network. Text goes in by textContent only.
(() => {
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const HINT = "Drag to zoom in; scroll when focused; double-click or 0 resets; arrows pan; "
  + "+ and - zoom; , and . step through the values.";

const make = (parent, tag, attributes = {}, text = null) => {
  const node = parent.namespaceURI === SVG || tag === "svg"
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  parent.appendChild(node);
  return node;
};
const finite = (v) => typeof v === "number" && Number.isFinite(v);
const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
const coordinate = (v) => clamp(v, -1e5, 1e5).toFixed(2);

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((s) => s * power >= raw) * power;
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    const value = k * step;
    const text = (Math.abs(value) < step / 2 ? 0 : value).toFixed(Math.min(decimals, 12));
    out.push({ value, text: text.replace("-", "\u2212") });
    if (out.length > 50) break;
  }
  return out;
}

function logTicks(low, high) { // in log10 units
  const out = [];
  for (let k = Math.ceil(low - 1e-9); k <= high + 1e-9; k++)
    out.push({ value: k, text: k >= 0 ? String(10 ** k) : (10 ** k).toFixed(-k) });
  return out.length >= 2 ? out : ticks(low, high, 4).map((t) => (
    { value: t.value, text: (10 ** t.value).toPrecision(3) }));
}

// enough decimals to tell two values of the visible range apart
const shown = (value, span) =>
  value.toFixed(clamp(4 - Math.floor(Math.log10(Math.max(span, 1e-9))), 2, 10));

class Chart {
  constructor(root, spec) {
    this.root = root;
    this.spec = spec;
    this.hidden = new Set();
    this.log = false;
    this.view = { ...spec.view };
    this.at = null;
    this.legend();
    this.svg = make(root, "svg", { class: "plot", tabindex: "0", role: "application",
      "aria-label": `${spec.title}. ${HINT}` });
    this.tip = make(root, "div", { class: "tip", hidden: "" });
    this.said = make(root, "div", { class: "unseen", "aria-live": "polite" });
    this.listen();
    new ResizeObserver(() => this.draw()).observe(root);
    this.draw();
  }

  legend() {
    const bar = make(this.root, "div", { class: "controls", role: "group",
      "aria-label": "series and view" });
    for (const series of this.spec.series) {
      const button = make(bar, "button", { type: "button", class: "key", "aria-pressed": "true",
        "data-series": series.name, title: `show or hide: ${series.name}` });
      make(button, "span", { class: `swatch ${series.kind} ${series.color}` });
      make(button, "span", {}, series.name);
      button.addEventListener("click", () => {
        const on = this.hidden.delete(series.name) || !this.hidden.add(series.name);
        button.setAttribute("aria-pressed", String(on));
        this.draw();
      });
    }
    const action = (text, title, run) => {
      const button = make(bar, "button", { type: "button", class: "act", title }, text);
      button.addEventListener("click", () => run(button));
      return button;
    };
    if (this.spec.log_x)
      action("log time", "logarithmic or linear time", (button) => {
        this.log = !this.log;
        button.setAttribute("aria-pressed", String(this.log));
        this.show(this.spec.view);
      }).setAttribute("aria-pressed", "false");
    if (this.spec.near) action("confident", "zoom in to the confident interval",
      () => this.show(this.spec.near));
    if (this.spec.full) action("all values", "zoom out to every value",
      () => this.show(this.spec.full));
    action("reset", "back to the first view", () => this.show(this.spec.view));
  }

  show(view) { this.view = { ...view }; this.leave(); this.draw(); }

  // x in the units of the axis: seconds, or their log10
  ux(x) { return this.log ? Math.log10(Math.max(x, this.spec.first)) : x; }
  xu(u) { return this.log ? 10 ** u : u; }
  px(x) {
    const { left, width } = this.box, low = this.ux(this.view.x[0]), high = this.ux(this.view.x[1]);
    return left + (this.ux(x) - low) / (high - low) * width;
  }
  py(y) {
    const { top, height } = this.box, [low, high] = this.view.y;
    return top + (high - y) / (high - low) * height;
  }
  x_at(p) {
    const { left, width } = this.box, low = this.ux(this.view.x[0]), high = this.ux(this.view.x[1]);
    return this.xu(low + (p - left) / width * (high - low));
  }
  y_at(p) {
    const { top, height } = this.box, [low, high] = this.view.y;
    return high - (p - top) / height * (high - low);
  }

  draw() {
    const { spec, svg } = this;
    const total = Math.max(this.root.clientWidth, 240);
    const tall = Math.round(clamp(total * 0.5, 240, 400));
    const rows = spec.log_y ? logTicks(...this.view.y) : ticks(...this.view.y, tall / 55);
    const wide = Math.max(...rows.map((t) => t.text.length), 3) * 7.2;
    const left = Math.ceil(wide + 32);
    this.box = { left, top: 10, width: total - left - 12, height: tall - 10 - 46 };
    const { top, width, height } = this.box;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${total} ${tall}`);
    make(svg, "title", {}, spec.title);
    const [low, high] = this.view.x.map((x) => this.ux(x));
    const columns = this.log ? logTicks(low, high)
      : ticks(low, high, Math.max(2, width / (spec.integer_x ? 45 : 80)))
        .filter((t) => !spec.integer_x || Number.isInteger(+t.value.toFixed(6)));
    const axes = make(svg, "g", { class: "axes" });
    for (const t of rows) {
      const y = coordinate(this.py(t.value));
      make(axes, "line", { x1: left, x2: left + width, y1: y, y2: y });
      make(axes, "text", { x: left - 7, y, dy: "0.32em", "text-anchor": "end" }, t.text);
    }
    for (const t of columns) {
      const x = left + (t.value - low) / (high - low) * width;
      make(axes, "line", { class: "tick", x1: x, x2: x, y1: top + height, y2: top + height + 5 });
      make(axes, "text", { x, y: top + height + 18, "text-anchor": "middle" },
        spec.integer_x ? String(Math.round(t.value)) : t.text);
    }
    make(axes, "path", { class: "frame", d: `M${left} ${top}V${top + height}H${left + width}` });
    make(axes, "text", { class: "label", x: left + width / 2, y: tall - 6,
      "text-anchor": "middle" }, spec.xlabel);
    make(axes, "text", { class: "label", "text-anchor": "middle",
      transform: `translate(13 ${top + height / 2}) rotate(-90)` }, spec.ylabel);
    const clip = `clip-${spec.id}`;
    make(make(make(svg, "defs"), "clipPath", { id: clip }), "rect",
      { x: left, y: top, width, height });
    const body = make(svg, "g", { "clip-path": `url(#${clip})` });
    for (const series of spec.series) {
      if (this.hidden.has(series.name)) continue;
      const many = series.x.length > (series.trial ? 2000 : 60) ? " many" : "";
      make(body, "path", { class: `series ${series.kind} ${series.color}${many}`,
        "data-series": series.name, d: this.path(series) });
    }
    this.mark = make(body, "g", { class: "mark" });
    this.rubber = make(svg, "rect", { class: "rubber", hidden: "" });
  }

  path(series) {
    const { x, y, y2, kind } = series;
    const X = (v) => coordinate(this.px(v)), Y = (v) => coordinate(this.py(v));
    const { left, top, width, height } = this.box;
    const out = [];
    if (kind === "rule") return finite(y[0]) ? `M${left} ${Y(y[0])}h${width}` : "";
    if (kind === "dots") {
      for (let i = 0; i < x.length; i++) out.push(`M${X(x[i])} ${Y(y[i])}h0`);
      return out.join("");
    }
    if (kind === "rug") {
      const half = Math.min(4, 0.3 * width / (this.view.x[1] - this.view.x[0]));
      for (const v of x) out.push(`M${X(v)} ${top + height}l${-half} -7h${2 * half}z`);
      return out.join("");
    }
    if (kind === "bars") {
      const half = series.width / 2;
      const foot = (i) => Y(y2 ? y2[i] : 0); // from y to y2, or from the axis
      x.forEach((v, i) => out.push(
        `M${X(v - half)} ${foot(i)}V${Y(y[i])}H${X(v + half)}V${foot(i)}z`));
      return out.join("");
    }
    if (kind === "stepband") return this.stepBand(series);
    if (kind === "band") { // a null y is -infinity: the band reaches the foot; a null y2 is a gap
      for (let i = 0; i < x.length; i++) {
        const first = i;
        while (i < x.length && finite(y2[i])) i++;
        const run = x.map((_, k) => k).slice(first, i);
        const there = run.map((k) => `${X(x[k])} ${Y(y2[k])}`);
        const back = run.map((k) => `${X(x[k])} ${finite(y[k]) ? Y(y[k]) : top + height}`);
        if (run.length) out.push(`M${[...there, ...back.reverse()].join("L")}z`);
      }
      return out.join("");
    }
    const stepped = kind === "step";
    let pen = false;
    for (let i = 0; i < x.length; i++) {
      if (!finite(y[i])) { pen = false; continue; }
      if (!pen) out.push(`M${X(x[i])} ${Y(y[i])}`);
      else out.push(stepped ? `H${X(x[i])}V${Y(y[i])}` : `L${X(x[i])} ${Y(y[i])}`);
      pen = true;
    }
    if (stepped && pen) out.push(`H${X(this.spec.last)}`);
    return out.join("");
  }

  stepBand({ x, y, y2 }) {
    const X = (v) => coordinate(this.px(v)), Y = (v) => coordinate(this.py(v));
    const ok = x.map((_, i) => i).filter((i) => finite(y[i]) && finite(y2[i]));
    if (!ok.length) return "";
    const edge = (i) => (i + 1 < ok.length ? x[ok[i + 1]] : this.spec.last);
    const up = ok.map((i, k) => `${k ? "V" : `M${X(x[i])} `}${Y(y2[i])}H${X(edge(k))}`);
    const down = ok.map((i) => `V${Y(y[i])}H${X(x[i])}`).reverse();
    return up.join("") + down.join("") + "z";
  }

  // what each visible series says at x (and, for dots, near y)
  read(x, y) {
    const rows = [];
    const span = this.view.y[1] - this.view.y[0];
    for (const series of this.spec.series) {
      if (this.hidden.has(series.name)) continue;
      const { kind, name, color } = series;
      if (kind === "rule") rows.push({ name, color, kind, y: series.y[0] });
      else if (kind === "step") {
        let i = -1;
        while (i + 1 < series.x.length && series.x[i + 1] <= x) i++;
        if (i >= 0 && finite(series.y[i]))
          rows.push({ name, color, kind, y: series.y[i], note: series.notes?.[i] });
      } else if (["line", "bars", "rug", "band"].includes(kind) || (kind === "dots" && !series.trial)) {
        let best = -1;
        series.x.forEach((v, i) => {
          if (best < 0 || Math.abs(v - x) < Math.abs(series.x[best] - x)) best = i;
        });
        const reach = kind === "bars" ? series.width / 2 : 0.5;
        if (best < 0 || Math.abs(series.x[best] - x) > reach) continue;
        if (kind === "rug") rows.push({ name, color, kind, text: series.notes[best] });
        else if (series.y2) {
          const low = finite(series.y[best]) ? shown(series.y[best], span) : "\u2212infinity";
          if (finite(series.y2[best])) rows.push({ name, color, kind,
            text: `${low} to ${shown(series.y2[best], span)}` });
        } else if (finite(series.y[best])) rows.push({ name, color, kind, y: series.y[best],
          at: series.x[best], note: series.notes?.[best] });
      } else if (kind === "dots" && y !== null) {
        let best = -1, near = 14 ** 2;
        series.x.forEach((v, i) => {
          const d = (this.px(v) - this.px(x)) ** 2 + (this.py(series.y[i]) - this.py(y)) ** 2;
          if (d < near) { near = d; best = i; }
        });
        if (best >= 0) rows.push({ name: `trial ${series.trial[best]}`, color, kind,
          y: series.y[best], at: series.x[best] });
      }
    }
    return rows;
  }

  hover(x, y) {
    const snapped = this.spec.integer_x ? Math.round(x) : x;
    const rows = this.read(this.spec.integer_x ? x : snapped, y);
    this.at = snapped;
    this.mark.replaceChildren();
    if (!rows.length) { this.leave(); return; }
    const { top, height, left, width } = this.box;
    const X = clamp(this.px(snapped), left, left + width);
    make(this.mark, "line", { x1: X, x2: X, y1: top, y2: top + height });
    const span = this.view.y[1] - this.view.y[0];
    const head = this.spec.names ? this.spec.names[snapped] ?? ""
      : this.spec.integer_x ? `${this.spec.short_x} = ${snapped}`
        : `${x.toPrecision(4)} ${this.spec.short_x}`;
    const body = rows.map((row) => ({ ...row,
      text: row.text ?? this.value(row.y, span) + (row.note ? ` (${row.note})` : "") }));
    for (const row of rows) if (finite(row.y) && row.kind !== "bars")
      make(this.mark, "circle", { class: row.color, r: 3.5,
        cx: coordinate(this.px(row.at ?? snapped)), cy: coordinate(this.py(row.y)) });
    const frame = this.svg.getBoundingClientRect();
    const scale = frame.width / this.svg.viewBox.baseVal.width;
    const above = frame.top - this.root.getBoundingClientRect().top;
    showTip(this.tip, this.root, head, body, X * scale, above + (top + 8) * scale);
    this.said.textContent = [head, ...body.map((r) => `${r.name} ${r.text}`)].join("; ");
  }

  // y is log10 of the value on a logarithmic axis
  value(y, span) { return this.spec.log_y ? (10 ** y).toPrecision(3) : shown(y, span); }

  leave() { this.tip.hidden = true; this.mark?.replaceChildren(); }

  zoom(factor, cx = null, cy = null) {
    const { left, width, top, height } = this.box;
    const p = cx ?? left + width / 2, q = cy ?? top + height / 2;
    this.window(p + (left - p) * factor, p + (left + width - p) * factor,
      q + (top - q) * factor, q + (top + height - q) * factor);
  }

  window(p0, p1, q0, q1) { // pixels of the present view
    const next = { x: [this.x_at(p0), this.x_at(p1)], y: [this.y_at(q1), this.y_at(q0)] };
    const wide = next.x[1] - next.x[0], high = next.y[1] - next.y[0];
    const size = Math.max(Math.abs(next.y[0]), Math.abs(next.y[1]), 1e-3);
    if (!(wide > 1e-9) || !(high > 1e-11 * size) || high > 1e9) return;
    if (this.spec.integer_x && wide < 0.5) return;
    this.show(next);
  }

  stepThrough(direction) {
    const shownSeries = this.spec.series.filter((s) => !this.hidden.has(s.name)
      && ["step", "line", "bars"].includes(s.kind));
    const all = [...new Set(shownSeries.flatMap((s) => s.x))].sort((a, b) => a - b);
    const [low, high] = this.view.x;
    const seen = all.filter((v) => v >= low && v <= high);
    if (!seen.length) return;
    const now = this.at ?? (direction > 0 ? -Infinity : Infinity);
    const next = direction > 0 ? seen.find((v) => v > now + 1e-12)
      : seen.findLast((v) => v < now - 1e-12);
    if (next !== undefined) this.hover(next, null);
  }

  listen() {
    const { svg } = this;
    let start = null;
    const where = (event) => {
      const frame = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / frame.width;
      return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
    };
    const inside = ([p, q]) => p >= this.box.left && p <= this.box.left + this.box.width
      && q >= this.box.top && q <= this.box.top + this.box.height;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !inside(where(event))) return;
      start = where(event);
      if (event.pointerType === "mouse") svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const [p, q] = where(event);
      if (start === null) {
        if (inside([p, q])) this.hover(this.x_at(p), this.y_at(q)); else this.leave();
        return;
      }
      this.leave();
      const { left, top, width, height } = this.box;
      const a = clamp(p, left, left + width), b = clamp(q, top, top + height);
      this.rubber.removeAttribute("hidden");
      for (const [name, value] of Object.entries({ x: Math.min(a, start[0]),
        y: Math.min(b, start[1]), width: Math.abs(a - start[0]), height: Math.abs(b - start[1]) }))
        this.rubber.setAttribute(name, value);
    });
    svg.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [p, q] = where(event), [a, b] = start;
      start = null;
      this.rubber.setAttribute("hidden", "");
      if (Math.abs(p - a) < 6 || Math.abs(q - b) < 6) return;
      const { left, top, width, height } = this.box;
      this.window(Math.max(Math.min(a, p), left), Math.min(Math.max(a, p), left + width),
        Math.max(Math.min(b, q), top), Math.min(Math.max(b, q), top + height));
    });
    svg.addEventListener("pointercancel", () => {
      start = null;
      this.rubber.setAttribute("hidden", "");
    });
    svg.addEventListener("pointerleave", () => { if (start === null) this.leave(); });
    svg.addEventListener("dblclick", () => this.show(this.spec.view));
    svg.addEventListener("wheel", (event) => {
      if (document.activeElement !== svg && !event.ctrlKey) return; // else the page scrolls
      event.preventDefault();
      this.zoom(1.0015 ** event.deltaY, ...where(event));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const { left, top, width, height } = this.box;
      const pan = (dx, dy) => this.window(left + dx * width, left + width + dx * width,
        top + dy * height, top + height + dy * height);
      const act = { "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25),
        "0": () => this.show(this.spec.view), Escape: () => this.leave(),
        ArrowLeft: () => pan(-0.1, 0), ArrowRight: () => pan(0.1, 0),
        ArrowUp: () => pan(0, -0.1), ArrowDown: () => pan(0, 0.1),
        ",": () => this.stepThrough(-1), ".": () => this.stepThrough(1) }[event.key];
      if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        act();
      }
    });
  }
}

function showTip(tip, root, head, rows, x, y) {
  tip.replaceChildren();
  if (head) make(tip, "div", { class: "head" }, head);
  for (const row of rows) {
    const line = make(tip, "div", { class: "row" });
    if (row.color) make(line, "span", { class: `swatch ${row.kind} ${row.color}` });
    make(line, "span", {}, `${row.name} ${row.text}`);
  }
  tip.hidden = false;
  const wide = tip.offsetWidth;
  const place = x + 14 + wide > root.clientWidth ? x - wide - 14 : x + 14;
  tip.style.left = `${clamp(place, 0, Math.max(root.clientWidth - wide, 0))}px`;
  tip.style.top = `${y}px`;
}

// a picture of probabilities: hover or arrow keys read one cell
function pixels(root, spec) {
  const image = root.querySelector("img");
  const tip = make(root, "div", { class: "tip", hidden: "" });
  const said = make(root, "div", { class: "unseen", "aria-live": "polite" });
  let row = 0, column = 0;
  const read = () => {
    const v = row * spec.cols + column, p = spec.values[v];
    const frame = image.getBoundingClientRect();
    const text = p === null ? "none" : p.toFixed(4);
    showTip(tip, root, `row ${row}, column ${column}`, [{ name: `variable ${v}:`, text }],
      image.offsetLeft + (column + 0.5) * frame.width / spec.cols,
      image.offsetTop + (row + 1) * frame.height / spec.rows + 6);
    said.textContent = `row ${row}, column ${column}, variable ${v}: ${text}`;
  };
  image.addEventListener("pointermove", (event) => {
    const frame = image.getBoundingClientRect();
    column = clamp(Math.floor((event.clientX - frame.left) / frame.width * spec.cols), 0,
      spec.cols - 1);
    row = clamp(Math.floor((event.clientY - frame.top) / frame.height * spec.rows), 0,
      spec.rows - 1);
    read();
  });
  for (const end of ["pointerleave", "blur"])
    image.addEventListener(end, () => { tip.hidden = true; });
  image.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in move)) return;
    event.preventDefault();
    row = clamp(row + move[event.key][0], 0, spec.rows - 1);
    column = clamp(column + move[event.key][1], 0, spec.cols - 1);
    read();
  });
}

const data = JSON.parse(document.getElementById("report-data").textContent);
const charts = {};
for (const spec of data.charts)
  charts[spec.id] = new Chart(document.getElementById(`chart-${spec.id}`), spec);
for (const spec of data.pictures) pixels(document.getElementById(`picture-${spec.id}`), spec);

const theme = document.getElementById("theme");
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  theme.setAttribute("aria-pressed", String(!dark));
});
window.addEventListener("beforeprint", () => Object.values(charts).forEach((c) => c.leave()));
})();
