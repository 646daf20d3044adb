"""Runs as one HTML page without any other file: the table, and curves that answer a pointer."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from typing import Final

from accel_bridge.apps._html import table
from accel_bridge.apps.plot._picture import MADE_BY, as_json, columns, notes, rows
from accel_bridge.apps.plot._read import Run


def as_html(runs: Sequence[Run], over: int, picture: bytes) -> str:
    """The curves, the table and its notes; the picture (a PNG) where no scripts run."""
    # A name from a file must not end the script.
    data = json.dumps(as_json(runs, over)).replace("<", "\\u003c")
    parts = {
        "MADE_BY": MADE_BY,
        "TITLE": html.escape(" and ".join(run.name for run in runs)),
        "PICTURE": base64.b64encode(picture).decode(),
        "TABLE": table(columns(runs), rows(runs, over)),
        "NOTES": "".join(f"<p>{html.escape(line)}</p>" for line in notes(runs, over)),
        "DATA": data,
    }
    page = _PAGE
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text, 1)
    return page


_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="@MADE_BY@">
<meta name="viewport" content="width=device-width">
<title>@TITLE@</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1.5rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .2rem .7rem; text-align: left; }
.table { overflow-x: auto; }
p { margin: .2rem 0; opacity: .75; }
svg { width: 100%; display: block; font: 12px system-ui, sans-serif; touch-action: none; }
svg text { fill: currentColor; }
.grid { stroke: #8884; }
.curve { fill: none; stroke-width: 2; }
.raw { stroke-width: 1; opacity: .3; }
button { font: inherit; margin: 0 1rem .3rem 0; border: 0; background: none;
  cursor: pointer; color: inherit; }
button[aria-pressed=false] { opacity: .4; text-decoration: line-through; }
#said { min-height: 1.5em; font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
</style>
</head>
<body>
<div id="names"></div>
<div id="said" aria-live="polite"></div>
<div id="charts"></div>
<noscript><img alt="loss and throughput" src="data:image/png;base64,@PICTURE@"></noscript>
<div class="table">@TABLE@</div>
@NOTES@
<script>
const data = @DATA@;
const colours = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2"];
const hidden = new Set();
const W = 960, L = 70, R = 10, T = 20, B = 36;
const panels = [["loss", 1, 360], ["s/step", 2, 200], ["tokens/s", 3, 200]]
  .filter(([, at]) => data.runs.some((run) => run.points.some((point) => point[at])));
const svg = (name, words, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(words)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const means = (values) => values.map((_, at) => {
  const near = values.slice(Math.max(0, at - data.smoothed_over + 1), at + 1)
    .filter(Number.isFinite);
  return near.length ? near.reduce((sum, one) => sum + one, 0) / near.length : NaN;
});
// Round distances of a grid: 1, 2 or 5 times a power of ten.
const steps = (low, high, count) => {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(at);
  return found;
};
const short = (value) =>
  Math.abs(value) >= 1e6 ? value.toExponential(2) : String(+value.toPrecision(4));
function draw() {
  const shown = data.runs.map((run, at) => ({ ...run, at })).filter((run) => !hidden.has(run.at));
  const all = shown.flatMap((run) => run.points.map((point) => point[0]));
  const first = Math.min(...all), last = Math.max(...all, first + 1);
  const x = (value) => L + (value - first) / (last - first) * (W - L - R);
  document.querySelector("#charts").replaceChildren(...panels.map(([name, column, H]) => {
    const chart = svg("svg", { viewBox: `0 0 ${W} ${H}` });
    const values = shown
      .flatMap((run) => run.points.slice(column === 1 ? 0 : 1).map((one) => one[column]))
      .filter(Number.isFinite).sort((a, b) => a - b);
    const low = column === 1 ? values[0] ?? 0 : 0;
    const high = (values[Math.floor(values.length * .995)] ?? 1) * (column === 1 ? 1 : 1.1) || 1;
    const y = (value) => H - B - (Math.min(value, high) - low) / (high - low || 1) * (H - T - B);
    for (const at of steps(low, high, H / 60)) {
      chart.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(at), y2: y(at) }),
        svg("text", { x: L - 8, y: y(at) + 4, "text-anchor": "end" }, short(at)));
    }
    for (const at of steps(first, last, 8).filter(Number.isInteger)) {
      chart.append(svg("text", { x: x(at), y: H - B + 18, "text-anchor": "middle" }, at));
    }
    chart.append(svg("text", { x: L, y: 12 }, name),
      svg("text", { x: W - R, y: H - 4, "text-anchor": "end" }, "iteration"));
    for (const run of shown) {
      const raw = run.points.map((one) => one[column] ?? NaN);
      for (const [kind, list] of [["curve raw", raw], ["curve", means(raw)]]) {
        let path = "", pen = "M";
        list.forEach((value, at) => {
          if (Number.isFinite(value)) {
            path += `${pen}${x(run.points[at][0]).toFixed(1)} ${y(value).toFixed(1)}`;
            pen = "L";
          } else pen = "M";
        });
        const stroke = colours[run.at % colours.length];
        chart.append(svg("path", { class: kind, d: path, stroke }));
      }
    }
    const line = svg("line", { class: "grid", y1: T, y2: H - B, visibility: "hidden" });
    chart.append(line);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width * W - L) / (W - L - R);
      const at = first + share * (last - first);
      const near = shown.map((run) => [run, run.points.reduce((best, one) =>
        Math.abs(one[0] - at) < Math.abs(best[0] - at) ? one : best)]);
      if (!near.length) return;
      const number = near[0][1][0];
      line.setAttribute("x1", x(number));
      line.setAttribute("x2", x(number));
      line.setAttribute("visibility", "visible");
      const said = near.map(([run, point]) =>
        `${run.name} ${point[column] == null ? "-" : short(point[column])}`);
      document.querySelector("#said").textContent =
        `iteration ${number}, ${name}: ${said.join(", ")}`;
    });
    chart.addEventListener("pointerleave", () => line.setAttribute("visibility", "hidden"));
    return chart;
  }));
}
data.runs.forEach((run, at) => {
  const button = document.createElement("button");
  button.textContent = `\\u25cf ${run.name}`;
  button.style.color = colours[at % colours.length];
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    hidden.has(at) ? hidden.delete(at) : hidden.add(at);
    button.setAttribute("aria-pressed", String(!hidden.has(at)));
    draw();
  });
  document.querySelector("#names").append(button);
});
draw();
</script>
</body>
</html>
"""
