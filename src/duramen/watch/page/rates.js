// Growth and lag over the last minutes, or the last day.
import { $, ask, count, here, put, size } from "./dom.js";
import { draw, drawRange, slopes } from "./chart.js";

const CHARTS = [
  ["chart-records", "Records per second", (history) => slopes(history, 1), count],
  ["chart-bytes", "Bytes per second", (history) => slopes(history, 2), size],
  ["chart-lag", "Largest lag in records", (history) => history.map((seen) => [seen[0], seen[3]]), count],
];
let signal = null;
let busy = false;

export async function enter(params, ended) {
  signal = ended;
  busy = false;
  for (const [id, name, , unit] of CHARTS) draw($(id), name, [], unit);
  await load();
}

export const update = load;

export async function tick() {
  if (!busy) await load();
}

async function load() {
  const { log, range } = here();
  const box = $("rates-view").querySelector(".range");
  drawRange(box, range);
  busy = true;
  try {
    const found = await ask("log", { log, history: 1 }, signal);
    const history = range === "day" ? found.day : found.history;
    for (const [id, name, points, unit] of CHARTS) draw($(id), name, points(history), unit);
    put($("rates-state"), range === "day" && history.length < 2 ? "The server adds a point every 5 minutes." : "");
  } finally {
    busy = false;
  }
}
