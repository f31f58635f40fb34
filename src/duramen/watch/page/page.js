"use strict";
// Everything that comes from a log is put on the page with textContent: it can be read and does nothing.

const $ = (id) => document.getElementById(id);
const page = { log: null, skip: 0, next: null, at: "-50", needle: "", cells: [], segments: null, findings: [] };

function make(kind, text, name) {
  const element = document.createElement(kind);
  if (text !== undefined && text !== null) element.textContent = text;
  if (name) element.className = name;
  return element;
}

async function ask(path, query, headers) {
  const url = path + "?" + new URLSearchParams(query);
  const answer = await fetch(url, { headers: headers || {} });
  const tree = await answer.json();
  if (!answer.ok) throw new Error(tree.error || answer.statusText);
  return tree;
}

function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en-US");
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) { bytes /= 1024; step += 1; }
  return (step ? bytes.toFixed(1) : bytes.toFixed(0)) + " " + units[step];
}

function seconds(time) {
  if (time === null || time === undefined || !isFinite(time)) return "–";
  return time < 1 ? (time * 1000).toPrecision(2) * 1 + " ms" : time.toPrecision(3) * 1 + " s";
}

function clock(time) {
  return time === null ? "–" : time.replace("T", " ").replace("+00:00", "").replace(/(\.\d{3})000$/, "$1");
}

// --- the list of logs

async function showLogs() {
  const found = await ask("api/logs", { q: $("log-query").value, skip: page.skip });
  const list = $("logs");
  list.replaceChildren();
  for (const name of found.logs) {
    const item = make("li");
    const button = make("button", name);
    button.type = "button";
    if (name === page.log) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => choose(name));
    item.append(button);
    list.append(item);
  }
  const last = Math.min(page.skip + found.per_page, found.total);
  $("logs-shown").textContent = found.total ? `${page.skip + 1}–${last} of ${count(found.total)}` : "none";
  $("logs-back").disabled = page.skip === 0;
  $("logs-on").disabled = last >= found.total;
  $("logs-back").onclick = () => { page.skip = Math.max(page.skip - found.per_page, 0); guard(showLogs); };
  $("logs-on").onclick = () => { page.skip += found.per_page; guard(showLogs); };
  $("nothing").hidden = Boolean(page.log || found.total);
  if (!page.log && found.logs.length) choose(found.logs[0]);
}

function choose(name) {
  page.log = name;
  page.at = "-50";
  page.needle = "";
  page.findings = [];
  page.cells = [];
  page.segments = null;
  $("at").value = page.at;
  $("needle").value = "";
  $("where").textContent = name;
  $("log").hidden = false;
  $("record").hidden = true;
  $("map").replaceChildren();
  $("records").tBodies[0].replaceChildren();
  $("findings").replaceChildren();
  $("check-state").textContent = "";
  location.hash = encodeURIComponent(name);
  guard(showLogs);
  guard(refresh);
  guard(showRecords);
}

// --- one log

async function refresh() {
  const found = await ask("api/log", { log: page.log });
  if (found.name !== page.log) return;
  const now = found.now;
  $("problem").hidden = !now.problem;
  $("problem").textContent = now.problem || "";
  const published = now.published;
  const facts = [
    ["format", now.format],
    ["offsets", now.next_offset > now.first_offset ? `${count(now.first_offset)} to ${count(now.next_offset - 1)}` : "none"],
    ["records per second", count(Math.round(found.rates.records))],
    ["bytes per second", size(found.rates.size_bytes)],
    ["not yet on the disk", count(Math.max(now.next_offset - now.durable_offset, 0)) + " records"],
    ["size", size(now.size_bytes)],
    ["segments", count(now.segments)],
    ["writer", now.is_written ? "at work" + (published ? `, ${count(published.counters.records)} appended` : "") : "none"],
    ["sync p50 / p99", `${seconds(found.rates.sync_p50_s)} / ${seconds(found.rates.sync_p99_s)}`],
    ["disk free", now.free_ratio === null ? "–" : (100 * now.free_ratio).toFixed(1) + " %"],
  ];
  const list = $("facts");
  list.replaceChildren();
  for (const [name, value] of facts) {
    const box = make("div");
    box.append(make("dt", name), make("dd", value));
    list.append(box);
  }
  draw($("chart-records"), slopes(found.history, 1), count);
  draw($("chart-bytes"), slopes(found.history, 2), size);
  draw($("chart-lag"), found.lag_history, count);
  const rows = $("lags").tBodies[0];
  rows.replaceChildren();
  for (const lag of now.standings) {
    const row = make("tr");
    row.append(make("td", lag.kind), make("td", lag.name), make("td", count(lag.offset), "number"),
      make("td", count(lag.lag), "number"), make("td", count(lag.in_flight), "number"));
    rows.append(row);
  }
  $("lags").hidden = !now.standings.length;
  $("lags").previousElementSibling.hidden = !now.standings.length;
  if (page.segments !== now.segments && !now.problem) {
    page.segments = now.segments;
    guard(showSegments);
  }
  $("state").textContent = "seen " + new Date(now.at * 1000).toLocaleTimeString();
}

function slopes(history, column) {
  const out = [];
  for (let i = 1; i < history.length; i += 1) {
    const time = history[i][0] - history[i - 1][0];
    if (time > 0) out.push([history[i][0], Math.max(history[i][column] - history[i - 1][column], 0) / time]);
  }
  return out;
}

function draw(svg, points, unit) {
  // One unit is one pixel: letters keep their shape whatever the width.
  const width = Math.max(svg.clientWidth, 120), height = Math.max(svg.clientHeight, 60), left = 64, below = 16;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const space = "http://www.w3.org/2000/svg";
  const put = (kind, attributes, text) => {
    const element = document.createElementNS(space, kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };
  const most = Math.max(...points.map((point) => point[1]), 1);
  put("text", { x: left - 6, y: 12, "text-anchor": "end" }, unit(Math.round(most)));
  put("text", { x: left - 6, y: height - below, "text-anchor": "end" }, unit(0));
  put("line", { class: "axis", x1: left, x2: width, y1: height - below, y2: height - below });
  if (points.length < 2) return;
  const first = points[0][0], last = points[points.length - 1][0];
  const x = (time) => left + (width - left) * (last > first ? (time - first) / (last - first) : 1);
  const y = (value) => (height - below) - (height - below - 4) * value / most;
  const path = points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
  put("polygon", { class: "area", points: [`${left},${height - below}`, ...path, `${width},${height - below}`].join(" ") });
  put("polyline", { class: "line", points: path.join(" ") });
  put("text", { x: left, y: height - 3 }, `${Math.round(last - first)} s ago`);
  put("text", { x: width, y: height - 3, "text-anchor": "end" }, "now");
}

// --- segments

async function showSegments() {
  const log = page.log;
  const found = await ask("api/segments", { log });
  if (page.log !== log) return;
  page.cells = found.cells;
  const each = found.cells.length ? found.cells[0].segments : 1;
  $("segments-count").textContent = count(found.total) + (each > 1 ? `, ${each} per cell` : "");
  const times = found.cells.map((cell) => cell.first_time).filter((time) => time !== null);
  $("map-ages").textContent = times.length ? ` The oldest begins ${age(times[0])}, the newest ${age(times[times.length - 1])}.` : "";
  drawSegments();
}

function age(time) {
  const past = (Date.now() - Date.parse(time)) / 1000;
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const [name, length] = units.find((unit) => Math.abs(past) >= unit[1]) || units[3];
  return new Intl.RelativeTimeFormat("en").format(-Math.round(past / length), name);
}

function drawSegments() {
  const map = $("map");
  map.replaceChildren();
  const largest = Math.max(...page.cells.map((cell) => cell.size_bytes), 1);
  for (const cell of page.cells) {
    const button = make("button");
    button.type = "button";
    button.style.height = Math.max(4, Math.round(36 * cell.size_bytes / largest)) + "px";
    const last = cell.next_offset - 1;
    const where = cell.segments === 1 ? `segment ${cell.number}` : `${cell.segments} segments from ${cell.number}`;
    const hits = page.findings.filter((one) => one.first_offset !== null && one.first_offset <= last
      && (one.last_offset ?? one.first_offset) >= cell.first_offset);
    if (!cell.sealed) button.classList.add("active");
    if (hits.some((one) => one.severity === "damage")) button.classList.add("damaged");
    else if (hits.length) button.classList.add("noted");
    button.title = `${where}: offsets ${count(cell.first_offset)} to ${count(last)}, ${size(cell.size_bytes)}`
      + (cell.sealed ? "" : ", active") + (cell.first_time ? `\nfrom ${clock(cell.first_time)} UTC, ${age(cell.first_time)}` : "") + hits.map((one) => "\n" + one.message).join("");
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => browse(String(cell.first_offset), ""));
    map.append(button);
  }
}

async function check() {
  let found = await ask("api/check", { log: page.log, start: 1 }, { "X-Duramen": "page" });
  const log = page.log;
  while (found.check && found.check.running && page.log === log) {
    const part = found.check.total_bytes ? Math.round(100 * found.check.done_bytes / found.check.total_bytes) : 0;
    $("check-state").textContent = `checking, ${part} %`;
    await new Promise((done) => setTimeout(done, 300));
    found = await ask("api/check", { log });
  }
  if (page.log !== log || !found.check) return;
  page.findings = found.check.findings;
  const damaged = found.check.damaged_count;
  $("check-state").textContent = found.check.problem || (damaged ? `damaged places: ${count(damaged)}` : "no damage");
  const list = $("findings");
  list.replaceChildren();
  for (const one of page.findings.slice(0, 200)) {
    const place = one.position === null ? one.path : `${one.path}, byte ${count(one.position)}`;
    const item = make("li", `${one.code}: ${place}: ${one.message}`, one.severity);
    if (one.action) item.append(make("div", "→ " + one.action, "quiet"));
    list.append(item);
  }
  if (found.check.findings_count > 200) list.append(make("li", `and ${count(found.check.findings_count - 200)} more: duramen verify lists them`));
  drawSegments();
}

// --- records

function browse(at, needle) {
  page.at = at;
  page.needle = needle;
  $("at").value = at;
  $("needle").value = needle;
  guard(showRecords);
}

async function showRecords() {
  const rows = $("records").tBodies[0];
  $("records-state").textContent = "…";
  const { log, at, needle } = page;
  let found;
  try {
    found = await ask("api/records", { log, at, q: needle, count: 50 });
  } catch (error) {
    if (page.log === log) $("records-state").textContent = error.message;
    return;
  }
  if (page.log !== log || page.at !== at || page.needle !== needle) return;
  rows.replaceChildren();
  for (const record of found.records) {
    const row = make("tr");
    row.tabIndex = 0;
    row.append(make("td", count(record.offset), "number"), make("td", clock(record.timestamp), "time"),
      make("td", record.key === null ? "–" : record.key, "key"), make("td", size(record.size_bytes), "number"),
      make("td", record.preview, "value"));
    const open = () => {
      for (const other of rows.rows) other.removeAttribute("aria-selected");
      row.setAttribute("aria-selected", "true");
      guard(() => showRecord(record.offset));
    };
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
    rows.append(row);
  }
  page.next = found.next;
  $("records-on").disabled = found.next === null;
  const looked = found.looked === undefined ? "" : `, ${count(found.looked)} looked at`;
  $("records-state").textContent = (found.records.length === 1 ? "1 record" : `${count(found.records.length)} records`) + looked;
}

async function showRecord(offset) {
  const log = page.log;
  const found = await ask("api/record", { log, offset });
  if (page.log !== log) return;
  $("record").hidden = false;
  $("record-title").textContent = `Offset ${count(found.offset)}: ${found.path}, byte ${count(found.position)}`;
  const rows = $("fields").tBodies[0];
  rows.replaceChildren();
  for (const field of found.fields) {
    const row = make("tr");
    const last = field.position + field.length - 1;
    row.append(make("td", field.length > 1 ? `${field.position}–${last}` : String(field.position), "number"),
      make("td", field.name + (field.note ? ` (${field.note})` : "")), make("td", cut(field.value, 300)),
      make("td", cut(pairs(field.hex), 200)));
    rows.append(row);
  }
  for (const [name, value] of found.headers) {
    const row = make("tr");
    row.append(make("td", ""), make("td", `header ${name}`), make("td", value), make("td", ""));
    rows.append(row);
  }
  $("value-hex").textContent = hexLines(found.value_hex) + (found.is_cut ? "\n… cut after 64 KiB" : "");
  $("value-text").textContent = found.value_text;
  $("record").scrollIntoView({ block: "nearest" });
}

function pairs(hex) { return hex.replace(/../g, "$& ").trim(); }

function cut(text, most) { return text.length > most ? text.slice(0, most) + "…" : text; }

function hexLines(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    lines.push((at / 2).toString(16).padStart(6, "0") + "  " + pairs(hex.slice(at, at + 32)));
  }
  return lines.join("\n");
}

// --- life

async function guard(work) {
  try { await work(); } catch (error) { $("state").textContent = error.message; }
}

$("log-query").addEventListener("input", () => { page.skip = 0; guard(showLogs); });
$("browse").addEventListener("submit", (event) => { event.preventDefault(); browse($("at").value, $("needle").value); });
$("records-on").addEventListener("click", () => { if (page.next !== null) browse(String(page.next), page.needle); });
$("check").addEventListener("click", () => guard(check));
setInterval(() => { if (page.log && !document.hidden) guard(refresh); }, 1000);
let wanted = "";
try { wanted = decodeURIComponent(location.hash.slice(1)); } catch (error) { /* a link that somebody cut */ }
if (wanted) choose(wanted); else guard(showLogs);
