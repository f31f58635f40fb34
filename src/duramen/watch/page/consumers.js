// Groups and cursors of a log or of its topic: the lag of each partition, and its history.
import { $, age, ask, count, here, link, make, many, pairs, put } from "./dom.js";
import { draw, drawRange } from "./chart.js";

const COLUMNS = ["Partition", "At offset", "End", "Lag", "In flight", "Expired", "Next deadline"];
let signal = null;
let busy = false;
let loadedAt = 0;

export async function enter(params, ended) {
  signal = ended;
  busy = false;
  $("consumers").replaceChildren();
  put($("consumers-state"), "Loading…");
  await load();
}

export const update = load;

export async function tick() {
  if (!busy && Date.now() - loadedAt > 1900) await load();
}

async function load() {
  const { log, range } = here();
  drawRange($("consumers-view").querySelector(".range"), range);
  busy = true;
  loadedAt = Date.now();
  try {
    show(await ask("consumers", { log }, signal), range);
  } finally {
    busy = false;
  }
}

function show(found, range) {
  const shown = found.consumers.length;
  put($("consumers-state"), !found.count ? "No group or cursor reads this log."
    : (shown < found.count ? `${count(shown)} of ` : "") + many(found.count, "consumer")
      + (range === "day" && !found.has_history ? "; the server keeps no history (see --state)" : ""));
  const known = new Map([...$("consumers").children].map((each) => [each.dataset.name, each]));
  found.consumers.forEach((each, number) => {
    const key = `${each.kind} ${each.name}`;
    const card = known.get(key) || newCard(key, each);
    known.delete(key);
    if ($("consumers").children[number] !== card) $("consumers").insertBefore(card, $("consumers").children[number] || null);
    fill(card, each, range);
  });
  for (const card of known.values()) card.remove();
}

/** A cursor leases nothing. */
function columns(each) {
  return each.kind === "group" ? COLUMNS : COLUMNS.slice(0, 4);
}

function newCard(key, each) {
  const card = make("article");
  card.dataset.name = key;
  const title = make("h3");
  title.append(make("small", each.kind + " "), each.name);
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  chart.setAttribute("role", "img");
  const table = make("table", null, "cards");
  const head = table.createTHead().insertRow();
  head.append(...columns(each).map((name, number) => make("th", name, number ? "number" : "")));
  table.append(make("tbody"));
  card.append(title, make("p", "", "damage"), make("dl"), chart, table);
  return card;
}

function fill(card, each, range) {
  const sum = (name) => each.parts.reduce((total, part) => total + (part[name] || 0), 0);
  const problems = each.parts.filter((part) => part.problem).map((part) => part.problem);
  put(card.querySelector("p"), problems.join("\n"));
  card.querySelector("p").hidden = !problems.length;
  const facts = [["Lag", count(sum("lag"))]];
  if (each.kind === "group") facts.push(["In flight", count(sum("in_flight"))], ["Expired", count(sum("expired"))], ["Members", members(each.parts)]);
  pairs(card.querySelector("dl"), facts);
  const chart = card.querySelector("svg");
  chart.toggleAttribute("hidden", !each.recent);
  if (each.recent) draw(chart, `Lag of ${each.name}`, range === "day" ? each.day : each.recent, count);
  const body = card.querySelector("tbody");
  if (body.rows.length !== each.parts.length) body.replaceChildren(...each.parts.map((part) => partRow(part, columns(each))));
  each.parts.forEach((part, number) => fillPart(body.rows[number], part));
}

/** The consumers that hold records now, with what each holds. */
function members(parts) {
  const held = new Map();
  for (const part of parts) for (const one of part.members) {
    const name = one.consumer === null ? "unnamed" : one.consumer;
    held.set(name, (held.get(name) || 0) + one.in_flight);
  }
  return held.size ? [...held].map(([name, records]) => `${name} (${count(records)})`).join(", ") : "none";
}

function partRow(part, names) {
  const row = make("tr"), first = make("th");
  first.scope = "row";
  first.append(link(part.log.includes("#") ? part.log.split("/").pop() : "0", { log: part.log, at: part.offset === null ? "" : part.offset, order: "oldest" }));
  row.append(first, ...names.slice(1).map((name) => {
    const cell = make("td", "", "number");
    cell.dataset.label = name;
    return cell;
  }));
  return row;
}

function fillPart(row, part) {
  const due = part.next_deadline_ms === null ? "–" : age(part.next_deadline_ms);
  const values = [part.offset, part.next_offset, part.lag, part.in_flight, part.expired].map(count);
  [...row.cells].slice(1).forEach((cell, number) => put(cell, [...values, due][number]));
}
