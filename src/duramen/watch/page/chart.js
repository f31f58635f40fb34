// A line over time, as SVG.
import { button, go, here } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";

/** Draw points of [seconds, value]; `unit` makes a text of a value. */
export function draw(svg, name, points, unit) {
  // One unit is one pixel: letters keep their shape whatever the width.
  const width = Math.max(svg.clientWidth, 120), height = Math.max(svg.clientHeight, 60), left = 64, below = 16;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const put = (kind, attributes, text) => {
    const element = document.createElementNS(SPACE, kind);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };
  const most = Math.max(...points.map((point) => point[1]), 1);
  const now = points.length ? points[points.length - 1][1] : null;
  svg.setAttribute("aria-label", now === null ? `${name}: no data yet` : `${name}: ${unit(Math.round(now))} now, at most ${unit(Math.round(most))}`);
  put("text", { x: left - 6, y: 12, "text-anchor": "end" }, unit(Math.round(most)));
  put("text", { x: left - 6, y: height - below, "text-anchor": "end" }, unit(0));
  put("line", { class: "axis", x1: left, x2: width, y1: height - below, y2: height - below });
  if (points.length < 2) {
    put("text", { x: (left + width) / 2, y: height / 2, "text-anchor": "middle" }, "collecting…");
    return;
  }
  const first = points[0][0], last = points[points.length - 1][0];
  const x = (time) => left + (width - left) * (last > first ? (time - first) / (last - first) : 1);
  const y = (value) => (height - below) - (height - below - 4) * value / most;
  const path = points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
  put("polygon", { class: "area", points: [`${left},${height - below}`, ...path, `${width},${height - below}`].join(" ") });
  put("polyline", { class: "line", points: path.join(" ") });
  put("text", { x: left, y: height - 3 }, ago(last - first));
  put("text", { x: width, y: height - 3, "text-anchor": "end" }, "now");
}

function ago(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

/** The choice between the last minutes and the last day. */
export function drawRange(box, range) {
  const made = [["", "10 minutes"], ["day", "1 day"]].map(([name, text]) => {
    const one = button(text, () => go({ ...here(), range: name }));
    one.setAttribute("aria-pressed", String((range || "") === name));
    return one;
  });
  if (box.children.length) [...box.children].forEach((each, number) => each.setAttribute("aria-pressed", made[number].getAttribute("aria-pressed")));
  else box.append(...made);
}

export function slopes(history, column) {
  const out = [];
  for (let i = 1; i < history.length; i += 1) {
    const time = history[i][0] - history[i - 1][0];
    if (time > 0) out.push([history[i][0], Math.max(history[i][column] - history[i - 1][column], 0) / time]);
  }
  return out;
}
