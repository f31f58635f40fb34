// What all views of one log share: its name, health, partitions and numbers.
import { $, age, ask, badge, count, go, here, make, pairs, put, seconds, size } from "./dom.js";

let signal = null;
let shown = null;
let busy = false;
const listeners = new Set();

/** Call `listener` with the observation after each refresh. */
export function onSeen(listener) {
  listeners.add(listener);
}

export async function enter(params, ended) {
  signal = ended;
  busy = false;
  if (shown !== params.log) {
    shown = params.log;
    put($("where"), params.log);
    $("health").replaceChildren();
    $("problem").hidden = true;
    $("partition-box").hidden = true;
    pairs($("facts"), ["Format", "Offsets", "Size", "Records/s", "Lag", "Writer", "Sync p50 / p99", "Last verified"].map((name) => [name, "…"]));
    $("facts").setAttribute("aria-busy", "true");
  }
  await tick();
}

export async function update() {}

export async function tick() {
  if (busy) return;
  busy = true;
  try {
    const found = await ask("log", { log: shown }, signal);
    draw(found);
    for (const listener of listeners) listener(found);
  } finally {
    busy = false;
  }
}

function draw(found) {
  const now = found.now;
  if ($("health").textContent !== found.health) $("health").replaceChildren(badge(found.health));
  $("problem").hidden = !found.reasons.length;
  if ($("problem").textContent !== found.reasons.join("")) $("problem").replaceChildren(...found.reasons.map((reason) => make("li", reason)));
  drawPartitions(found);
  $("facts").removeAttribute("aria-busy");
  const unsynced = Math.max(now.next_offset - now.durable_offset, 0);
  const lag = now.standings.reduce((most, one) => Math.max(most, one.lag || 0), 0);
  pairs($("facts"), [
    ["Format", now.format || "–"],
    ["Offsets", now.next_offset > now.first_offset ? `${count(now.first_offset)} to ${count(now.next_offset - 1)}` : "none"],
    ["Size", size(now.size_bytes)],
    ["Records/s", `${count(Math.round(found.rates.records))}, ${size(found.rates.size_bytes)}/s`],
    ["Lag", now.standings.length ? count(lag) : "no consumers"],
    ["Writer", now.is_written ? "at work" + (unsynced ? `, ${count(unsynced)} not synced` : "") : "none"],
    ["Sync p50 / p99", `${seconds(found.rates.sync_p50_s)} / ${seconds(found.rates.sync_p99_s)}`],
    ["Last verified", found.verified_at === null ? "never" : age(found.verified_at * 1000)],
  ]);
}

function drawPartitions(found) {
  $("partition-box").hidden = found.partitions.length < 2;
  const select = $("partition");
  if (select.options.length === found.partitions.length && select.value === found.name) return;
  select.replaceChildren(...found.partitions.map((name) => new Option(name.split("/").pop(), name, false, name === found.name)));
}

$("partition").addEventListener("change", () => {
  const { offset, at, ...rest } = here();
  go({ ...rest, log: $("partition").value });
});
