// One row per log or topic. Rows are updated in place, so that the focus and a selection stay.
import { $, age, ask, badge, button, count, go, guard, here, link, make, many, pause, put, size } from "./dom.js";

const COLUMNS = ["health", "name", "format", "records", "size", "rate", "lag", "verified"];
const LABELS = ["Health", "", "Format", "Records", "Size", "Records/s", "Lag", "Verified"];
let signal = null;
let busy = false;

export async function enter(params, ended) {
  signal = ended;
  busy = false;
  if ($("log-query").value !== (params.q || "")) $("log-query").value = params.q || "";
  $("logs").tBodies[0].replaceChildren();
  put($("logs-shown"), "loading…");
  $("logs").setAttribute("aria-busy", "true");
  await load();
}

export async function update(params) {
  if (document.activeElement !== $("log-query")) $("log-query").value = params.q || "";
  await load();
}

export async function tick() {
  if (!busy) await load();
}

async function load() {
  const params = here();
  busy = true;
  try {
    const found = await ask("logs", { q: params.q, skip: params.skip }, signal);
    draw(params, found);
    const isChanging = found.rows.some((each) => each.is_loading || each.checking !== null);
    if (isChanging) pause(200, signal).then(tick).catch(() => {}); // the view may have been left
  } finally {
    busy = false;
  }
}

function draw(params, found) {
  const skip = Number(params.skip || 0), last = Math.min(skip + found.per_page, found.total);
  const body = $("logs").tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.name, row]));
  found.rows.forEach((each, number) => {
    const row = known.get(each.name) || newRow(each);
    known.delete(each.name);
    fill(row, each);
    if (body.rows[number] !== row) body.insertBefore(row, body.rows[number] || null);
  });
  for (const row of known.values()) row.remove();
  $("logs").removeAttribute("aria-busy");
  $("logs").hidden = !found.total;
  put($("logs-shown"), found.total > found.per_page ? `${count(skip + 1)}–${count(last)} of ${count(found.total)}` : count(found.total));
  $("logs-back").disabled = skip === 0;
  $("logs-on").disabled = last >= found.total;
  $("logs-back").parentElement.hidden = found.total <= found.per_page && !skip;
  $("logs-back").onclick = () => go({ q: params.q, skip: Math.max(skip - found.per_page, 0) || "" });
  $("logs-on").onclick = () => go({ q: params.q, skip: skip + found.per_page });
  $("nothing").hidden = found.total > 0;
  put($("nothing"), params.q ? `No log has “${params.q}” in its name.` : "There is no log here yet. The first append creates one: duramen append PATH");
  $("trouble").hidden = !found.troubled;
  put($("trouble"), found.troubled ? `${many(found.troubled, "log")} with problems` : "");
  put($("state"), found.history_problem ? "no history is kept: " + found.history_problem : "");
}

function newRow(each) {
  const row = make("tr");
  row.dataset.name = each.name;
  COLUMNS.forEach((name, number) => {
    const cell = make(name === "name" ? "th" : "td", null, name);
    if (name === "name") cell.scope = "row";
    if (["records", "size", "rate", "lag"].includes(name)) cell.classList.add("number");
    cell.dataset.label = LABELS[number];
    row.append(cell);
  });
  row.querySelector(".name").append(link(each.name, { log: each.logs[0] }), make("small"), make("div", "", "reasons"));
  row.querySelector(".verified").append(make("span"), " ",
    button("Check", () => guard(() => check(each)), `Check every byte of ${each.name}`));
  return row;
}

function fill(row, each) {
  const cell = (name) => row.querySelector("." + name);
  const wait = each.is_loading ? "…" : "–";
  if (cell("health").textContent !== each.health) cell("health").replaceChildren(badge(each.health));
  const [, partitions, reasons] = cell("name").children;
  const counted = each.logs.length < each.partitions ? `, ${each.logs.length} of them counted` : "";
  put(partitions, each.is_topic ? ` ${many(each.partitions, "partition")}${counted}` : "");
  put(reasons, each.reasons.slice(0, 3).join("\n"));
  put(cell("format"), each.formats.join(", ") || wait);
  put(cell("records"), each.records === null ? wait : count(each.records));
  put(cell("size"), each.size_bytes === null ? wait : size(each.size_bytes));
  put(cell("rate"), each.rate === null ? wait : count(Math.round(each.rate)));
  put(cell("lag"), each.lag === null ? wait : count(each.lag));
  const [verified, start] = cell("verified").children;
  start.hidden = each.checking !== null;
  put(verified, each.checking !== null ? `checking, ${Math.round(100 * each.checking)} %`
    : each.verified_at === null ? "never" : age(each.verified_at * 1000));
}

async function check(each) {
  for (const log of each.logs) await ask("check", { log, start: 1 }, signal, { "X-Duramen": "page" });
  await load();
}

$("log-query").addEventListener("input", () => go({ q: $("log-query").value }, true));
