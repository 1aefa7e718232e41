// The frame of the page: data, plans at the side, tabs, tool tip. Every text from the program goes in as text, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const NS = document.getElementById("mark").namespaceURI;
const TABS = [["graph", "Graph"], ["plan", "Plan"], ["memory", "Memory"], ["time", "Time"]];
const state = {plan: null, tab: "graph", node: null, step: null};
const $ = (id) => document.getElementById(id);

function el(tag, attrs = {}, ...children) {
  return fill(document.createElement(tag), attrs, children);
}

function svg(tag, attrs = {}, ...children) {
  return fill(document.createElementNS(NS, tag), attrs, children);
}

function fill(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
}

function bytes(n) {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let k = -1;
  do { n /= 1024; k++; } while (n >= 1000 && k < units.length - 1);
  return `${n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2)} ${units[k]}`;
}

function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= size) return `${(ns / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// Families of ops, for colours; an op that is not listed works element by element or belongs to a plugin.
const FAMILIES = {
  compute: /^(matmul|linear|conv|deconv|einsum|dot|bmm|attention|lstm|rnn|gru|batch_matmul|.*_conv|.*conv_.*)/,
  reduce: /^(sum|mean|max$|min$|prod|var|std|arg|norm|any|all|cumsum|.*pool|softmax|log_softmax|logsumexp|batch_norm|layer_norm|.*cross_entropy.*|sort|topk)/,
  move: /^(reshape|transpose|permute|concat|stack|split|slice|take|gather|scatter|index|pad|broadcast|expand|squeeze|flatten|tile|repeat|copy|flip|roll|set_|windows|unfold|fold|one_hot|where|cast)/,
  make: /^(constant|full|zeros|ones|arange|linspace|eye|uniform|normal|philox|random|.*_bits|dropout)/,
};

function family(node) {
  if (node.kind !== "op") return node.kind;
  const name = node.op.split("::").at(-1);
  return Object.keys(FAMILIES).find((f) => FAMILIES[f].test(name)) ?? "each";
}

function nodeOf(plan, id) {
  const [kind, op, types, attrs, place, device, nbytes] = plan.nodes[id];
  const [where, source] = place < 0 ? ["", ""] : plan.places[place];
  return {id, kind, op: op === "input" ? kind : op, types, attrs, device, nbytes, place: shortPlace(where), source};
}

function shortPlace(place) {
  const folder = DATA.about.folder.replace(/\/?$/, "/");
  if (place.startsWith(folder)) return place.slice(folder.length);
  return place.split("/").slice(-2).join("/");
}

// The tool tip: one for the page, told what to say by whatever is under the pointer or has the focus.

function tip(lines, x, y) {
  const box = $("tip");
  box.replaceChildren(...lines.filter(Boolean).map(([kind, text]) => el("div", {class: kind}, text)));
  box.hidden = false;
  const {width, height} = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + height + 24 > innerHeight ? Math.max(8, y - height - 14) : y + 16}px`;
}

const hideTip = () => { $("tip").hidden = true; };

function describe(node) {
  return [["name", node.op], ["type", node.types], node.attrs && ["attrs", node.attrs],
    node.place && ["place", node.place], node.source && ["source", node.source]];
}

function tips(target, lines) {
  target.addEventListener("pointermove", (e) => tip(lines(), e.clientX, e.clientY));
  target.addEventListener("pointerleave", hideTip);
  target.addEventListener("focus", () => {
    const box = target.getBoundingClientRect();
    if (target.matches(":focus-visible")) tip(lines(), box.left + box.width / 2, box.bottom);
  });
  target.addEventListener("blur", hideTip);
}

// Start, plans, tabs.

function start() {
  const {about} = DATA;
  $("program").textContent = `${about.program} · ${about.started}`;
  document.title = `${about.program} · mge view`;
  const shown = [["plans_compiled", "plans compiled"], ["plans_run", "plan runs"], ["first_sight_runs", "first-sight runs"], ["retraces", "re-traces"]];
  $("counts").append(...shown.map(([key, label]) => el("div", {}, el("dt", {}, label), el("dd", {}, (about.counts[key] ?? 0).toLocaleString("en")))));
  if (!DATA.plans.length) {
    $("frame").classList.add("bare");
    $("main").append(el("div", {class: "empty"}, el("h2", {}, "No plan was compiled"), el("p", {}, "A graph runs step by step the first time that its structure is seen, and is compiled the second time. A traced function (mge.jit.trace) is compiled at its first call.")));
    return;
  }
  drawPlans();
  addEventListener("hashchange", () => { if (readHash()) show(); });
  addEventListener("keydown", (e) => { if (e.key === "Escape") hideTip(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; showTab(); } });
  readHash();
  show();
}

function readHash() {
  const want = new URLSearchParams(location.hash.slice(1));
  const plan = DATA.plans.find((p) => String(p.number) === want.get("plan")) ?? state.plan ?? mainPlan();
  const tab = TABS.some(([t]) => t === want.get("tab")) ? want.get("tab") : state.tab;
  const changed = plan !== state.plan || tab !== state.tab;
  Object.assign(state, {plan, tab});
  return changed;
}

// What is shown first: the plan in which most time went, or else the largest.
function mainPlan() {
  const weight = (p) => { const t = DATA.about.times[p.number]; return t.runs * t.best.reduce((a, b) => a + b, 0); };
  return DATA.plans.reduce((a, b) => (weight(b) - weight(a) || b.steps.length - a.steps.length) > 0 ? b : a);
}

function go(change) {
  Object.assign(state, change);
  history.replaceState(null, "", `#plan=${state.plan.number}&tab=${state.tab}`);
  show();
}

function drawPlans() {
  const {about, plans} = DATA;
  $("plans").append(el("h2", {}, "Plans"), el("ul", {}, plans.map((plan) => {
    const times = about.times[plan.number];
    return el("li", {}, el("button", {type: "button", "data-plan": plan.number, onclick: () => go({plan, node: null, step: null})},
      el("span", {class: "title"}, el("b", {}, `#${plan.number}`), ` ${planTitle(plan)}`),
      spark(plan.timeline),
      el("span", {class: "sub"}, `${count(plan.steps.length, "step")} · ${bytes(plan.peak_bytes)}${times.runs ? ` · ${count(times.runs, "run")}` : ""}`)));
  })));
  if (about.left_out) $("plans").append(el("p", {class: "note"}, `${count(about.left_out, "older plan")} left out, to keep this page small.`));
}

// A plan is named by the user's line that made its last node.
function planTitle(plan) {
  for (const id of [...plan.step_nodes].reverse()) {
    if (id >= 0 && plan.nodes[id][4] >= 0) return shortPlace(plan.places[plan.nodes[id][4]][0]).split("/").at(-1);
  }
  return plan.steps.at(-1)?.[0] ?? "no steps";
}

function spark(values) {
  const w = 208, h = 22, top = Math.max(...values, 1);
  const points = values.flatMap((v, i) => [[i, v], [i + 1, v]]).map(([i, v]) => `${((i / values.length) * w).toFixed(1)},${(h - (v / top) * (h - 2)).toFixed(1)}`);
  return svg("svg", {class: "spark", viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", "aria-hidden": "true"}, svg("polygon", {points: `0,${h} ${points.join(" ")} ${w},${h}`}));
}

function show() {
  for (const button of document.querySelectorAll("#plans button")) {
    button.setAttribute("aria-current", button.dataset.plan === String(state.plan.number));
  }
  const tabs = el("div", {role: "tablist", "aria-label": "Views of the plan", onkeydown: moveTab},
    TABS.map(([key, label]) => el("button", {
      type: "button", role: "tab", id: `tab-${key}`, "aria-selected": state.tab === key, "aria-controls": "panel",
      tabindex: state.tab === key ? 0 : -1, onclick: () => { go({tab: key}); $(`tab-${key}`).focus(); },
    }, label)));
  $("main").replaceChildren(planHead(state.plan), tabs, el("section", {id: "panel", role: "tabpanel", "aria-labelledby": `tab-${state.tab}`}));
  showTab();
}

function moveTab(event) {
  const move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!move) return;
  const at = TABS.findIndex(([t]) => t === state.tab);
  const [key] = TABS[(at + move + TABS.length) % TABS.length];
  go({tab: key});
  $(`tab-${key}`).focus();
}

function planHead(plan) {
  const times = DATA.about.times[plan.number];
  const best = times.best.reduce((a, b) => a + b, 0);
  const facts = [
    ["steps", plan.steps.length.toLocaleString("en"), `${count(plan.stages[0].nodes.length, "node")} recorded`],
    ["peak", bytes(plan.peak_bytes), `${bytes(plan.arena_bytes)} arena, ${bytes(plan.result_bytes)} results`],
    ["device", plan.device, `memory strategy “${plan.strategy}”`],
    times.runs ? ["one run", duration(best), `best of ${times.runs.toLocaleString("en")}, kernels only`] : ["runs", "0", "not run yet"],
  ];
  if (plan.prologue) facts.push(["prologue", count(plan.prologue.steps.length, "step"), "once for each version of the parameters"]);
  return el("div", {class: "head"}, el("h2", {}, `Plan ${plan.number}`, el("small", {}, planTitle(plan))),
    el("dl", {class: "facts"}, facts.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, note))))));
}

function showTab() {
  if (!state.plan) return;
  hideTip();
  const panel = $("panel");
  panel.replaceChildren();
  ({graph: showGraph, plan: showPlan, memory: showMemory, time: showTime})[state.tab](panel, state.plan);
}
