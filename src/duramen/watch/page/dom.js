// Helpers of all views. Everything that comes from a log is put on the page with textContent: it can be read and does
// nothing. The place is the fragment of the address, so that links, Back and Forward work.

export const $ = (id) => document.getElementById(id);

export function make(kind, text, name) {
  const element = document.createElement(kind);
  if (text !== undefined && text !== null) element.textContent = text;
  if (name) element.className = name;
  return element;
}

/** Change a text only if it differs: a screen reader announces, and a selection loses, what is set again. */
export function put(element, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function button(text, action, label) {
  const made = make("button", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

/** Names and values as a list of definitions; values that stay the same are left alone. */
export function pairs(list, facts) {
  if ([...list.querySelectorAll("dt")].map((each) => each.textContent).join("\n") !== facts.map((each) => each[0]).join("\n")) {
    list.replaceChildren(...facts.map(([name]) => {
      const box = make("div");
      box.append(make("dt", name), make("dd"));
      return box;
    }));
  }
  list.querySelectorAll("dd").forEach((each, number) => put(each, facts[number][1]));
}

// --- the place

export function here() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function href(params) {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return "#" + new URLSearchParams(kept);
}

/** Go to a place: a new entry of the history, or with `replace` another address of the present one. */
export function go(params, replace) {
  if (href(params) === location.hash) return;
  if (replace) {
    history.replaceState(null, "", href(params));
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = href(params);
}

export function link(text, params) {
  const made = make("a", text);
  made.href = href(params);
  return made;
}

// --- the server

export async function ask(path, query, signal, headers) {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const response = await fetch("api/" + path + "?" + new URLSearchParams(kept), { signal, headers: headers || {} });
  const tree = await response.json();
  if (!response.ok) throw new Error(tree.error || response.statusText);
  return tree;
}

/** Run a request; a visit that ended is not an error. */
export async function guard(work, tell) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    const message = error instanceof TypeError ? "the server cannot be reached" : error.message;
    (tell || ((text) => put($("state"), text)))(message);
  }
}

export function pause(milliseconds, signal) {
  return new Promise((done, fail) => {
    const leave = () => { clearTimeout(timer); fail(new DOMException("left", "AbortError")); };
    const timer = setTimeout(() => { signal.removeEventListener("abort", leave); done(); }, milliseconds);
    signal.addEventListener("abort", leave);
  });
}

// --- numbers

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en-US");
}

export function many(number, name) {
  return `${count(number)} ${name}${number === 1 ? "" : "s"}`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) { bytes /= 1024; step += 1; }
  return (step ? bytes.toFixed(1) : bytes.toFixed(0)) + " " + units[step];
}

export function seconds(time) {
  if (time === null || time === undefined || !isFinite(time)) return "–";
  return time < 1 ? (time * 1000).toPrecision(2) * 1 + " ms" : time.toPrecision(3) * 1 + " s";
}

export function clock(time) {
  return time === null ? "–" : time.replace("T", " ").replace("+00:00", "").replace(/(\.\d{3})000$/, "$1");
}

/** How long ago, from milliseconds since the epoch. */
export function age(time) {
  const past = (Date.now() - time) / 1000;
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const [name, length] = units.find((unit) => Math.abs(past) >= unit[1]) || units[3];
  return new Intl.RelativeTimeFormat("en").format(-Math.round(past / length), name);
}

export function badge(health, reasons) {
  const made = make("span", health, "badge " + health);
  if (reasons && reasons.length) made.title = reasons.join("\n");
  return made;
}
