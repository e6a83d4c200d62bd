// The page: rows come over EventSource as JSON and are written with textContent, never as markup.
const $ = (id) => document.getElementById(id);
let csrf = document.querySelector("meta[name=csrf]").content;
const rows = new Map();
const nodes = new Map();
const tiles = new Map();
const groups = new Map();
const folded = new Set();
// A page of thousands is laid out in seconds: the table has this many lines, and more as its end comes into view.
const STEP = 400;
let limit = STEP;
let keys = [];
let order = { by: "", down: false };
let grouped = false;
let wanted = [];
let selected = "";
let opened = "";
let opener = null;
let view = "services";
let by = "";
let fleet = null;

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
const hours = (seconds) => (seconds / 3600).toLocaleString([], { maximumFractionDigits: seconds < 360000 ? 1 : 0 });
const percent = (share) => `${Math.round(share * 100)} %`;
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
  made.node.classList.toggle("trouble", Boolean(row.trouble));
  set(made.cells[3], row.held === null ? "–" : String(row.held));
  made.cells[3].classList.toggle("holds", row.held > 0);
  set(made.cells[4], row.coldStart === null ? "–" : `${row.coldStart} s`);
  set(made.cells[5], row.wakesToday);
}

const STATES = ["waking", "falling asleep", "awake", "observed", "dozing", "asleep", "pending", "not ready"];

function matches(row) {
  const [whole] = wanted;
  // The words of the figures above mean exactly what they count.
  if (wanted.length === 1 && whole === "trouble") return Boolean(row.trouble);
  if (wanted.length === 1 && whole === "held") return row.held > 0;
  if (STATES.includes(wanted.join(" "))) return row.state === wanted.join(" ");
  const text = [row.key, row.service, row.state, row.trouble && "trouble", row.why.reason]
    .filter(Boolean).join(" ").toLowerCase();
  return wanted.every((word) => text.includes(word));
}

function put(row) {
  rows.set(row.key, row);
  if (nodes.has(row.key)) fill(nodes.get(row.key), row);
}

function nodeOf(key) {
  if (!nodes.has(key)) {
    nodes.set(key, makeRow(rows.get(key)));
    fill(nodes.get(key), rows.get(key));
  }
  return nodes.get(key).node;
}

// Order and groups

// What a column is sorted by; null comes last. Of numbers the most comes first, at the first press.
const WORTH = {
  name: (row) => row.name,
  state: (row) => STATES.indexOf(row.state),
  since: (row) => (row.since ? Date.now() - Date.parse(row.since) : null),
  outlook: (row) => (row.trouble ? `0${row.trouble}` : row.sleepsAt ? `1${row.sleepsAt}` : outlook(row) ? `2${outlook(row)}` : null),
  held: (row) => row.held,
  coldStart: (row) => row.coldStart,
  wakesToday: (row) => parseInt(row.wakesToday, 10),
};

// The group of a row: its namespace, or the value of the chosen label.
const groupOf = (row) => (by ? fleet?.labels[row.key]?.[by] ?? "–" : row.namespace);

function sortedKeys() {
  const worth = WORTH[order.by] || ((row) => (row.trouble ? 0 : 1));
  const entries = [...rows.values()].filter(matches).map((row) => [worth(row), row]);
  entries.sort(([x, a], [y, b]) => {
    if (grouped && groupOf(a) !== groupOf(b)) return groupOf(a) < groupOf(b) ? -1 : 1;
    if (x === y) return a.key < b.key ? -1 : 1;
    if (x === null || y === null) return x === null ? 1 : -1;
    return (x < y) === order.down ? 1 : -1;
  });
  return entries.map(([, row]) => row.key);
}

function groupRow(name) {
  if (!groups.has(name)) {
    const text = element("span", { class: "place" });
    const button = element("button", {
      onclick: () => { if (!folded.delete(name)) folded.add(name); arrange(true); },
    }, name);
    groups.set(name, { button, text, node: element("tr", { class: "group" }, element("th", { scope: "rowgroup", colspan: 7 }, button, text)) });
  }
  return groups.get(name);
}

// What some rows have together now.
function totals(some) {
  const one = { all: 0, trouble: 0, held: null, cpu: 0, memory: 0, uncounted: 0, recommended: 0, judged: 0, states: {}, keys: [] };
  for (const row of some) {
    one.all += 1;
    one.keys.push(row.key);
    if (row.trouble) one.trouble += 1;
    if (row.held !== null) one.held += row.held;
    if (row.released) { one.cpu += row.released.cpu; one.memory += row.released.memory; }
    if (row.state === "asleep" && !row.counted) one.uncounted += 1;
    if (row.observed) { one.judged += 1; if (row.observed.verdict === "Recommended") one.recommended += 1; }
    one.states[row.state] = (one.states[row.state] || 0) + 1;
  }
  return one;
}

function grouping() {
  const found = new Map();
  for (const row of rows.values()) {
    const name = groupOf(row);
    if (found.has(name)) found.get(name).push(row);
    else found.set(name, [row]);
  }
  return new Map([...found].map(([name, some]) => [name, totals(some)]));
}

function fillGroups() {
  const found = grouping();
  $("group").hidden = found.size < 2 && !grouped;
  set($("group"), `Group by ${by || "namespace"}`);
  if (!grouped) return;
  for (const [name, one] of found) {
    const made = groupRow(name);
    const parts = STATES.filter((state) => one.states[state]).map((state) => `${one.states[state]} ${state}`);
    set(made.text, [String(one.all), ...(one.trouble ? [`${one.trouble} in trouble`] : []), ...parts].join(" · "));
    made.button.setAttribute("aria-expanded", String(!folded.has(name)));
  }
}

// Write the lines in their order; `afresh` if most of them change.
function arrange(afresh = false) {
  const sorted = sortedKeys(), lines = [];
  keys = grouped ? sorted.filter((key) => !folded.has(groupOf(rows.get(key)))) : sorted;
  let last = null, left = limit;
  for (const key of sorted) {
    const name = groupOf(rows.get(key));
    if (grouped && name !== last) lines.push(groupRow(name).node);
    last = name;
    if (grouped && folded.has(name)) continue;
    if (left === 0) break;
    left -= 1;
    lines.push(nodeOf(key));
  }
  fillGroups();
  $("more").hidden = keys.length <= limit;
  set($("more"), `${limit} of ${keys.length} shown; the next follow as you scroll.`);
  $("empty").hidden = sorted.length > 0;
  set($("empty"), rows.size ? "Nothing matches the filter. Esc clears it." : "There are no ElastiServices here yet.");
  if (afresh) {
    const focused = document.activeElement;
    $("rows").replaceChildren(...lines);
    if (focused.isConnected) focused.focus();
    return;
  }
  // Most messages move few rows: only those are moved.
  let at = $("rows").firstChild;
  for (const line of lines) {
    if (at && at !== line && at.nextSibling === line) { at.remove(); at = line; }
    if (at === line) at = at.nextSibling;
    else $("rows").insertBefore(line, at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

function rearrange() {
  limit = STEP;
  arrange(true);
}

function sortBy(head) {
  const by = head.dataset.by, first = head.classList.contains("number");
  if (order.by !== by) order = { by, down: first };
  else if (order.down === first) order = { by, down: !first };
  else order = { by: "", down: false };
  for (const other of document.querySelectorAll("th[data-by]")) {
    if (other.dataset.by === order.by) other.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else other.removeAttribute("aria-sort");
  }
  rearrange();
}

function toggleGroups() {
  if ($("group").hidden) return;
  grouped = !grouped;
  $("group").setAttribute("aria-pressed", String(grouped));
  $("rows").classList.toggle("grouped", grouped);
  rearrange();
}

// What stands above it

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

function tile(word) {
  if (tiles.has(word)) return tiles.get(word);
  const number = element("b"), bars = element("span", { class: "bars", "aria-hidden": "true" }, element("i"), element("i"), element("i"));
  const node = element("button", {
    class: `tile ${word.replaceAll(" ", "-")}`,
    onclick: () => { $("filter").value = $("filter").value === word ? "" : word; refilter(); if (view !== "services") location.hash = "services"; },
  }, number, element("span", { text: word === "trouble" ? " in trouble" : ` ${word}` }), bars);
  tiles.set(word, { node, number });
  return tiles.get(word);
}

// What the rows add up to; `own` is what Elasti's own pods request.
function showSummary(own) {
  const all = totals(rows.values()), counts = { ...all.states, trouble: all.trouble, held: all.held ?? "–" };
  const always = ["held", "waking", "awake", "asleep"];
  const made = ["trouble", ...always.slice(0, 2), "falling asleep", "awake", "observed", "dozing", "asleep"]
    .filter((word) => counts[word] || always.includes(word));
  for (const word of made) {
    const { node, number } = tile(word);
    const text = String(counts[word] || 0);
    if (number.textContent && number.textContent !== text && !isCalm.matches) {
      number.animate([{ transform: "scale(1.35)" }, { transform: "none" }], { duration: 400, easing: "ease-out" });
    }
    set(number, text);
    node.classList.toggle("lit", ["held", "waking"].includes(word) && counts[word] > 0);
  }
  const nodesOf = made.map((word) => tile(word).node);
  if (nodesOf.length !== $("counts").children.length || nodesOf.some((node, at) => node !== $("counts").children[at])) {
    $("counts").replaceChildren(...nodesOf);
  }
  const { cpu, memory, uncounted } = all;
  // A small cluster may release less than Elasti requests; then both figures stand for themselves.
  const isGain = own && cpu >= own.cpuMillicores && memory >= own.memoryBytes;
  const net = !own ? ""
    : isGain ? `net of Elasti itself: ${cores(cpu - own.cpuMillicores)}, ${gib(memory - own.memoryBytes)}`
    : `Elasti itself requests ${cores(own.cpuMillicores)}, ${gib(own.memoryBytes)}`;
  const rest = uncounted ? `not counted: ${uncounted} without requests` : "";
  $("released").replaceChildren(element("b", { text: `${cores(cpu)}, ${gib(memory)}` }),
    element("span", { text: ["released now", net, rest].filter(Boolean).join("; ") }));
  $("released").title = "What the sleeping targets would request with their minimum replicas";
  document.title = all.trouble ? `(${all.trouble}) Elasti` : "Elasti";
  showPressed();
}

function showPressed() {
  for (const [word, { node }] of tiles) node.setAttribute("aria-pressed", String($("filter").value === word));
}

function refilter() {
  wanted = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  rearrange();
  if (view === "observed") showObserved();
  showPressed();
}

function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
}

// What comes

function take(message) {
  if (message.all) { rows.clear(); nodes.clear(); }
  for (const row of message.rows) put(row);
  for (const key of message.gone) { rows.delete(key); nodes.delete(key); }
  arrange(message.all);
  if (message.all) select(selected);
  showSummary(message.own);
  if (view === "fleet") showGroups();
  if (view === "observed" && (message.all || message.gone.length || message.rows.some((row) => row.observed))) showObserved();
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

// The fleet

const svg = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// Write lines of a table; what has the focus keeps it.
function write(body, lines) {
  if (lines.length === body.children.length && lines.every((line, at) => line === body.children[at])) return;
  const focused = document.activeElement;
  body.replaceChildren(...lines);
  if (focused.isConnected) focused.focus();
}

const groupLines = new Map();

function groupLine(name) {
  if (!groupLines.has(name)) {
    const button = element("button", { text: name, onclick: () => {
      grouped = true;
      $("group").setAttribute("aria-pressed", "true");
      $("rows").classList.add("grouped");
      folded.clear();
      for (const other of grouping().keys()) if (other !== name) folded.add(other);
      rearrange();
      location.hash = "services";
    } });
    const cells = Array.from({ length: 9 }, () => element("td", { class: "number" }));
    groupLines.set(name, { cells, node: element("tr", {}, element("td", {}, button), ...cells) });
  }
  return groupLines.get(name);
}

function showGroups() {
  const lines = [...grouping()].map(([name, one]) => {
    const sums = [0, 0];
    for (const key of one.keys) fleet?.sums[key]?.forEach((amount, at) => { sums[at] += amount; });
    const made = groupLine(name), { states } = one;
    const texts = [one.all, one.trouble || "–", one.held ?? "–", states.awake || "–", states.asleep || "–",
      one.cpu || one.memory ? `${cores(one.cpu)}, ${gib(one.memory)}` : "–",
      fleet ? hours(sums[0] / 1000) : "…", fleet ? hours(sums[1] / 2 ** 30) : "…",
      one.judged ? `${one.recommended} of ${one.judged}` : "–"];
    texts.forEach((text, at) => set(made.cells[at], String(text)));
    made.cells[1].classList.toggle("bad", one.trouble > 0);
    return [sums[0], name, made.node];
  });
  lines.sort(([a, x], [b, y]) => b - a || (x < y ? -1 : 1));
  set($("kind"), by || "Namespace");
  write($("groups"), lines.map(([, , node]) => node));
}

function curve(name, values, shown, sum) {
  // Before anything was counted there is no amount, not zero.
  const began = Math.min(Math.max(((fleet.since ?? Infinity) - fleet.begin) / fleet.step, 0), values.length);
  const known = values.slice(Math.floor(began)), most = Math.max(...known, 0);
  const all = known.reduce((a, b) => a + b, 0), mean = known.length ? all / known.length : 0;
  const when = (at) => clock((fleet.begin + at * fleet.step) * 1000);
  const parts = values.map((value, at) => svg("rect", { class: "amount", x: at, y: 100 - 100 * value / (most || 1), width: 1, height: 100 * value / (most || 1) },
  svg("title", {}, `${when(at)}: ${shown(value)}`)));
  if (began) parts.unshift(svg("rect", { class: "unknown", x: 0, y: 0, width: began, height: 100 }, svg("title", {}, "not counted yet")));
  const text = `on average, ${shown(most)} at most, ${sum(all * fleet.step)}`;
  return element("figure", {}, element("figcaption", {}, element("b", { text: `${shown(mean)} ${name}` }), element("span", { text })),
    svg("svg", { class: "curve", viewBox: `0 0 ${values.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Released ${name}: ${shown(mean)} ${text}` }, ...parts),
    element("div", { class: "ends" }, element("span", { text: when(0) }), element("span", { text: "now" })));
}

function showFleet() {
  const day = (seconds) => clock(seconds * 1000);
  $("curves").replaceChildren(
    curve("CPU", fleet.cpu, cores, (all) => `${hours(all / 1000)} core hours`),
    curve("memory", fleet.memory, gib, (all) => `${hours(all / 2 ** 30)} GiB hours`));
  const says = ["From what each ElastiService records: its last 20 sleeps with its present requests, and the sum of older ones, spread evenly."];
  if (fleet.since === null) says.push("Nothing is counted yet.");
  else if (fleet.complete > fleet.begin) says.push(`Counting began ${day(fleet.since)}${fleet.complete - fleet.since > fleet.step ? `; all are counted since ${day(fleet.complete)}` : ""}.`);
  if (fleet.unread.length) says.push(`You may not list ${fleet.unread.join(" and ")}, so their labels are not used.`);
  set($("reach"), says.join(" "));
  const counts = new Map();
  for (const labels of Object.values(fleet.labels)) for (const key of Object.keys(labels)) counts.set(key, (counts.get(key) || 0) + 1);
  const found = [...counts].filter(([key]) => key !== "kubernetes.io/metadata.name" && !key.startsWith("elasti.truefoundry.com/"))
    .sort(([x, a], [y, b]) => b - a || (x < y ? -1 : 1)).slice(0, 40).map(([key]) => key);
  if (by && !found.includes(by)) found.unshift(by);
  const options = ["", ...found];
  if (options.join("\n") !== [...$("by").options].map((option) => option.value).join("\n")) {
    $("by").replaceChildren(...options.map((key) => element("option", { value: key, text: key ? `label ${key}` : "namespace" })));
    $("by").value = by;
  }
  showGroups();
}

let asked = 0;

async function readFleet() {
  const mine = ++asked, query = new URLSearchParams(location.search);
  query.set("days", $("days").value);
  let problem = "no connection to elasti dashboard";
  try {
    const answer = await fetch(`api/fleet?${query}`);
    const body = await answer.json();
    if (mine !== asked) return;
    if (answer.ok) {
      fleet = body;
      showFleet();
      if (by) arrange(true);
      return;
    }
    problem = body.message;
  } catch { /* said below */ }
  if (mine === asked) set($("reach"), `The history cannot be read: ${problem}.`);
}

function showObserved() {
  const found = [...rows.values()].filter((row) => (row.observed || row.state === "observed") && matches(row));
  const fit = (row) => row.observed?.verdict === "Recommended", amount = (row) => (row.observed ? row.observed.cpuMillicoreSeconds / Math.max(row.observed.observedSeconds, 1) : -1);
  found.sort((a, b) => fit(b) - fit(a) || amount(b) - amount(a) || (a.key < b.key ? -1 : 1));
  const chosen = found.filter(fit), mean = (field) => chosen.reduce((sum, { observed }) => sum + observed[field] / Math.max(observed.observedSeconds, 1), 0);
  $("worth").replaceChildren(...(found.length
    ? [`${chosen.length} of ${found.length} recommended: asleep, they would release ${cores(mean("cpuMillicoreSeconds"))} and ${gib(mean("memoryByteSeconds"))} on average. Let them sleep: `, element("code", { text: "elasti enable --observed" })]
    : [wanted.length ? "Nothing observed matches the filter." : "No service is observed. Try one without changing it: ", ...(wanted.length ? [] : [element("code", { text: "elasti enable --observe NAME" })])]));
  const focused = document.activeElement.getAttribute("href");
  $("candidates").replaceChildren(...found.slice(0, STEP).map((row) => {
    const { observed } = row, seconds = Math.max(observed?.observedSeconds, 1);
    const texts = observed ? [percent(Math.min(observed.asleepSeconds / seconds, 1)), String(observed.wakes), observed.coldStartSeconds ? `${observed.coldStartSeconds.p95} s` : "–",
      `${cores(observed.cpuMillicoreSeconds / seconds)}, ${gib(observed.memoryByteSeconds / seconds)}`] : ["–", "–", "–", "–"];
    return element("tr", {}, element("td", {}, element("a", { href: `#/${row.key}`, text: row.name }), element("span", { class: "place", text: `  ${row.namespace}` })),
      element("td", { class: fit(row) ? "awake" : "", text: observed ? observed.verdict : "–" }), ...texts.map((text) => element("td", { class: "number", text })),
      element("td", { text: observed ? row.observedWhy : "The operator has not reported on it yet." }));
  }));
  if (focused) $("candidates").querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  set($("rest"), found.length > STEP ? `${STEP} of ${found.length} shown; the filter finds the others.` : "");
}

function show(name) {
  view = name;
  document.body.dataset.view = name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (name === "fleet") { showGroups(); readFleet(); }
  if (name === "observed") showObserved();
}

// One service

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

const unfolded = new Set();

// What was unfolded stays so while the pane is written again.
function fold(title, ...children) {
  const name = title.split(" ")[0];
  const made = element("details", { ontoggle: () => { if (made.open) unfolded.add(name); else unfolded.delete(name); } },
    element("summary", { text: title }), ...children);
  made.open = unfolded.has(name);
  return made;
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
    element("button", { class: "close", text: "Close", onclick: leave }),
    element("h2", { text: key }),
    element("p", { class: "sentence" }, element("span", { class: stateClass(row.state), text: row.state }), row.since ? ` for ${ago(row.since)}` : ""),
    element("p", { class: row.trouble ? "sentence bad" : "sentence", text: outlook(row) }),
    element("div", { class: "actions" }, ...found.actions.map((action) => element("button",
      { text: LABELS[action], class: ["wake", "resume"].includes(action) ? "primary" : "", "data-action": action, onclick: () => act(key, action) }))),
    ...(found.actionsWhy ? [element("p", { class: "place", text: found.actionsWhy })] : []),
    element("h3", { text: "Last seven days" }), strip(found.history),
    element("h3", { text: "Cold starts" }),
    ...(found.stages.length ? [element("p", { class: "place", text: "Stages of the last one, each counted from the one before, as its pod reports them" }), ...bars(found.stages)] : []),
    ...(cold.length ? [element("p", { class: "place", text: "How long the first client waited, or without a client, until traffic went to the pods" }),
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
    fold(`Conditions (${found.conditions.length})`, table(["Type", "Status", "For", "Reason", "Message"], found.conditions.map((c) => [c.type, c.status, ago(c.lastTransitionTime), c.reason, c.message || ""]))),
    element("h3", { text: "Events" }),
    events.length ? table(["Ago", "Reason", "Message"], events.map(([time, e]) => [ago(time), e.reason, e.message]))
      : element("p", { class: "place", text: found.eventsWhy || "None. A cluster keeps events for about an hour." }),
    fold("YAML", element("pre", { text: found.yaml, tabindex: "0" })),
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

// The view below stays when one service is closed.
function leave() {
  location.hash = view;
}

function route() {
  const key = location.hash.startsWith("#/") ? decodeURIComponent(location.hash.slice(2)) : "";
  if (key) { select(key); open(key); return; }
  close();
  const name = location.hash.slice(1);
  show(["fleet", "observed"].includes(name) ? name : "services");
}

// Keys

function select(key) {
  nodes.get(selected)?.node.classList.remove("selected");
  selected = key;
  if (keys.indexOf(key) >= limit) { limit = keys.indexOf(key) + STEP; arrange(); }
  const made = nodes.get(key);
  made?.node.classList.add("selected");
  made?.node.scrollIntoView({ block: "nearest" });
}

function move(step) {
  const next = keys[Math.min(Math.max(keys.indexOf(selected) + step, 0), keys.length - 1)];
  if (next) { select(next); if (opened) location.hash = `/${next}`; }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = event.target === $("filter");
  if (event.key === "Escape") {
    if (typing) { if ($("filter").value) { $("filter").value = ""; refilter(); } $("filter").blur(); }
    else if (opened) leave();
    else if ($("filter").value) { $("filter").value = ""; refilter(); }
  } else if (event.key === "Enter" && typing) { $("filter").blur(); move(0); }
  else if (typing || event.target.closest("button, a, input, select")) return;
  else if (event.key === "/") $("filter").focus();
  else if (view !== "services") return;
  else if (event.key === "g") toggleGroups();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter" && selected) location.hash = `/${selected}`;
  else return;
  event.preventDefault();
});
$("filter").addEventListener("input", refilter);
$("group").addEventListener("click", toggleGroups);
$("by").addEventListener("change", () => { by = $("by").value; folded.clear(); groupLines.clear(); showGroups(); rearrange(); });
$("days").addEventListener("change", readFleet);
for (const head of document.querySelectorAll("th[data-by]")) head.querySelector("button").addEventListener("click", () => sortBy(head));
new IntersectionObserver(([end]) => { if (end.isIntersecting) { limit += STEP; arrange(); } }, { rootMargin: "1500px" }).observe($("more"));
// The headings stay below the page's head, however high its lines wrap.
const top = document.querySelector("header");
new ResizeObserver(() => document.documentElement.style.setProperty("--head", `${top.offsetHeight}px`)).observe(top);
window.addEventListener("hashchange", route);
setInterval(() => { if (!document.hidden && (by || view === "fleet")) readFleet(); }, 60000);
setInterval(() => { for (const [key, made] of nodes) if (made.node.isConnected) fill(made, rows.get(key)); }, 10000);
listen();
route();
