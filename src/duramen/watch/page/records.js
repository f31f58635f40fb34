// The records of a log: newest or oldest first, or live, through a filter; and the record that the address names.
import { $, ask, button, clock, count, go, guard, here, href, make, many, pause, put, size } from "./dom.js";
import { hideRecord, showRecord } from "./record.js";

const FIELDS = ["order", "at", "q", "key", "header", "since", "until"];
const DEFAULT_ORDER = "newest";
const MOST_ROWS = 1000;
let visit = null;
let list = null; // one filter: its parameters, where it goes on, and how far it looked

export async function enter(params, signal) {
  visit = signal;
  list = null;
  hideRecord();
  await update(params);
}

export async function update(params) {
  const wanted = FIELDS.map((name) => params[name] || "").join("\n");
  if (!list || list.key !== wanted) {
    if (list) list.controller.abort();
    list = { key: wanted, params, controller: new AbortController(), next: null, looked: 0, paused: false };
    visit.addEventListener("abort", list.controller.abort.bind(list.controller));
    for (const name of FIELDS) $(name).value = params[name] || (name === "order" ? DEFAULT_ORDER : "");
    $("at").disabled = $("since").disabled = $("until").disabled = params.order === "live";
    wait();
    const started = list;
    guard(() => (params.order === "live" ? live(started) : load(started)), (message) => fail(started, message));
  }
  mark(params.offset);
  if (params.offset) await showRecord(params.log, Number(params.offset), visit);
  else hideRecord();
}

/** An empty table is not shown; the line above it says why. */
function settle() {
  $("records").removeAttribute("aria-busy");
  $("records").hidden = !$("records").tBodies[0].rows.length;
}

function wait() {
  $("records").hidden = false;
  $("records").tBodies[0].replaceChildren();
  $("records").setAttribute("aria-busy", "true");
  $("records-on").hidden = true;
  put($("records-state"), "Loading…");
}

function fail(started, message) {
  if (started !== list) return;
  settle();
  const state = $("records-state");
  state.replaceChildren(make("span", message, "damage"));
}

// --- pages

async function load(started) {
  const { log, at, ...rest } = started.params;
  const query = { log, order: DEFAULT_ORDER, ...pick(rest), at: started.next === null ? at : started.next, count: 50 };
  const found = await ask("records", query, started.controller.signal);
  $("records").tBodies[0].append(...found.records.map((record) => row(record)));
  settle();
  started.next = found.next;
  started.looked += found.looked;
  const shown = $("records").tBodies[0].rows.length;
  const isFiltered = ["q", "key", "header"].some((name) => started.params[name]);
  const looked = isFiltered ? ` among ${count(started.looked)}` : "";
  const ending = found.next === null ? (shown ? ", that is all" : "") : found.is_finished ? "" : "; not finished";
  put($("records-state"), (shown ? many(shown, "record") : "No records") + looked + (found.problem ? "" : ending));
  if (found.problem) $("records-state").append(make("span", "; " + found.problem, "damage"));
  mark(here().offset);
  $("records-on").hidden = found.next === null || shown >= MOST_ROWS;
  put($("records-on"), found.is_finished ? "More" : "Not finished: go on");
}

function pick(params) {
  return Object.fromEntries(FIELDS.filter((name) => params[name]).map((name) => [name, params[name]]));
}

function row(record) {
  const made = make("tr");
  const offset = make("td", null, "number");
  const open = make("a", count(record.offset));
  open.href = href({ ...here(), offset: record.offset });
  open.addEventListener("click", (event) => { // the filter may have changed since
    event.preventDefault();
    go({ ...here(), offset: record.offset });
  });
  offset.append(open);
  made.dataset.offset = record.offset;
  const value = make("td", null, "value");
  value.append(make("div", record.preview)); // a div can be cut after two lines
  made.append(offset, make("td", clock(record.timestamp), "time"), make("td", record.key === null ? "–" : record.key, "key"),
    make("td", size(record.size_bytes), "number"), value);
  made.addEventListener("click", (event) => { if (!event.target.closest("a") && !String(getSelection())) open.click(); });
  return made;
}

function mark(offset) {
  for (const each of $("records").tBodies[0].rows) each.classList.toggle("chosen", each.dataset.offset === String(offset));
}

// --- live

async function live(started) {
  const signal = started.controller.signal;
  const { log, q, key, header } = started.params;
  let after, arrived = 0, isTold = false;
  for (;;) {
    while (document.hidden || started.paused) await pause(300, signal);
    let found;
    try {
      found = await ask("tail", { log, q, key, header, after, count: 50 }, signal);
    } catch (error) { // the log or the server may come back
      if (error.name === "AbortError") throw error;
      fail(started, error instanceof TypeError ? "the server cannot be reached" : error.message);
      isTold = false;
      await pause(2000, signal);
      continue;
    }
    if (started.paused) continue;
    if (after !== undefined) arrived += found.records.length + found.skipped;
    prepend(found, after === undefined);
    after = found.next;
    if (!isTold || found.records.length || found.skipped) tellLive(started, arrived, found.problem);
    isTold = true;
    if (found.records.length >= 50) await pause(500, signal); // a fast log: the newest, twice a second
  }
}

function prepend(found, isFirst) {
  const body = $("records").tBodies[0];
  const rows = found.records.map((record) => row(record));
  if (found.skipped && !isFirst) {
    const gap = make("tr"), cell = make("td", `${many(found.skipped, "record")} not shown: they came too fast`, "quiet");
    cell.colSpan = 5;
    gap.append(cell);
    rows.push(gap);
  }
  body.prepend(...rows);
  while (body.rows.length > 500) body.lastElementChild.remove();
  settle();
  mark(here().offset);
}

function tellLive(started, arrived, problem) {
  const text = started.paused ? "Paused" : `Live, ${many(arrived, "new record")} ` + (problem ? "; " + problem : "");
  const state = $("records-state");
  if (!state.querySelector("button")) {
    state.replaceChildren(make("span"), button("Pause", () => {
      started.paused = !started.paused;
      put(state.lastElementChild, started.paused ? "Go on" : "Pause");
      if (started.paused) put(state.firstElementChild, "Paused ");
      else put(state.firstElementChild, "Live ");
    }));
  }
  put(state.firstElementChild, text);
}

// --- the form

function submit(fields) {
  const { log, tab } = here();
  const order = fields.order === DEFAULT_ORDER ? "" : fields.order;
  go({ log, tab, ...fields, order });
}

$("browse").addEventListener("submit", (event) => {
  event.preventDefault();
  submit(Object.fromEntries(FIELDS.map((name) => [name, $(name).disabled ? "" : $(name).value.trim()])));
});
$("order").addEventListener("change", () => $("browse").requestSubmit());
$("clear").addEventListener("click", () => submit({}));
$("records-on").addEventListener("click", () => {
  const started = list;
  put($("records-state"), "Loading…");
  guard(() => load(started), (message) => fail(started, message));
});
