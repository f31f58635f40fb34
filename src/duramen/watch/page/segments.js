// The map of segments, and the check of every byte.
import { $, age, ask, clock, count, go, guard, here, make, many, pause, put, size } from "./dom.js";
import { onSeen } from "./log.js";

let visit = null; // one log: its cells, the findings of its last check, and how many segments were drawn

export async function enter(params, signal) {
  visit = { log: params.log, signal, cells: [], findings: [], segments: null };
  $("map").replaceChildren();
  $("map").setAttribute("aria-busy", "true");
  $("findings").replaceChildren();
  put($("segments-count"), "Loading…");
  put($("map-ages"), "");
  put($("check-state"), "");
  await Promise.all([load(), watchCheck(await ask("check", { log: params.log }, signal))]);
}

export async function update() {}

async function load() {
  const found = await ask("segments", { log: visit.log }, visit.signal);
  visit.cells = found.cells;
  visit.segments = found.total;
  const each = found.cells.length ? found.cells[0].segments : 1;
  put($("segments-count"), many(found.total, "segment") + (each > 1 ? `, ${each} per cell.` : "."));
  const times = found.cells.map((cell) => cell.first_time).filter((time) => time !== null);
  put($("map-ages"), times.length ? ` The oldest begins ${age(Date.parse(times[0]))}, the newest ${age(Date.parse(times[times.length - 1]))}.` : "");
  $("map").removeAttribute("aria-busy");
  draw();
}

function draw() {
  const largest = Math.max(...visit.cells.map((cell) => cell.size_bytes), 1);
  const focused = [...$("map").children].indexOf(document.activeElement);
  $("map").replaceChildren(...visit.cells.map((cell, number) => {
    const made = make("button");
    made.type = "button";
    made.tabIndex = number === Math.max(focused, 0) ? 0 : -1;
    made.style.height = Math.max(6, Math.round(36 * cell.size_bytes / largest)) + "px";
    const last = cell.next_offset - 1;
    const where = cell.segments === 1 ? `segment ${cell.number}` : `${cell.segments} segments from ${cell.number}`;
    const hits = visit.findings.filter((one) => one.first_offset !== null && one.first_offset <= last
      && (one.last_offset ?? one.first_offset) >= cell.first_offset);
    if (!cell.sealed) made.classList.add("active");
    if (hits.some((one) => one.severity === "damage")) made.classList.add("damaged");
    else if (hits.length) made.classList.add("noted");
    made.title = `${where}: ` + (last >= cell.first_offset ? `offsets ${count(cell.first_offset)} to ${count(last)}` : "no records") + `, ${size(cell.size_bytes)}`
      + (cell.sealed ? "" : ", active") + (cell.first_time ? `\nfrom ${clock(cell.first_time)} UTC, ${age(Date.parse(cell.first_time))}` : "")
      + hits.slice(0, 5).map((one) => "\n" + one.message).join("");
    made.setAttribute("aria-label", made.title);
    made.addEventListener("click", () => go({ log: visit.log, at: cell.first_offset, order: "oldest" }));
    return made;
  }));
  if (focused >= 0 && $("map").children[focused]) $("map").children[focused].focus();
}

// --- the check

async function watchCheck(found) {
  const mine = visit;
  while (found.check && found.check.running) {
    const part = found.check.total_bytes ? Math.round(100 * found.check.done_bytes / found.check.total_bytes) : 0;
    put($("check-state"), `checking, ${part} %`);
    await pause(300, mine.signal);
    found = await ask("check", { log: mine.log }, mine.signal);
  }
  if (!found.check) return;
  visit.findings = found.check.findings;
  const damaged = found.check.damaged_count;
  put($("check-state"), found.check.problem || (damaged ? `damaged places: ${count(damaged)}` : "no damage"));
  const items = visit.findings.slice(0, 200).map((one) => {
    const place = one.position === null ? one.path : `${one.path}, byte ${count(one.position)}`;
    const item = make("li", `${one.code}: ${place}: ${one.message}`, one.severity);
    if (one.action) item.append(make("div", "→ " + one.action, "quiet"));
    return item;
  });
  const more = found.check.findings_count - items.length;
  if (more > 0) items.push(make("li", `and ${count(more)} more: duramen verify lists them`));
  $("findings").replaceChildren(...items);
  draw();
}

$("check").addEventListener("click", () => guard(async () => {
  await watchCheck(await ask("check", { log: visit.log, start: 1 }, visit.signal, { "X-Duramen": "page" }));
}));
$("map").addEventListener("keydown", (event) => {
  const all = [...$("map").children], at = all.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined || !all[to]) return;
  event.preventDefault();
  all[at].tabIndex = -1;
  all[to].tabIndex = 0;
  all[to].focus();
});
onSeen((found) => {
  const isShown = here().tab === "segments" && visit && visit.log === found.name && visit.segments !== null;
  if (isShown && found.now.segments !== visit.segments && !found.now.problem) guard(load);
});
