// Tab "Plan": the steps as a table. Tab "Time": when each ran, and which took long.

function whereText(plan, value) {
  const [kind, nbytes, offset, , , , source] = plan.storages[plan.values[value][1]];
  if (kind === "arena") return `arena ${offset.toLocaleString("en")} + ${nbytes.toLocaleString("en")}`;
  return kind === "input" ? `input ${source}` : kind;
}

function showPlan(panel, plan) {
  const times = DATA.about.times[plan.number], streams = new Set(plan.steps.map((s) => s[1]));
  const rows = plan.steps.map(([op, stream, inputs, outputs, waits, kernel], i) => {
    const id = plan.step_nodes[i], node = id >= 0 ? nodeOf(plan, id) : {kind: "op", op, types: "", attrs: "", place: "", source: ""};
    const over = inputs.find((v) => outputs.some((o) => plan.values[o][1] === plan.values[v][1]));
    const late = plan.overwrites_from < plan.steps.length && i >= plan.overwrites_from;
    const row = el("tr", {id: `step-${i}`, class: state.step === i ? "chosen" : null},
      el("td", {class: "num"}, i),
      el("td", {}, el("button", {type: "button", class: `tag f-${family(node)}`, title: "Show in the graph", onclick: () => showNode(plan, id)}, op), kernel ? el("small", {}, ` ${kernel}`) : null,
        over !== undefined ? el("span", {class: "badge", title: late ? "overwrites an input of the plan: runs last" : "writes over an input that dies here"}, "in place") : null),
      streams.size > 1 ? el("td", {}, stream, waits.length ? el("small", {}, ` waits for ${waits.join(", ")}`) : null) : null,
      el("td", {class: "vals"}, inputs.map((v) => valueChip(plan, v))),
      el("td", {class: "vals"}, outputs.map((v) => valueChip(plan, v, true))),
      times.runs ? el("td", {class: "num"}, times.best[i] === undefined ? "" : duration(times.best[i])) : null,
      el("td", {class: "where", title: node.source || null}, node.place));
    return row;
  });
  const heads = ["step", "op", streams.size > 1 && "stream", "reads", "writes", times.runs && "best", "line"].filter(Boolean);
  panel.append(el("div", {class: "scroll tall"}, el("table", {class: "steps"}, el("thead", {}, el("tr", {}, heads.map((h) => el("th", {scope: "col"}, h)))), el("tbody", {}, rows))),
    el("p", {class: "note"}, `Returns ${plan.outputs.map((v) => `v${v} (${whereText(plan, v)})`).join(", ") || "nothing"}.`));
  if (state.step !== null) rows[state.step]?.scrollIntoView({block: "center"});
}

function showNode(plan, id) {
  if (id < 0) return;
  if (state.graphView?.plan === plan) Object.assign(state.graphView, {stage: plan.stages.length - 1, before: false});
  else state.graphView = {plan, stage: plan.stages.length - 1, before: false, only: false, find: ""};
  go({tab: "graph", node: id});
}

function valueChip(plan, v, isOutput = false) {
  const [type, storage] = plan.values[v], kind = plan.storages[storage][0];
  return el("span", {class: `value k-${kind}`, title: whereText(plan, v)}, el("b", {}, `v${v}`), isOutput || kind === "input" ? ` ${type}` : "", isOutput ? el("small", {}, whereText(plan, v)) : null);
}

function showTime(panel, plan) {
  const times = DATA.about.times[plan.number];
  if (!times.runs) {
    panel.append(el("p", {class: "note"}, "This plan has not run yet."));
    return;
  }
  const byOp = new Map();
  plan.steps.forEach(([op], i) => {
    const entry = byOp.get(op) ?? {op, calls: 0, ns: 0, node: plan.step_nodes[i] >= 0 ? nodeOf(plan, plan.step_nodes[i]) : {kind: "op", op}};
    entry.calls++;
    entry.ns += times.best[i] ?? 0;
    byOp.set(op, entry);
  });
  const total = Math.max(1, times.best.reduce((a, b) => a + b, 0)), first = times.first.reduce((a, b) => a + b, 0), end = times.last.at(-1)?.[1] ?? 0;
  panel.append(el("dl", {class: "facts small"}, [["first run", duration(first), "kernels only"], ["best", duration(total), "sum of the best time of each step"], ["last run", duration(end), "with what is between the kernels"]]
    .map(([k, v, note]) => el("div", {}, el("dt", {}, k), el("dd", {}, v, el("small", {}, note))))), el("h3", {}, "Last run"), timeline(plan, times.last, Math.max(480, panel.clientWidth - 2)));
  const slow = plan.steps.map((s, i) => [i, times.best[i] ?? 0]).sort((a, b) => b[1] - a[1]).slice(0, 12);
  panel.append(el("div", {class: "two"},
    el("section", {}, el("h3", {}, "By op"), shareTable(["op", "calls", "best", ""], [...byOp.values()].sort((a, b) => b.ns - a.ns).slice(0, 14).map((e) => [e.node, e.op, e.calls, e.ns]), total)),
    el("section", {}, el("h3", {}, "Slowest steps"), shareTable(["op", "step", "best", "", "line"], slow.map(([i, ns]) => [plan.step_nodes[i] >= 0 ? nodeOf(plan, plan.step_nodes[i]) : {kind: "op", op: plan.steps[i][0]}, plan.steps[i][0], i, ns]), total))));
}

function shareTable(heads, rows, total) {
  return el("div", {class: "scroll"}, el("table", {}, el("thead", {}, el("tr", {}, heads.map((h) => el("th", {scope: "col"}, h)))), el("tbody", {}, rows.map(([node, name, number, ns]) => el("tr", {},
    el("td", {}, el("span", {class: `tag f-${family(node)}`}, name)), el("td", {class: "num"}, number), el("td", {class: "num"}, duration(ns)),
    el("td", {class: "share"}, el("meter", {min: 0, max: 100, value: (100 * ns) / total, "aria-label": "share"}), `${((100 * ns) / total).toFixed(1)} %`), heads.length > 4 ? el("td", {class: "where", title: node.source || null}, (node.place ?? "").split("/").at(-1)) : null)))));
}

function timeline(plan, last, width) {
  const end = Math.max(1, last.at(-1)?.[1] ?? 1), lanes = [...new Set(plan.steps.map((s) => s[1]))], high = 46, height = lanes.length * high + 30;
  const x = (ns) => LEFT + (ns / end) * (width - LEFT - RIGHT);
  const chart = svg("svg", {class: "chart time", width, height, role: "img", "aria-label": `The ${last.length} steps of the last run, ${duration(end)}`},
    lanes.map((lane, k) => svg("text", {class: "tick", x: LEFT - 8, y: k * high + 27, "text-anchor": "end"}, lane)));
  last.forEach(([from, to], i) => {
    const id = plan.step_nodes[i], node = id >= 0 ? nodeOf(plan, id) : {kind: "op", op: plan.steps[i][0], types: "", attrs: ""}, k = lanes.indexOf(plan.steps[i][1]), w = Math.max(1, x(to) - x(from) - 0.5);
    const bar = svg("g", {class: `block f-${family(node)}`, onclick: () => go({tab: "plan", step: i})}, svg("rect", {x: x(from), y: k * high + 6, width: w, height: high - 12, rx: Math.min(3, w / 4)}));
    if (w > node.op.length * 6.2 + 8) bar.append(svg("text", {x: x(from) + 5, y: k * high + 27}, node.op));
    tips(bar, () => [["name", `step ${i}: ${node.op}`], ["type", `${duration(to - from)}, ${((100 * (to - from)) / end).toFixed(1)} %`], ["attrs", node.types], node.place && ["place", node.place], node.source && ["source", node.source]]);
    chart.append(bar);
  });
  for (let k = 0; k <= 5; k++) chart.append(svg("text", {class: "tick", x: x((end * k) / 5), y: height - 8, "text-anchor": k === 5 ? "end" : k ? "middle" : "start"}, duration((end * k) / 5)));
  return el("figure", {}, chart);
}
