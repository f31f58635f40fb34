// The router: which view the address names. A view has `enter(params, signal)`, which draws a loading state and loads,
// `update(params)` for another address of the same view, and `tick()` once a second while the page is visible. The
// signal ends every request of a view when it is left, so that no view shows the numbers of another log.
import { $, guard, here, href, make, put } from "./dom.js";
import * as consumers from "./consumers.js";
import * as log from "./log.js";
import * as overview from "./overview.js";
import * as rates from "./rates.js";
import * as records from "./records.js";
import * as segments from "./segments.js";

const TABS = { records, consumers, rates, segments };
let visit = { key: null, views: [], controller: new AbortController() };

function route(event) {
  const params = here();
  const tab = params.tab in TABS ? params.tab : "records";
  const key = params.log ? [params.log, tab].join("\n") : "overview";
  if (key === visit.key) {
    for (const view of visit.views) guard(() => view.update(params));
    return;
  }
  const stays = visit.log === params.log;
  visit.controller.abort();
  visit = { key, log: params.log, controller: new AbortController(), views: params.log ? [log, TABS[tab]] : [overview] };
  put($("state"), "");
  $("overview").hidden = Boolean(params.log);
  $("log").hidden = !params.log;
  for (const name of Object.keys(TABS)) $(name + "-view").hidden = name !== tab;
  drawTabs(params.log, tab);
  document.title = (params.log ? params.log.split("/").slice(-2).join("/") + " · " : "") + "Duramen";
  for (const view of visit.views) guard(() => view.enter(params, visit.controller.signal));
  if (event && !stays) (params.log ? $("where") : $("overview").querySelector("h2")).focus();
}

function drawTabs(name, tab) {
  $("tabs").replaceChildren(...Object.keys(TABS).map((each) => {
    const made = make("a", each[0].toUpperCase() + each.slice(1));
    made.href = href({ log: name, tab: each });
    if (each === tab) made.setAttribute("aria-current", "page");
    return made;
  }));
}

function tick() {
  if (document.hidden) return;
  for (const view of visit.views) if (view.tick) guard(() => view.tick());
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", tick);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  $(here().log ? "q" : "log-query").focus();
});
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
setInterval(tick, 1000);
route();
