// One record: its value as JSON, text or hexadecimal, to copy and to download, and every field of its bytes.
import { $, ask, clock, count, go, guard, here, make, pairs, put, size } from "./dom.js";

const MOST_NODES = 50000; // more of them make a browser slow
let record = null;
let chosen = null; // the form that the reader chose, for all records
let opener = null;

export function hideRecord() {
  if ($("record").hidden) return;
  $("record").hidden = true;
  record = null;
  if (opener && opener.isConnected) opener.focus();
  opener = null;
}

export async function showRecord(log, offset, signal) {
  if (record && record.log === log && record.offset === offset) return;
  record = { log, offset };
  if ($("record").hidden) opener = document.activeElement;
  $("record").hidden = false;
  $("record-body").hidden = true;
  $("record-problem").hidden = true;
  put($("record-title"), `Offset ${count(offset)}, loading…`);
  $("record").setAttribute("aria-busy", "true");
  const asked = record;
  try {
    const found = await ask("record", { log, offset }, signal);
    if (record !== asked) return;
    Object.assign(record, found);
    draw();
  } catch (error) {
    if (record !== asked || error.name === "AbortError") return;
    put($("record-problem"), error.message);
    $("record-problem").hidden = false;
  }
  $("record").removeAttribute("aria-busy");
  put($("record-title"), `Offset ${count(offset)}`);
  $("record-older").disabled = offset === 0;
  $("record-title").focus({ preventScroll: true });
  const top = $("record").getBoundingClientRect().top;
  if (top < 0 || top > innerHeight - 200) $("record").scrollIntoView();
}

function draw() {
  $("record-body").hidden = false;
  pairs($("record-facts"), [
    ["Time (UTC)", clock(record.timestamp)], ["Key", record.key === null ? "–" : record.key],
    ["Size", record.is_null ? "no value" : size(record.size_bytes)],
    ...(record.decoded && record.decoded.text ? [["JSON shows", `${record.decoded.kind}, decoded`]] : []),
  ]);
  $("record-headers").hidden = !record.headers.length;
  $("record-headers").tBodies[0].replaceChildren(...record.headers.map((pair) => cells(pair)));
  put($("record-place"), `${record.path}, byte ${count(record.position)}`);
  $("fields").tBodies[0].replaceChildren(...record.fields.map((field) => {
    const last = field.position + field.length - 1;
    return cells([field.length > 1 ? `${field.position}–${last}` : String(field.position),
      field.name + (field.note ? ` (${field.note})` : ""), cut(field.value, 300), cut(spaced(field.hex), 200)]);
  }));
  $("download").href = "api/value?" + new URLSearchParams({ log: record.log, offset: record.offset });
  put($("copy-state"), "");
  const isDecoded = record.decoded && record.decoded.text;
  record.json = isDecoded ? pretty(record.decoded.text) : record.is_text && !record.is_cut ? pretty(record.value_text) : null;
  drawValue(record.json ? "json" : record.is_text ? "text" : "hex");
}

function cells(texts) {
  const row = make("tr");
  row.append(...texts.map((text) => make("td", text)));
  return row;
}

function drawValue(natural) {
  const possible = (form) => form !== "json" || record.json;
  const form = chosen && possible(chosen) && (chosen !== "text" || record.is_text) ? chosen : natural;
  for (const each of $("forms").children) {
    each.setAttribute("aria-pressed", String(each.dataset.form === form));
    each.disabled = !possible(each.dataset.form);
  }
  const end = record.is_cut ? [make("span", "\n… the rest is in the download", "quiet")] : [];
  const body = form === "json" ? record.json : [form === "text" ? record.value_text : hexLines(record.value_hex)];
  $("value").className = form;
  $("value").replaceChildren(...body, ...end);
}

// --- JSON

/** JSON on several lines, as nodes; null if the text is not JSON or has too many parts. Numbers and strings stay as they are written. */
export function pretty(text) {
  try {
    const tree = JSON.parse(text);
    if (tree === null || typeof tree !== "object") return null;
  } catch (error) {
    return null;
  }
  const nodes = [];
  let depth = 0, before = "";
  const line = () => "\n" + "  ".repeat(Math.min(depth, 40));
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    const isEmpty = closes && (before === "{" || before === "[");
    if (closes ? !isEmpty : before === "{" || before === "[" || before === ",") nodes.push(line());
    if (token === "{" || token === "[") depth += 1;
    if (token === ":") {
      if (nodes.length) nodes[nodes.length - 1].className = "name";
      nodes.push(": ");
    } else if (/^[{}[\],]$/.test(token)) nodes.push(token);
    else nodes.push(make("span", token, token[0] === '"' ? "string" : "atom"));
    before = token;
    if (nodes.length > MOST_NODES) return null;
  }
  return nodes;
}

function spaced(hex) { return hex.replace(/../g, "$& ").trim(); }

function cut(text, most) { return text.length > most ? text.slice(0, most) + "…" : text; }

function hexLines(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const part = hex.slice(at, at + 32);
    const text = part.replace(/../g, (pair) => {
      const code = parseInt(pair, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
    });
    lines.push((at / 2).toString(16).padStart(6, "0") + "  " + spaced(part).padEnd(47) + "  " + text);
  }
  return lines.join("\n");
}

// --- actions

async function copy() {
  const text = $("value").textContent;
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else { // without TLS, a browser gives the clipboard to pages of this machine only
    getSelection().selectAllChildren($("value"));
    if (!document.execCommand("copy")) throw new Error("the browser refuses to copy");
  }
  put($("copy-state"), "copied");
}

const step = (by) => go({ ...here(), offset: record.offset + by });
const close = () => { const { offset, ...rest } = here(); go(rest); };
for (const each of $("forms").children) each.addEventListener("click", () => { chosen = each.dataset.form; drawValue(chosen); });
$("copy").addEventListener("click", () => guard(copy, (message) => put($("copy-state"), message)));
$("record-older").addEventListener("click", () => step(-1));
$("record-newer").addEventListener("click", () => step(1));
$("record-close").addEventListener("click", close);
$("record").addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
