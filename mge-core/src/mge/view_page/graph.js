// Tab "Graph": the passes, a drawing of the graph before or after one, the list of nodes with what changed.

const MOST_DRAWN = 800, NEAR = 160; // beyond the first, only what is near the chosen node is drawn: about the second
const MANY_LEAVES = 8; // a node that reads more inputs and parameters says how many, and has no lines to them
const LEAVES = ["input", "parameter", "constant"];

function showGraph(panel, plan) {
  const view = state.graphView ??= {};
  if (view.plan !== plan) Object.assign(view, {plan, stage: 0, before: false, only: false, find: ""});
  const stages = plan.stages.map((stage, i) => {
    const ids = new Set(stage.nodes.map(([id]) => id));
    const was = new Set((plan.stages[i - 1] ?? stage).nodes.map(([id]) => id));
    return {...stage, ids, added: new Set([...ids].filter((id) => !was.has(id))), gone: new Set([...was].filter((id) => !ids.has(id)))};
  });
  const redraw = () => {
    const stage = stages[view.stage];
    const shown = view.before && view.stage ? stages[view.stage - 1] : stage;
    const marks = new Map(view.stage ? [...(view.before ? stage.gone : stage.added)].map((id) => [id, view.before ? "gone" : "added"]) : []);
    for (const [i, pill] of [...pills.children].entries()) pill.setAttribute("aria-pressed", i === view.stage);
    side.hidden = !view.stage;
    for (const [i, b] of [...side.children].entries()) b.setAttribute("aria-pressed", (i === 0) === view.before);
    const choose = (id) => { state.node = id; drawing.mark(); list.mark(); drawDetails(details, plan, stage, shown, choose); };
    const drawing = drawGraph(canvas, plan, shown, marks, choose, view);
    const list = drawList(rows, plan, stages, view, choose);
    drawDetails(details, plan, stage, shown, choose);
  };
  const pills = el("div", {class: "pills", role: "group", "aria-label": "Passes"}, stages.map((stage, i) => el("button",
    {type: "button", onclick: () => { view.stage = i; if (!i) view.before = false; redraw(); }}, stage.name, " ", stageCount(stage, i))));
  const side = el("div", {class: "segments", role: "group", "aria-label": "Before or after the pass"},
    ["Before", "After"].map((label, i) => el("button", {type: "button", onclick: () => { view.before = !i; redraw(); }}, label)));
  const canvas = el("div", {class: "canvas"}), details = el("div", {class: "details"}), rows = el("div", {class: "rows"});
  const only = el("label", {class: "check"}, el("input", {type: "checkbox", checked: view.only, onchange: (e) => { view.only = e.target.checked; redraw(); }}), "changes only");
  const find = el("input", {type: "search", placeholder: "Find op, type, line", "aria-label": "Find nodes", value: view.find, oninput: (e) => { view.find = e.target.value.toLowerCase(); redraw(); }});
  panel.append(el("div", {class: "bar"}, pills, side),
    el("div", {class: "split"}, canvas, el("aside", {}, details, el("div", {class: "bar tight"}, find, only), rows)), legend());
  redraw();
}

function stageCount(stage, i) {
  if (!i) return el("span", {class: "n"}, stage.nodes.length);
  if (!stage.added.size && !stage.gone.size) return el("span", {class: "n", title: "nothing changed"}, "=");
  return el("span", {class: "n"}, stage.added.size ? el("ins", {}, `+${stage.added.size}`) : null, stage.gone.size ? el("del", {}, `−${stage.gone.size}`) : null);
}

function legend() {
  const names = [["compute", "matrix products, convolutions"], ["reduce", "reductions, norms, pooling"], ["each", "element by element"], ["move", "moves data"], ["make", "makes values"], ["parameter", "parameter or buffer"], ["input", "input"]];
  return el("ul", {class: "legend"}, names.map(([f, text]) => el("li", {class: `f-${f}`}, el("i", {}), text)), el("li", {class: "keys"}, "drag or scroll to move · ctrl + scroll or + − 0 to zoom · arrow keys walk along edges"));
}

// The drawing.

function boxText(node) {
  const label = node.kind === "constant" ? (node.attrs.match(/value=(.{1,14})/)?.[1] ?? "constant") : node.op;
  return [label, node.types.length > 26 ? `${node.types.slice(0, 25)}…` : node.types];
}

// A node with several outputs is read through "get" nodes; the drawing leaves these out, and leaves that nothing reads.
function bareNodes(plan, stage) {
  const parent = new Map(stage.nodes.filter(([id]) => plan.nodes[id][0] === "get").map(([id, [from]]) => [id, from]));
  const nodes = stage.nodes.filter(([id]) => !parent.has(id)).map(([id, inputs]) => {
    const from = inputs.map((i) => parent.get(i) ?? i), others = from.filter((i) => !LEAVES.includes(plan.nodes[i][0]));
    const hidden = from.length - others.length;
    return hidden > MANY_LEAVES ? [id, others, hidden] : [id, from, 0];
  });
  const used = new Set([...nodes.flatMap(([, inputs]) => inputs), ...stage.outputs]);
  return nodes.filter(([id]) => used.has(id) || plan.nodes[id][0] === "op");
}

function drawnAs(plan, stage, id) {
  return plan.nodes[id]?.[0] === "get" ? stage.nodes.find(([n]) => n === id)?.[1][0] ?? id : id;
}

function nearby(nodes, root) {
  const inputs = new Map(nodes), users = new Map();
  for (const [id, from] of nodes) for (const i of from) users.set(i, [...(users.get(i) ?? []), id]);
  const found = new Set([root]), queue = [root];
  while (queue.length && found.size < NEAR) {
    const id = queue.shift();
    for (const other of [...(inputs.get(id) ?? []), ...(users.get(id) ?? [])]) {
      if (!found.has(other) && found.size < NEAR) { found.add(other); queue.push(other); }
    }
  }
  return found;
}

function drawGraph(canvas, plan, stage, marks, choose, view) {
  const ids = new Set(stage.nodes.map(([id]) => id));
  const every = bareNodes(plan, stage), isPart = every.length > MOST_DRAWN;
  const part = isPart ? nearby(every, drawnAs(plan, stage, ids.has(state.node) ? state.node : marks.keys().next().value ?? stage.outputs[0] ?? every[0][0])) : ids;
  const nodes = every.filter(([id]) => part.has(id));
  const outputs = new Set(stage.outputs.map((id) => drawnAs(plan, stage, id)));
  const boxes = nodes.map(([id, inputs, hidden]) => {
    const [label, types] = boxText(nodeOf(plan, id)), type = hidden ? `reads ${hidden} inputs and parameters` : types;
    return {id, inputs, label, type, width: Math.max(46, label.length * 7.4 + 22, type.length * 6.1 + 22), height: 38};
  });
  const layout = layoutGraph(boxes);
  const world = svg("g", {});
  const root = svg("svg", {class: "dag", tabindex: 0, role: "application", "aria-label": `Graph of ${nodes.length} nodes; arrow keys walk along its edges`}, world);
  const lines = new Map(), shapes = new Map();
  for (const e of layout.edges) {
    const line = svg("path", {d: e.path, class: e.long ? "edge long" : "edge"});
    lines.set(line, e);
    world.append(line);
  }
  for (const box of boxes) {
    const node = nodeOf(plan, box.id), cell = layout.cells.get(box.id);
    const shape = svg("g", {class: `node f-${family(node)} ${marks.get(box.id) ?? ""} ${outputs.has(box.id) ? "out" : ""}`, transform: `translate(${cell.x.toFixed(1)} ${cell.y.toFixed(1)})`, onclick: () => { choose(box.id); root.focus({preventScroll: true}); }},
      svg("rect", {x: -box.width / 2, y: -19, width: box.width, height: 38, rx: node.kind === "op" ? 7 : 19}),
      svg("text", {class: "op", y: -3}, box.label), svg("text", {class: "type", y: 11}, box.type));
    tips(shape, () => describe(node));
    shapes.set(box.id, shape);
    world.append(shape);
  }
  canvas.replaceChildren(root, el("div", {class: "zoom"}, [["−", "Zoom out", () => zoom(1 / 1.3)], ["+", "Zoom in", () => zoom(1.3)], ["Fit", "Fit the graph", () => fit()]]
    .map(([text, label, act]) => el("button", {type: "button", "aria-label": label, onclick: act}, text))));
  if (isPart) canvas.append(el("p", {class: "over"}, `${count(every.length, "node")}: those near the chosen one are drawn; choose another in the list.`));
  if (stage.left_out) canvas.append(el("p", {class: "over"}, `${count(stage.left_out, "node")} left out, to keep this page small.`));
  const {zoom, fit, reveal} = panAndZoom(root, world, layout);
  const mark = (move = true) => {
    const chosen = drawnAs(plan, stage, state.node);
    for (const [id, shape] of shapes) {
      const node = view.find && nodeOf(plan, id);
      shape.classList.toggle("chosen", id === chosen);
      shape.classList.toggle("dim", Boolean(view.find) && !matches(node, view.find));
    }
    for (const [line, e] of lines) line.classList.toggle("chosen", e.from === chosen || e.to === chosen);
    if (move && layout.cells.has(chosen)) reveal(layout.cells.get(chosen));
  };
  root.addEventListener("keydown", (e) => {
    if (e.key === "+" || e.key === "=") return zoom(1.3);
    if (e.key === "-") return zoom(1 / 1.3);
    if (e.key === "0") return fit();
    const next = walk(e.key, nodes, layout, state.node);
    if (next !== undefined) { e.preventDefault(); choose(next); }
  });
  mark(false);
  return {mark: () => (isPart && !shapes.has(drawnAs(plan, stage, state.node)) ? showTab() : mark())};
}

function walk(key, nodes, layout, from) {
  if (!key.startsWith("Arrow")) return undefined;
  if (!layout.cells.has(from)) return nodes[0]?.[0];
  if (key === "ArrowUp") return nodes.find(([id]) => id === from)[1].find((i) => layout.cells.has(i));
  if (key === "ArrowDown") return nodes.find(([, inputs]) => inputs.includes(from))?.[0];
  const here = layout.cells.get(from);
  const row = [...layout.cells].filter(([, c]) => c.rank === here.rank).sort((a, b) => a[1].x - b[1].x);
  return row[row.findIndex(([id]) => id === from) + (key === "ArrowRight" ? 1 : -1)]?.[0];
}

function panAndZoom(root, world, layout) {
  const at = {x: 0, y: 0, k: 1};
  const size = () => root.getBoundingClientRect();
  const apply = () => world.setAttribute("transform", `translate(${at.x} ${at.y}) scale(${at.k})`);
  const zoom = (factor, x = size().width / 2, y = size().height / 2) => {
    const k = Math.max(0.03, Math.min(3, at.k * factor));
    at.x = x - ((x - at.x) * k) / at.k;
    at.y = y - ((y - at.y) * k) / at.k;
    at.k = k;
    apply();
  };
  const place = (k, x, y) => {
    Object.assign(at, {k, x, y});
    apply();
  };
  const fit = () => {
    const {width, height} = size();
    const k = Math.max(0.03, Math.min(1, (width - 40) / Math.max(layout.width, 1), (height - 40) / Math.max(layout.height, 1)));
    place(k, (width - layout.width * k) / 2, Math.max(20, (height - layout.height * k) / 2));
  };
  // At first: all of it where that can be read, else its top, at a size that can.
  const begin = () => {
    fit();
    if (at.k >= 0.6) return;
    const {width} = size(), k = Math.max(0.6, Math.min(0.9, (width - 40) / Math.max(layout.width, 1)));
    const tops = [...layout.cells.values()].filter((c) => c.rank === 0).map((c) => c.x);
    const middle = tops.reduce((sum, x) => sum + x, 0) / Math.max(tops.length, 1);
    place(k, layout.width * k <= width - 40 ? (width - layout.width * k) / 2 : width / 2 - middle * k, 20);
  };
  const reveal = (cell) => {
    const {width, height} = size();
    const x = cell.x * at.k + at.x, y = cell.y * at.k + at.y;
    if (x < 60 || x > width - 60) at.x += width / 2 - x;
    if (y < 40 || y > height - 40) at.y += height / 2 - y;
    apply();
  };
  root.addEventListener("wheel", (e) => {
    e.preventDefault();
    const box = size();
    if (e.ctrlKey || e.metaKey) return zoom(Math.exp(-e.deltaY / 200), e.clientX - box.left, e.clientY - box.top);
    at.x -= e.deltaX;
    at.y -= e.deltaY;
    apply();
  }, {passive: false});
  let held = null;
  root.addEventListener("pointerdown", (e) => { held = [e.clientX - at.x, e.clientY - at.y, e.clientX, e.clientY]; });
  root.addEventListener("pointermove", (e) => {
    if (!held || (!root.hasPointerCapture(e.pointerId) && Math.hypot(e.clientX - held[2], e.clientY - held[3]) < 4)) return;
    root.setPointerCapture(e.pointerId);
    hideTip();
    [at.x, at.y] = [e.clientX - held[0], e.clientY - held[1]];
    apply();
  });
  for (const kind of ["pointerup", "pointercancel"]) root.addEventListener(kind, () => { held = null; });
  begin();
  return {zoom, fit, reveal};
}

// The list of nodes, as a diff with the pass before.

const matches = (node, find) => `${node.op} ${node.types} ${node.attrs} ${node.place} ${node.source}`.toLowerCase().includes(find);

function diffRows(stages, at) {
  const stage = stages[at];
  if (!at) return stage.nodes.map(([id, inputs]) => ({id, inputs, mark: ""}));
  const before = stages[at - 1].nodes, rows = [];
  let next = 0;
  const flush = (until) => {
    for (; next < before.length && before[next][0] !== until; next++) {
      if (stage.gone.has(before[next][0])) rows.push({id: before[next][0], inputs: before[next][1], mark: "gone"});
    }
  };
  const place = new Map(before.map(([id], i) => [id, i]));
  for (const [id, inputs] of stage.nodes) {
    if (place.get(id) >= next) { flush(id); next++; }
    rows.push({id, inputs, mark: stage.added.has(id) ? "added" : ""});
  }
  flush(null);
  return rows;
}

function drawList(target, plan, stages, view, choose) {
  const all = diffRows(stages, view.stage);
  const rows = all.filter((row) => (!view.only || row.mark) && (!view.find || matches(nodeOf(plan, row.id), view.find)));
  const buttons = new Map();
  target.replaceChildren(...rows.slice(0, 3000).map((row) => {
    const node = nodeOf(plan, row.id);
    const button = el("button", {type: "button", class: `row ${row.mark}`, onclick: () => choose(row.id)},
      el("span", {class: "sign", "aria-label": {added: "added", gone: "removed"}[row.mark]}, {added: "+", gone: "−"}[row.mark] ?? ""),
      el("span", {class: "id"}, `%${row.id}`), el("span", {class: `op f-${family(node)}`}, node.op),
      el("span", {class: "args"}, row.inputs.map((i) => `%${i}`).join(" ")), el("span", {class: "type"}, node.types), el("span", {class: "place"}, node.place.split("/").at(-1)));
    buttons.set(row.id, button);
    return button;
  }));
  if (!rows.length) target.append(el("p", {class: "note"}, view.only && !view.find ? "This pass changed nothing." : "No node matches."));
  const mark = () => {
    for (const [id, button] of buttons) button.setAttribute("aria-pressed", id === state.node);
    const chosen = buttons.get(state.node);
    if (chosen) target.scrollTo({top: Math.max(0, chosen.offsetTop - target.clientHeight / 2)});
  };
  mark();
  return {mark};
}

function drawDetails(target, plan, stage, shown, choose) {
  if (state.node === null || !plan.nodes[state.node]) {
    target.replaceChildren(el("p", {class: "note"}, "Choose a node in the drawing or in the list."));
    return;
  }
  const node = nodeOf(plan, state.node);
  const here = shown.nodes.find(([id]) => id === node.id) ?? stage.nodes.find(([id]) => id === node.id);
  const users = shown.nodes.filter(([, inputs]) => inputs.includes(node.id)).map(([id]) => id);
  const links = (ids) => (ids.length ? ids.slice(0, 12).map((i) => el("button", {type: "button", class: "link", onclick: () => choose(i)}, `%${i} ${nodeOf(plan, i).op}`)) : ["–"]);
  const step = plan.step_nodes.indexOf(node.id);
  const change = stage.added.has(node.id) ? `added by ${stage.name}` : stage.gone.has(node.id) ? `removed by ${stage.name}` : "";
  const facts = [["type", node.types], node.attrs && ["attributes", node.attrs], ["on", `${node.device}, ${bytes(node.nbytes)}`],
    ["reads", links(here?.[1] ?? [])], ["read by", users.length || !stage.outputs.includes(node.id) ? links(users) : "the caller"],
    step >= 0 && ["runs as", el("button", {type: "button", class: "link", onclick: () => go({tab: "plan", step})}, `step ${step}`)]];
  target.replaceChildren(
    el("h3", {class: `f-${family(node)}`}, el("i", {}), `%${node.id} ${node.op}`, change ? el("em", {class: stage.added.has(node.id) ? "added" : "gone"}, change) : null),
    el("dl", {}, facts.filter(Boolean).flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)])),
    node.place ? el("p", {class: "code"}, el("code", {}, node.source || " "), el("small", {}, node.place)) : null ?? "");
}
