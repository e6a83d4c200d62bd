// The page: rows come over EventSource as JSON and are written with textContent, never as markup.
const $ = (id) => document.getElementById(id);
let csrf = document.querySelector("meta[name=csrf]").content;
const rows = new Map();
const nodes = new Map();
let keys = [];
let selected = "";
let opened = "";
let opener = null;

// Small things

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function span(seconds) {
  const s = Math.max(Math.floor(seconds), 0);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

const ago = (time) => (time ? span((Date.now() - Date.parse(time)) / 1000) : "–");
const clock = (time) => new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
const cores = (milli) => `${+(milli / 1000).toFixed(milli < 10000 ? 2 : 0)} cores`;
const gib = (bytes) => `${+(bytes / 2 ** 30).toFixed(bytes < 10 * 2 ** 30 ? 2 : 0)} GiB`;
const stateClass = (state) => `state ${state.replaceAll(" ", "-")}`;

function outlook(row) {
  if (row.trouble) return row.trouble;
  if (row.suspended) return "Suspended: Elasti leaves it alone until you resume it";
  if (row.state === "asleep") return "";
  if (row.state === "dozing") return "Serves with small requests; its room is given back";
  if (row.state === "falling asleep") return "Checks one last time that nothing arrives";
  if (row.sleepsAt) {
    const left = (Date.parse(row.sleepsAt) - Date.now()) / 1000;
    return left > 0 ? `Sleeps in ${span(left)} if unused` : "Sleeps soon";
  }
  const until = row.why.until ? ` (until ${new Date(row.why.until).toLocaleTimeString()})` : "";
  return (row.why.message || row.why.reason) + until;
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The table

function makeRow(row) {
  const link = element("a", { href: `#/${row.key}`, text: row.name, tabindex: "-1" });
  const name = element("td", {}, link, element("span", { class: "place", text: `  ${row.namespace}` }));
  const cells = Array.from({ length: 6 }, (_, at) => element("td", at > 2 ? { class: "number" } : {}));
  const state = element("span");
  cells[0].append(state);
  const node = element("tr", {
    onclick: (event) => { if (!event.target.closest("a")) location.hash = `/${row.key}`; },
  }, name, ...cells);
  return { node, state, cells };
}

function fill(made, row) {
  set(made.state, row.state);
  made.state.className = stateClass(row.state);
  set(made.cells[1], ago(row.since));
  const text = outlook(row);
  set(made.cells[2], text);
  made.cells[2].title = text;
  made.cells[2].classList.toggle("bad", Boolean(row.trouble));
  set(made.cells[3], row.held === null ? "–" : String(row.held));
  set(made.cells[4], row.coldStart === null ? "–" : `${row.coldStart} s`);
  set(made.cells[5], row.wakesToday);
}

function matches(row) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [row.key, row.service, row.state, row.trouble && "trouble", row.why.reason]
    .filter(Boolean).join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function put(row) {
  rows.set(row.key, row);
  let made = nodes.get(row.key);
  if (!made) {
    made = makeRow(row);
    nodes.set(row.key, made);
    let low = 0;
    for (let high = keys.length; low < high;) {
      const middle = (low + high) >> 1;
      if (keys[middle] < row.key) low = middle + 1; else high = middle;
    }
    const next = nodes.get(keys[low]);
    keys.splice(low, 0, row.key);
    $("rows").insertBefore(made.node, next ? next.node : null);
  }
  fill(made, row);
  made.node.hidden = !matches(row);
}

function drop(key) {
  nodes.get(key)?.node.remove();
  nodes.delete(key);
  rows.delete(key);
  keys = keys.filter((other) => other !== key);
}

function replaceAll(listed) {
  rows.clear();
  nodes.clear();
  const sorted = [...listed].sort((a, b) => (a.key < b.key ? -1 : 1));
  keys = sorted.map((row) => row.key);
  const made = document.createDocumentFragment();
  for (const row of sorted) {
    const entry = makeRow(row);
    rows.set(row.key, row);
    nodes.set(row.key, entry);
    fill(entry, row);
    entry.node.hidden = !matches(row);
    made.append(entry.node);
  }
  $("rows").replaceChildren(made);
  select(selected);
}

function showEmpty() {
  const shown = keys.some((key) => !nodes.get(key).node.hidden);
  $("empty").hidden = shown;
  $("empty").textContent = keys.length
    ? "Nothing matches the filter. Esc clears it."
    : "There are no ElastiServices here yet.";
}

// What stands above it

function showSummary(summary) {
  const order = ["trouble", "waking", "awake", "observed", "falling asleep", "dozing", "asleep"];
  const filter = $("filter");
  const made = order.filter((word) => summary.counts[word] || word === "awake" || word === "asleep").map((word) =>
    element("button", {
      class: word === "trouble" ? "trouble" : "",
      "aria-pressed": String(filter.value === word),
      onclick: () => { filter.value = filter.value === word ? "" : word; refilter(); showSummary(summary); },
    }, element("b", { text: String(summary.counts[word] || 0) }), ` ${word === "trouble" ? "in trouble" : word}`));
  $("counts").replaceChildren(...made);
  const { cpu, memory, ownCpu, ownMemory, uncounted } = summary.released;
  // A small cluster may release less than Elasti requests; then both figures stand for themselves.
  const isGain = cpu >= ownCpu && memory >= ownMemory;
  const own = ownCpu === null ? ""
    : isGain ? `; net of Elasti itself: ${cores(cpu - ownCpu)}, ${gib(memory - ownMemory)}`
    : `; Elasti itself requests ${cores(ownCpu)}, ${gib(ownMemory)}`;
  const rest = uncounted ? `; not counted: ${uncounted} without requests` : "";
  $("released").replaceChildren("Released now ", element("b", { text: `${cores(cpu)}, ${gib(memory)}` }), own + rest);
  $("released").title = "What the sleeping targets would request with their minimum replicas";
  document.title = summary.counts.trouble ? `(${summary.counts.trouble}) Elasti` : "Elasti";
}

function showTrouble() {
  const bad = keys.map((key) => rows.get(key)).filter((row) => row.trouble);
  const box = $("trouble");
  box.hidden = !bad.length;
  const shown = JSON.stringify(bad.map((row) => [row.key, row.trouble]));
  if (box.dataset.shown === shown) return;
  box.dataset.shown = shown;
  box.replaceChildren(
    element("h2", { text: `${bad.length} in trouble` }),
    element("ul", {}, ...bad.map((row) => element("li", {},
      element("button", { text: row.key, onclick: () => { location.hash = `/${row.key}`; } }),
      element("span", { text: row.trouble })))));
}

function refilter() {
  for (const [key, made] of nodes) made.node.hidden = !matches(rows.get(key));
  showEmpty();
}

function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
}

// What comes

function take(message) {
  if (message.all) replaceAll(message.rows);
  else for (const row of message.rows) put(row);
  for (const key of message.gone) drop(key);
  showSummary(message.summary);
  showTrouble();
  showEmpty();
  banner(message.problem);
  if (opened && (message.rows.some((row) => row.key === opened) || message.gone.includes(opened))) open(opened);
  if (!document.body.dataset.ready) {
    document.body.dataset.ready = "true";
    requestAnimationFrame(() => performance.mark("rows painted"));
  }
}

function listen() {
  // A server in a cluster shows the namespace that the address names.
  const source = new EventSource(`api/events${location.search}`);
  let problem = "";
  source.onmessage = (event) => { problem = ""; take(JSON.parse(event.data)); };
  source.addEventListener("csrf", (event) => { csrf = event.data; });
  source.addEventListener("problem", (event) => { problem = JSON.parse(event.data); banner(problem); });
  // Streams end now and then and begin again at once: that is not a problem.
  source.onerror = () => setTimeout(() => {
    if (problem || source.readyState === EventSource.OPEN) return;
    banner(source.readyState === EventSource.CLOSED
      ? "This page's session has ended. Reload the page; on your own machine, start elasti dashboard again."
      : "No connection to elasti dashboard; trying again. This page may be out of date.");
  }, 1500);
}

// One service

const svg = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

function strip(history) {
  const now = Date.now(), start = now - 7 * 86400e3, at = (time) => Math.max((Date.parse(time) - start) / 6048e5 * 1000, 0);
  const known = Math.min(at(history.knownSince), 1000);
  const text = history.text + (known > 0 ? `; unknown before ${clock(history.knownSince)}` : "");
  const parts = [
    svg("rect", { class: "up", x: known, y: 6, width: 1000 - known, height: 20 }),
    svg("rect", { class: "unknown", x: 0, y: 6, width: known, height: 20 }, svg("title", {}, "unknown")),
  ];
  for (const one of history.sleeps) {
    const from = at(one.since), until = one.until ? at(one.until) : 1000;
    const span = `${one.mode === "Doze" ? "dozing" : "asleep"} from ${clock(one.since)}${one.until ? `, woken ${clock(one.until)}: ${one.cause || "unknown cause"}` : ""}`;
    if (until > 0) parts.push(svg("rect", { class: "down", x: from, y: 6, width: Math.max(until - from, 1), height: 20 }, svg("title", {}, span)));
    if (one.until && until > 0) parts.push(svg("rect", { class: "wake", x: until, y: 2, width: 1.5, height: 28 }, svg("title", {}, span)));
  }
  const box = element("div", { class: "strip" });
  box.append(svg("svg", { class: "strip", viewBox: "0 0 1000 34", preserveAspectRatio: "none", role: "img", "aria-label": text }, ...parts),
    element("div", { class: "ends" }, element("span", { text: "7 days ago" }), element("span", { text: "now" })),
    element("p", { class: "place", text }),
    element("p", { class: "place" }, ...[["up", "awake"], ["down", "asleep"], ["wake", "woken"]].map(([kind, word]) =>
      element("span", { class: `key ${kind}`, text: word }))));
  return box;
}

function bars(entries) {
  const most = Math.max(...entries.map((entry) => entry.seconds), 0.1);
  return entries.map((entry) => element("div", { class: "bar" },
    element("span", { text: entry.name }),
    element("meter", { min: 0, max: most, value: entry.seconds, "aria-label": entry.name }),
    element("span", { class: "number", text: `${entry.seconds} s` })));
}

function facts(pairs) {
  return element("dl", {}, ...pairs.filter(([, text]) => text).flatMap(([name, text]) =>
    [element("dt", { text: name }), element("dd", { text })]));
}

function table(heads, lines) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { text })))),
    element("tbody", {}, ...lines.map((line) => element("tr", {}, ...line.map((text) => element("td", { text }))))));
}

function shown(trigger) {
  if (trigger.lastError) return `failing: ${trigger.lastError}`;
  const threshold = trigger.threshold || "?";
  return trigger.quietSince ? `below ${threshold} for ${ago(trigger.quietSince)}` : "active within the last minute";
}

const LABELS = { wake: "Wake", "keep-1h": "Keep awake 1 h", "keep-3h": "Keep awake 3 h", sleep: "Sleep", suspend: "Suspend", resume: "Resume" };

async function act(key, action) {
  set($("said"), `${LABELS[action]} …`);
  try {
    const answer = await fetch(`api/services/${key}/${action}${location.search}`, { method: "POST", headers: { "X-CSRF-Token": csrf } });
    const body = await answer.json();
    set($("said"), answer.ok ? `${key}: ${body.message}` : `Not done: ${body.message}`);
    if (answer.ok) open(key);
  } catch {
    set($("said"), "Not done: no connection to elasti dashboard.");
  }
}

function detail(key, found) {
  const row = found.row;
  const cold = found.history.sleeps.filter((one) => one.seconds).slice(-5).reverse();
  const events = found.events.map((e) => [e.series?.lastObservedTime || e.lastTimestamp || e.eventTime || e.metadata.creationTimestamp, e])
    .sort(([a], [b]) => (a < b ? 1 : -1)).slice(0, 20);
  const live = (index) => (found.values[index] === undefined ? "" : `${found.values[index]} now, `);
  return [
    element("button", { class: "close", text: "Close", onclick: () => { location.hash = ""; } }),
    element("h2", { text: key }),
    element("p", { class: "sentence" }, element("span", { class: stateClass(row.state), text: row.state }), row.since ? ` for ${ago(row.since)}` : ""),
    element("p", { class: row.trouble ? "sentence bad" : "sentence", text: outlook(row) }),
    element("div", { class: "actions" }, ...found.actions.map((action) => element("button",
      { text: LABELS[action], class: ["wake", "resume"].includes(action) ? "primary" : "", "data-action": action, onclick: () => act(key, action) }))),
    ...(found.actionsWhy ? [element("p", { class: "place", text: found.actionsWhy })] : []),
    element("h3", { text: "Last seven days" }), strip(found.history),
    element("h3", { text: "Cold starts" }),
    ...(found.stages.length ? [element("p", { class: "place", text: "Stages of the last one, each counted from the one before, as its pod reports them" }), ...bars(found.stages)] : []),
    ...(cold.length ? [element("p", { class: "place", text: "From the first request until traffic was switched to the pods" }),
      ...bars(cold.map((one) => ({ name: `${clock(one.until)}, ${one.cause || "?"}`, seconds: one.seconds })))]
      : [element("p", { class: "place", text: "None recorded yet." })]),
    element("h3", { text: "Now" }),
    facts([
      ["Target", row.target], ["Held", row.held === null ? `unknown: ${found.heldWhy}` : String(row.held)],
      ["Last wake", row.lastWake && `${clock(row.lastWake.time)}: ${row.lastWake.cause}${row.lastWake.client ? ` (${row.lastWake.client})` : ""}`],
      ["Kept awake until", row.keptUntil && clock(row.keptUntil)],
      ["Schedule", found.schedule],
      ["Depends on", found.dependencies.join("; ")],
      ["Sleeps with it", found.workers.join("; ")],
      ...found.triggers.map((one, index) => [`Trigger ${one.type}`, live(index) + shown(one)]),
      ["Released", row.released ? `${cores(row.released.cpu)}, ${gib(row.released.memory)} now` : row.counted ? "" : "not counted: its pods have no requests"],
    ]),
    element("h3", { text: "Conditions" }),
    table(["Type", "Status", "For", "Reason", "Message"], found.conditions.map((c) => [c.type, c.status, ago(c.lastTransitionTime), c.reason, c.message || ""])),
    element("h3", { text: "Events" }),
    events.length ? table(["Ago", "Reason", "Message"], events.map(([time, e]) => [ago(time), e.reason, e.message]))
      : element("p", { class: "place", text: found.eventsWhy || "None. A cluster keeps events for about an hour." }),
    element("h3", { text: "YAML" }), element("pre", { text: found.yaml, tabindex: "0" }),
  ];
}

async function open(key) {
  const fresh = opened !== key;
  if (fresh) opener = document.activeElement;
  opened = key;
  const panel = $("detail");
  let made;
  try {
    const answer = await fetch(`api/services/${key}${location.search}`);
    const body = await answer.json();
    made = answer.ok ? detail(key, body) : [element("h2", { text: key }), element("p", { class: "bad", text: body.message })];
  } catch {
    made = [element("p", { class: "bad", text: "No connection to elasti dashboard." })];
  }
  if (opened !== key) return;
  const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.action : undefined;
  const top = panel.scrollTop;
  panel.replaceChildren(...made);
  panel.hidden = false;
  panel.scrollTop = fresh ? 0 : top;
  if (fresh) panel.focus();
  else if (focused) panel.querySelector(`[data-action="${focused}"]`)?.focus();
}

function close() {
  opened = "";
  $("detail").hidden = true;
  opener?.focus?.();
}

function route() {
  const key = decodeURIComponent(location.hash.slice(2));
  if (key) { select(key); open(key); } else close();
}

// Keys

function select(key) {
  nodes.get(selected)?.node.classList.remove("selected");
  selected = key;
  const made = nodes.get(key);
  made?.node.classList.add("selected");
  made?.node.scrollIntoView({ block: "nearest" });
}

function move(step) {
  const shown = keys.filter((key) => !nodes.get(key).node.hidden);
  const at = shown.indexOf(selected);
  const next = shown[Math.min(Math.max(at + step, 0), shown.length - 1)];
  if (next) { select(next); if (opened) location.hash = `/${next}`; }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = event.target === $("filter");
  if (event.key === "Escape") {
    if (typing) { if ($("filter").value) { $("filter").value = ""; refilter(); } $("filter").blur(); }
    else if (opened) location.hash = "";
    else if ($("filter").value) { $("filter").value = ""; refilter(); }
  } else if (event.key === "Enter" && typing) { $("filter").blur(); move(0); }
  else if (typing || event.target.closest("button, a, input")) return;
  else if (event.key === "/") $("filter").focus();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter" && selected) location.hash = `/${selected}`;
  else return;
  event.preventDefault();
});
$("filter").addEventListener("input", refilter);
window.addEventListener("hashchange", route);
setInterval(() => { for (const [key, made] of nodes) if (!made.node.hidden) fill(made, rows.get(key)); }, 10000);
listen();
route();
