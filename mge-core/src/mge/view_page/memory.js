// Tab "Memory": bytes that are live at each step, and where each value lies in the arena.

const LEFT = 74, RIGHT = 16;

function niceTicks(top, wanted) {
  const raw = top / wanted, power = 2 ** Math.floor(Math.log2(Math.max(raw, 1)));
  const step = [1, 2, 4].map((k) => k * power).find((s) => top / s <= wanted) ?? power * 4;
  return Array.from({length: Math.floor(top / step) + 1}, (_, i) => i * step);
}

function storageOwner(plan, index) {
  for (const [i, step] of plan.steps.entries()) {
    if (step[3].some((v) => plan.values[v][1] === index)) return i;
  }
  return -1;
}

function showMemory(panel, plan) {
  const width = Math.max(480, panel.clientWidth - 2), steps = Math.max(plan.steps.length, 1);
  const x = (step) => LEFT + (step / steps) * (width - LEFT - RIGHT);
  const ours = plan.storages.map(([kind, nbytes, offset, start, end, label], index) => ({kind, nbytes, offset, start, end, label, index}));
  const sums = {};
  for (const s of ours) sums[s.kind] = (sums[s.kind] ?? 0) + s.nbytes;
  const facts = [["peak", plan.peak_bytes, "arena and results, known before the first run"], ["arena", plan.arena_bytes, "reused from step to step, shared with other plans"],
    ["results", plan.result_bytes, "what leaves the plan"], ["inputs", sums.input ?? 0, "parameters and data, allocated elsewhere"], ["constants", sums.constant ?? 0, "part of the plan"]];
  panel.append(el("dl", {class: "facts small"}, facts.map(([k, v, note]) => el("div", {}, el("dt", {}, k), el("dd", {}, bytes(v), el("small", {}, note))))),
    el("h3", {}, "Live bytes at each step"), liveChart(plan, width, x), el("h3", {}, "The arena: offset over time"));
  const arena = ours.filter((s) => s.kind === "arena" && s.nbytes);
  if (!arena.length) panel.append(el("p", {class: "note"}, "This plan needs no arena: each value leaves it."));
  else panel.append(arenaPicture(plan, arena, width, x));
  panel.append(el("h3", {}, "Largest values"), largestTable(plan, ours.filter((s) => s.kind === "arena" || s.kind === "result")));
}

function axisX(plan, width, height, x) {
  const every = Math.max(1, Math.ceil(plan.steps.length / Math.max(2, Math.floor(width / 90))));
  const marks = Array.from({length: Math.ceil(plan.steps.length / every)}, (_, i) => i * every);
  return marks.map((s) => svg("text", {class: "tick", x: x(s + 0.5), y: height - 6, "text-anchor": "middle"}, s === 0 ? "step 0" : s));
}

function liveChart(plan, width, x) {
  const height = 210, bottom = height - 24, values = plan.timeline, top = Math.max(...values, plan.peak_bytes, 1);
  const y = (b) => bottom - (b / top) * (bottom - 26);
  const shape = (of) => `M${x(0)} ${bottom}${values.map((v, i) => `L${x(i).toFixed(1)} ${y(of(v)).toFixed(1)}H${x(i + 1).toFixed(1)}`).join("")}V${bottom}Z`;
  const peakAt = values.indexOf(Math.max(...values));
  const chart = svg("svg", {class: "chart", width, height, role: "img", "aria-label": `Live bytes over ${values.length} steps; most at step ${peakAt}: ${bytes(values[peakAt] ?? 0)}`},
    niceTicks(top, 4).map((t) => svg("g", {}, svg("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(t), y2: y(t)}), svg("text", {class: "tick", x: LEFT - 8, y: y(t) + 4, "text-anchor": "end"}, bytes(t)))),
    svg("path", {class: "live", d: shape((v) => v)}), svg("path", {class: "results", d: shape(() => plan.result_bytes)}),
    svg("line", {class: "peak", x1: LEFT, x2: width - RIGHT, y1: y(plan.peak_bytes), y2: y(plan.peak_bytes)}),
    svg("text", {class: "peak", x: width - RIGHT, y: y(plan.peak_bytes) - 7, "text-anchor": "end"}, `peak ${bytes(plan.peak_bytes)}`),
    axisX(plan, width, height, x));
  if (values.length) chart.append(svg("circle", {class: "peak", cx: x(peakAt + 0.5), cy: y(values[peakAt]), r: 4}));
  const cursor = svg("rect", {class: "cursor", y: 20, height: bottom - 20, width: Math.max(1, x(1) - x(0)), visibility: "hidden"});
  chart.append(cursor);
  chart.addEventListener("pointermove", (e) => {
    const step = Math.floor(((e.clientX - chart.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * values.length);
    if (step < 0 || step >= values.length) { cursor.setAttribute("visibility", "hidden"); return hideTip(); }
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x", x(step));
    const id = plan.step_nodes[step];
    tip([["name", `step ${step}: ${plan.steps[step][0]}`], ["type", `${bytes(values[step])} live`], id >= 0 && ["place", nodeOf(plan, id).place]], e.clientX, e.clientY);
  });
  chart.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
  return el("figure", {}, chart);
}

function arenaPicture(plan, arena, width, x) {
  const height = Math.min(460, Math.max(190, arena.length * 7)), bottom = height - 24, top = Math.max(plan.arena_bytes, 1);
  const y = (b) => bottom - (b / top) * (bottom - 10);
  const order = [...arena].sort((a, b) => a.start - b.start || a.offset - b.offset);
  let focused = -1;
  const blocks = order.map((s) => {
    const owner = storageOwner(plan, s.index), id = plan.step_nodes[owner] ?? -1;
    const node = id >= 0 ? nodeOf(plan, id) : {op: s.label, kind: "op", types: "", attrs: "", place: "", source: ""};
    const w = Math.max(1, x(s.end + 1) - x(s.start) - 1), h = Math.max(1, y(s.offset) - y(s.offset + s.nbytes) - 1);
    const lines = () => [["name", node.op], ["type", s.label.split(" of ")[0]], ["attrs", `${bytes(s.nbytes)} at ${s.offset.toLocaleString("en")}, ${s.start === s.end ? `step ${s.start}` : `steps ${s.start} to ${s.end}`}`],
      node.place && ["place", node.place], node.source && ["source", node.source]];
    const block = svg("g", {class: `block f-${family(node)}`, onclick: () => owner >= 0 && go({tab: "plan", step: owner})},
      svg("rect", {x: x(s.start), y: y(s.offset + s.nbytes), width: w, height: h, rx: Math.min(3, w / 4, h / 4)}));
    if (w > node.op.length * 6.2 + 8 && h > 13) block.append(svg("text", {x: x(s.start) + 5, y: y(s.offset + s.nbytes) + Math.min(h / 2 + 4, 13)}, node.op));
    tips(block, lines);
    return {block, lines};
  });
  const picture = svg("svg", {class: "chart arena", width, height, tabindex: 0, role: "application", "aria-label": `Arena of ${bytes(plan.arena_bytes)} with ${arena.length} values; left and right arrow keys name them`},
    niceTicks(top, 5).map((t) => svg("g", {}, svg("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(t), y2: y(t)}), svg("text", {class: "tick", x: LEFT - 8, y: y(t) + 4, "text-anchor": "end"}, bytes(t)))),
    blocks.map(({block}) => block), axisX(plan, width, height, x));
  picture.addEventListener("keydown", (e) => {
    const move = {ArrowRight: 1, ArrowLeft: -1}[e.key];
    if (!move) return;
    e.preventDefault();
    blocks[focused]?.block.classList.remove("chosen");
    focused = (focused + move + blocks.length) % blocks.length;
    const {block, lines} = blocks[focused], box = block.getBoundingClientRect();
    block.classList.add("chosen");
    tip(lines(), box.left + box.width / 2, box.bottom);
  });
  picture.addEventListener("blur", () => { blocks[focused]?.block.classList.remove("chosen"); hideTip(); });
  return el("figure", {}, picture);
}

function largestTable(plan, storages) {
  const rows = [...storages].sort((a, b) => b.nbytes - a.nbytes).slice(0, 12);
  return el("div", {class: "scroll"}, el("table", {}, el("thead", {}, el("tr", {}, ["value", "bytes", "kind", "lives", "line"].map((t) => el("th", {scope: "col"}, t)))),
    el("tbody", {}, rows.map((s) => {
      const id = plan.step_nodes[storageOwner(plan, s.index)] ?? -1, node = id >= 0 ? nodeOf(plan, id) : null;
      return el("tr", {}, el("td", {}, node ? el("span", {class: `tag f-${family(node)}`}, node.op) : null, " ", el("code", {}, s.label.split(" of ")[0])), el("td", {class: "num"}, bytes(s.nbytes)),
        el("td", {}, s.kind), el("td", {class: "num"}, s.kind === "result" ? `from step ${s.start}` : `${s.start} – ${s.end}`), el("td", {class: "where", title: node?.source}, node?.place ?? ""));
    }))));
}
